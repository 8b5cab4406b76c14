"""One of the two processes of test_distributed.py, with the environment that torchrun sets.

It does all jobs of a file one after the other, so that torch is imported once.

    RANK=0 WORLD_SIZE=2 ... python one_of_two.py jobs.json      writes jobs-RANK.json

A job is {"script", "argv", "port", "stop_at"}, where stop_at is the number of the checkpoint after
which Ctrl-C is pressed, or 0. A job without a script draws random numbers as dropout does. The
last job runs as a user would start it, and may end the process.
"""

import json
import os
import sys
import types
from pathlib import Path

import pytest
import torch
from helpers import call, script_module

from lab import command, processes
from lab.run import Run


def draws():
    """{step: random numbers of this process in the two parts of the step}."""
    flags, found = types.SimpleNamespace(seed=3, accumulate=2), {}
    labels = torch.zeros(5, 2, dtype=torch.long)
    for name, step in (("7", 7), ("8", 8), ("7 again", 7)):
        found[name] = [torch.rand(3).tolist() for _ in processes.micro_batches(flags, step, labels)]
    return found


def main(path):
    *jobs, last = json.loads(path.read_text(encoding="utf-8"))
    done = {}
    for job in jobs:
        os.environ["MASTER_PORT"] = str(job["port"])
        if "script" not in job:
            done[job["name"]] = draws()
            continue
        with pytest.MonkeyPatch.context() as patch:
            if job["stop_at"]:
                stop_at(patch, job["stop_at"])
            outcome = call(job["script"], *job["argv"])
        done[job["name"]] = outcome._asdict()
        processes.end()  # the next job has a port of its own
    path.with_name(f"jobs-{processes.rank()}.json").write_text(json.dumps(done), encoding="utf-8")
    os.environ["MASTER_PORT"] = str(last["port"])
    sys.argv = [last["script"] + ".py", *last["argv"]]
    module = script_module(last["script"])
    command.main(module.train, module.Flags, "")


def stop_at(patch, number):
    """Press Ctrl-C right after this checkpoint is saved."""
    save, count = Run.save_checkpoint, iter(range(1, 1000))

    def pressed(self, *args, **more):
        save(self, *args, **more)
        if next(count) == number:
            raise KeyboardInterrupt

    patch.setattr(Run, "save_checkpoint", pressed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
