"""The plumbing of a run: command line, run folder, checkpoints, several processes, figures.

In Python or a notebook, `from lab import load_run` opens a trained run (docs/python.md).
"""

import torch

from lab.errors import UserError
from lab.inside.run import OpenRun
from lab.load import read_run


def load_run(folder, device="cpu", step=None):
    """Return a trained run to look inside, as an `OpenRun`, with its best weights.

    folder: that of any training script. device: where to compute, such as "cuda". step: take the
    weights of this step, which --keep kept. Raises UserError or DataError if the folder is not a
    run, or has no such weights, and if the device is not available.
    """
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"device {device}: cannot be used ({why}); give cpu") from None
    return OpenRun(**vars(read_run(folder, device=device, step=step)))
