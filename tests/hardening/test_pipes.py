"""A reader of the output that goes away, as in `python train_lm.py | head`."""

import subprocess
import sys

from helpers import ROOT, TINY, result_of, start


def test_a_closed_pipe_does_not_end_a_training(corpus, tmp_path):
    steps, out = "--steps 30 --eval-every 1".split(), tmp_path / "run"
    argv = [*TINY, *steps, "--data", corpus, "--out", out]
    process = start("train_lm", *argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    process.stderr.read()
    process.wait()
    assert process.returncode == 0
    assert result_of(out)["step"] == 30


def test_a_closed_pipe_ends_other_scripts_with_a_line():
    program = (
        "import sys; from lab import command; import train_lm\n"
        "def script(flags): raise BrokenPipeError\n"
        "command.main(script, train_lm.Flags, '')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ("train_lm.py: stopped: nothing reads the output any more\n")
