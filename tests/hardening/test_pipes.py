"""A reader of the output that goes away, as in `python train_lm.py | head`."""

import json
import subprocess
import sys

from helpers import ROOT, TINY


def test_a_closed_pipe_does_not_end_a_training(corpus, tmp_path):
    argv = [
        *TINY,
        "--steps",
        "30",
        "--eval-every",
        "1",
        "--data",
        corpus,
        "--out",
        tmp_path / "run",
    ]
    command = [sys.executable, ROOT / "train_lm.py", *argv]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    process.stdout.close()
    process.stderr.read()
    process.wait()
    assert process.returncode == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["step"] == 30


def test_a_closed_pipe_ends_other_scripts_with_a_line(finished):
    command = [sys.executable, ROOT / "train_lm.py", "--help"]
    assert subprocess.run(list(map(str, command)), capture_output=True).returncode == 0
    program = (
        "import sys; from lab import command; import train_lm\n"
        "def script(flags): raise BrokenPipeError\n"
        "command.main(script, train_lm.Flags, '', [])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ("train_lm.py: stopped: nothing reads the output any more\n")
