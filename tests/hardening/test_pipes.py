"""Outputs that end early, as in `python train_lm.py | head`, or that lack letters."""

import os
import subprocess
import sys

import pytest
from helpers import ROOT, TINY, result_of, start


@pytest.mark.parametrize("ends", ["pipe", "openpty"])
def test_a_closed_pipe_or_terminal_does_not_end_a_training(ends, corpus, tmp_path):
    steps, out = "--steps 30 --eval-every 1".split(), tmp_path / "run"
    argv = [*TINY, *steps, "--data", corpus, "--out", out]
    ours, theirs = getattr(os, ends)()
    process = start("train_lm", *argv, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    assert process.wait() == 0
    assert result_of(out)["step"] == 30


def run_script(body, closed="", **env):
    """Run a script with the flags of train_lm.py in a process; return what it wrote. closed: the
    streams that Python finds closed."""
    program = (
        "import sys; from lab import command; import train_lm\n"
        f"def script(flags): {body}\n"
        f"for name in {closed.split()}: setattr(sys, name, None)\n"
        "command.main(script, train_lm.Flags, '')"
    )
    command, env = [sys.executable, "-c", program], os.environ | env
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def test_a_closed_pipe_ends_other_scripts_with_a_line():
    done = run_script("raise BrokenPipeError")
    assert done.returncode == 1
    assert done.stderr == ("train_lm.py: stopped: nothing reads the output any more\n")


def test_letters_that_the_output_lacks_become_escapes_and_closed_streams_are_empty():
    body = "print('a 世', [sys.stdin.read(), sys.stderr.isatty()])"
    done = run_script(body, closed="stdin stderr", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a \\u4e16 ['', False]\n", "")
