"""The plumbing of a run: command line, run folder, checkpoints, several processes, figures.

In Python or a notebook, `from lab import load_run` opens a trained run (docs/python.md).
"""

from lab.inside.run import OpenRun
from lab.load import read_run


def load_run(folder, device="cpu", step=None):
    """Return a trained run to look inside, as an `OpenRun`, with its best weights.

    folder: that of any training script. device: where to compute, such as "cuda". step: take the
    weights of this step, which --keep kept. Raises UserError or DataError if the folder is not a
    run, or has no such weights.
    """
    return OpenRun(**vars(read_run(folder, device=device, step=step)))
