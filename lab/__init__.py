"""The plumbing of a run: flags, run folder, several processes, figures.

In Python or a notebook, `from lab import load_run` opens a trained run (docs/tour.ipynb).
"""

import contextlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path

NEEDED = ("torch", "tokenizers", "matplotlib", "numpy", "scipy", "tyro")


def check_packages():
    """Exit with one line if a package is missing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        remedy = (
            "activate the environment (source .venv/bin/activate), or install: pip install -e ."
        )
        print(f"{sys.executable} lacks {', '.join(missing)}; {remedy}", file=sys.stderr)
        raise SystemExit(2)


def check_own_modules():
    """Exit with one line if a folder before this one on sys.path has modules of the same names."""
    root = Path(__file__).resolve().parents[1]
    for name in ("data", "nets", "model"):
        path = Path(importlib.util.find_spec(name).origin or name).resolve()
        if root / name not in (path.with_suffix(""), path.parent):  # a module, a package
            print(f"{path}: hides {root / name}; rename it, or run in {root}", file=sys.stderr)
            raise SystemExit(2)


def drop_wrong_backend():
    """Remove MPLBACKEND from the environment if matplotlib would refuse to be imported with it: a
    name that it does not know, or a notebook's backend in an environment without notebooks. Figures
    are drawn without a backend."""
    backend = os.environ.get("MPLBACKEND", "")
    if not backend or "matplotlib" in sys.modules:
        return
    del os.environ["MPLBACKEND"]
    matplotlib = importlib.import_module("matplotlib")  # takes time, and is rarely needed here
    with contextlib.suppress(ValueError):
        matplotlib.rcParams["backend"] = backend
        os.environ["MPLBACKEND"] = backend


check_packages()
check_own_modules()
drop_wrong_backend()


def load_run(folder, device="cpu", step=None):
    """Return a trained run to look inside, as an `OpenRun`, with its best weights.

    folder: that of any training script. device: where to compute, such as "cuda". step: take the
    weights of this step, which --keep kept. Raises UserError if the folder is not a run, or has no
    such weights.
    """
    from lab.inside.run import OpenRun  # not loaded by the training scripts
    from lab.load import read_run

    return OpenRun(**vars(read_run(folder, device=device, step=step)))
