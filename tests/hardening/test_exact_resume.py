"""A run that is killed or asked to stop anywhere resumes bit for bit.

`make fuzz` tries many more moments.
"""

import gc
import os
import random
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch
from helpers import (
    DROPOUT,
    ROOT,
    SHORT,
    assert_complains,
    assert_same_run,
    call,
    open_store,
    result_of,
    script_module,
    start,
    start_two,
    succeed,
)

from data import files
from lab import checkpoint, figures, folder, load, records, run, signals
from lab.records import read_metrics
from lab.resume import can_resume
from lab.run import Run

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="kills a forked copy of this process"
)

POINTS = int(os.environ.get("POSLAB_FUZZ", 0)) // 10  # moments for each script; 0: a few
STEPS = tuple("--steps 8 --eval-every 3".split())  # the last evaluation is not at a multiple of 3
BEST_FIRST = tuple("--valid 0.2 --lr 1 --decay 0".split())  # so the best value must be restored
WAYS = {
    "lm": ("train_lm", *DROPOUT, *STEPS),
    "lm, best by validation": ("train_lm", *DROPOUT, *STEPS, *BEST_FIRST),
    "mlm": ("train_mlm", *DROPOUT, *STEPS),
    "seq2seq": ("train_seq2seq", *DROPOUT, *STEPS),
    "tlm": ("train_tlm", *DROPOUT, *STEPS),
    "thread": ("train_thread", *DROPOUT, *STEPS),
    "classifier": ("train_classifier", *DROPOUT, *"--epochs 3 --batch-size 16".split()),
    "classifier, frozen": ("train_classifier", *"--head-dropout 0.2 --no-refit --encoder".split()),
}
# Functions in which the files of a run are made and get their names.
SAVING = (
    *("begin", "open_folder", "evaluate", "log", "save", "save_checkpoint", "write_checkpoint"),
    *("restore", "whole_file", "finish"),
)
# Where a process is killed: at any line, while files are made, and inside a checkpoint.
PLACES = (
    lambda function: True,
    lambda function: function in SAVING,
    lambda function: function == "_save",
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, finished, inputs):
    """undisturbed(way) -> (argv, the folder of the whole run, the function of each line traced)."""
    parent, made = tmp_path_factory.mktemp("whole"), {}

    def get(way):
        if way not in made:
            script, *argv = WAYS[way]
            encoder = [finished("train_mlm")] if argv[-1] == "--encoder" else []
            argv = [*SHORT[script], *argv, *encoder, "--device", "cpu", *inputs(script)]
            trace = []
            succeed(call(script, *argv, out=parent / way))
            # traced the second time, when nothing is imported or compiled any more
            with traced(script, trace.append):
                succeed(call(script, *argv, out=parent / f"{way}, traced"))
            assert_same_run(parent / f"{way}, traced", parent / way)
            made[way] = argv, parent / way, trace
        return made[way]

    with pytest.MonkeyPatch.context() as patch:  # figures take longer than such a training
        patch.setattr(figures, "curves", lambda *args, **more: None)
        patch.setattr(figures, "confusion", lambda *args, **more: None)
        patch.setattr(figures, "save", lambda figure, path: None)
        yield get


class traced:
    """A context that calls see(function's name) before each line of a script and of saving."""

    def __init__(self, script, see):
        modules = (script_module(script), run, folder, records, load, checkpoint, signals, files)
        self.files = {module.__file__ for module in (*modules, torch.serialization)}
        self.see = see

    def __enter__(self):
        sys.settrace(
            lambda frame, event, arg: self.line if frame.f_code.co_filename in self.files else None
        )

    def __exit__(self, *_):
        sys.settrace(None)

    def line(self, frame, event, arg):
        if event == "line":
            self.see(frame.f_code.co_name)
        return self.line


def in_a_copy(script, argv, point, numbers):
    """Call a script in a fork of this process, and send it the signals at line `point`.

    Return (exit code or -signal, stderr).
    """
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        gc.disable()  # Python ignores exceptions that are raised inside the collector
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
        try:
            count = iter(range(1, 10**9))

            def see(_):
                if next(count) == point:
                    for number in numbers:
                        os.kill(os.getpid(), number)

            with traced(script, see):
                done = call(script, *argv)
            os.write(write, done.err.encode()[:60_000])
            code = done.code
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        err = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), err


def moments(way, trace, n):
    """Draw n line numbers, in turn from each kind of PLACES."""
    dice, lines = random.Random(way), list(enumerate(trace, start=1))
    kinds = [[number for number, function in lines if place(function)] for place in PLACES]
    return [dice.choice(kinds[i % len(kinds)]) for i in range(POINTS or n)]


def again(script, argv, folder):
    """The same command again, with --resume where there is a checkpoint."""
    if can_resume(folder):
        return [*argv, "--out", folder, "--resume"]
    outcome = call(script, *argv, out=folder, resume=True)
    assert_complains(outcome, folder, "leave --resume out")  # no checkpoint, or no folder yet
    return [*argv, "--out", folder]


# ------------------------------------------------------------------------------------- being killed


@pytest.mark.parametrize("way", WAYS)
def test_a_run_killed_at_any_line_resumes_bit_for_bit(way, undisturbed, tmp_path):
    script = WAYS[way][0]
    argv, whole, trace = undisturbed(way)
    for number, point in enumerate(moments(way, trace, 6)):
        folder = tmp_path / str(number)
        code, _ = in_a_copy(script, [*argv, "--out", folder], point, [signal.SIGKILL])
        assert code == -signal.SIGKILL
        if number % 3 == 0:  # killed a second time
            later = random.Random(point).randrange(1, len(trace))
            in_a_copy(script, again(script, argv, folder), later, [signal.SIGKILL])
        torch.rand(number)  # what the process did before must not matter
        done = call(script, *again(script, argv, folder))
        assert done.code == 0, (point, done.err)
        assert_same_run(folder, whole)


def test_a_process_killed_at_any_time_resumes_bit_for_bit(corpus, tmp_path):
    argv = ["--data", str(corpus), *SHORT["train_lm"], *DROPOUT]
    argv += "--steps 200 --eval-every 5".split()
    succeed(call("train_lm", *argv, out=tmp_path / "whole"))
    for sitting in range(max(1, POINTS // 10)):
        more = ["--out", tmp_path / "parts", *(["--resume"] if sitting else [])]
        process = start("train_lm", *argv, *more, stdout=subprocess.DEVNULL)
        before = len(read_metrics(tmp_path / "parts"))
        while process.poll() is None and len(read_metrics(tmp_path / "parts")) < before + 2:
            time.sleep(0.01)
        time.sleep(random.Random(sitting).random() / 10)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
    done = call("train_lm", *argv, out=tmp_path / "parts", resume=True)
    assert done.code == 0, done.err  # with a note if it was killed while files changed names
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


# ------------------------------------------------------------------------------------ being stopped


@pytest.mark.parametrize("way", WAYS)
def test_a_run_stopped_at_any_line_resumes_bit_for_bit(way, undisturbed, tmp_path):
    script = WAYS[way][0]
    argv, whole, trace = undisturbed(way)
    for number, point in enumerate(moments("asked " + way, trace, 3)):
        folder, asked = tmp_path / str(number), (signal.SIGTERM, signal.SIGINT)[number % 2]
        code, err = in_a_copy(script, [*argv, "--out", folder], point, [asked])
        # Before there is a run, SIGTERM kills the process as usual, and SIGINT has no remedy.
        ends = (128 + asked, -asked if asked == signal.SIGTERM else None)
        assert code in ends, (point, len(trace), err)
        assert code < 0 or ": interrupted" in err and err.strip().count("\n") == 0
        done = call(script, *again(script, argv, folder))
        assert done.code == 0, (point, done.err)
        assert_same_run(folder, whole)


def at_update(monkeypatch, number, *signals):
    """Send signals to this process after that many updates."""
    record_step, count = Run.record_step, iter(range(1, 1000))

    def seen(self, *args):
        record_step(self, *args)
        if next(count) == number:
            for each in signals:
                os.kill(os.getpid(), each)

    monkeypatch.setattr(Run, "record_step", seen)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_step_at_which_it_came(
    way, asked, code, undisturbed, tmp_path, monkeypatch
):
    script, (argv, whole, _) = WAYS[way][0], undisturbed(way)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        at_update(patch, 5, asked)
        done = call(script, *argv, out=tmp_path / "run")
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    per_epoch = {"classifier": 3, "classifier, frozen": 12}.get(way, 1)
    assert state["step"] == 5 and state["more"]["per_epoch"] == per_epoch
    assert list(map(type, state["more"]["losses"])) == [float] * (5 if per_epoch == 12 else 2)
    assert done.code == code and done.err.count("\n") == 1 + done.err.startswith("\n")
    assert f" {5 // per_epoch} " in done.err and script in done.err
    assert ("and the start of the next is saved" in done.err) == (per_epoch > 1)
    assert done.err.endswith(f" --resume --out {tmp_path / 'run'}\n")
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    succeed(call(script, *done.err.split()[-3:]))  # no other flag is needed
    assert_same_run(tmp_path / "run", whole)


def test_time_is_summed_and_the_first_command_is_kept(undisturbed, tmp_path, monkeypatch):
    argv, *_ = undisturbed("lm")
    with monkeypatch.context() as patch:
        at_update(patch, 5, signal.SIGINT)
        call("train_lm", *argv, out=tmp_path / "run")
    first = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["seconds"]
    succeed(call("train_lm", resume=True, out=tmp_path / "run"))
    result = result_of(tmp_path / "run")
    assert result["seconds"] > first[0] and result["cpu_seconds"] > first[1] > 0
    words = ["python", "train_lm.py", *argv, "--out", tmp_path / "run"]
    assert result["command"] == shlex.join(map(str, words))


def assert_kept_step_3(done, folder, argv, whole):
    """Assert that a run ended with only step 3 saved, no partial file, and resumes bit for bit."""
    assert "step 3 is saved" in done.err
    assert not list(folder.glob("*.partial"))
    succeed(call("train_lm", *argv, out=folder, resume=True))
    assert_same_run(folder, whole)


def test_a_second_signal_ends_at_once(undisturbed, tmp_path, monkeypatch):
    argv, whole, _ = undisturbed("lm")
    with monkeypatch.context() as patch:
        at_update(patch, 5, signal.SIGINT, signal.SIGTERM)
        done = call("train_lm", *argv, out=tmp_path / "run")
    assert done.code == 143
    assert_kept_step_3(done, tmp_path / "run", argv, whole)
    argv, *_ = undisturbed("classifier")  # saves nothing before the first epoch ends
    with monkeypatch.context() as patch:
        at_update(patch, 2, signal.SIGINT, signal.SIGTERM)
        done = call("train_classifier", *argv, out=tmp_path / "early")
    assert done.code == 143
    assert "nothing new was saved; the same command starts again" in done.err


class InterruptedFile:
    """A file that sends SIGINT to this process at the ninth piece written."""

    def __init__(self, file):
        self.file, self.n_written = file, 0

    def write(self, content):
        self.n_written += 1
        if self.n_written == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return self.file.write(content)

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_second_signal_during_a_save_keeps_the_old_file(undisturbed, tmp_path, monkeypatch):
    argv, whole, _ = undisturbed("lm")
    save, interrupted = torch.save, []

    def save_or_stop(state, file):
        if state["step"] == 5:
            file = InterruptedFile(file)
            interrupted.append(file)
        return save(state, file)

    with monkeypatch.context() as patch:
        at_update(patch, 5, signal.SIGINT)
        patch.setattr(torch, "save", save_or_stop)
        done = call("train_lm", *argv, out=tmp_path / "run")
    (file,) = interrupted
    assert file.n_written >= 9
    assert done.code == 130
    assert_kept_step_3(done, tmp_path / "run", argv, whole)


def test_a_process_that_is_stopped_says_how_to_resume(corpus, tmp_path):
    argv = ["--data", corpus, *SHORT["train_lm"], "--steps", 100_000, "--out", tmp_path / "run"]
    process = start("train_lm", *argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and len(read_metrics(tmp_path / "run")) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    step = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"]
    command = f"python train_lm.py --resume --out {tmp_path / 'run'}"
    assert process.returncode == 143 and err.strip().count("\n") == 0
    assert f"step {step} is saved" in err and err.strip().endswith(command)


def test_a_signal_to_one_of_two_processes_stops_both(corpus, tmp_path):
    endless = (*SHORT["train_lm"], *"--steps 100000 --device cpu".split())
    argv = ("--data", corpus, *endless, "--out", tmp_path / "run")
    processes = start_two(tmp_path, ROOT / "train_lm.py", *argv, port=open_store())
    while processes[1].poll() is None and len(read_metrics(tmp_path / "run")) < 2:
        time.sleep(0.01)
    processes[1].send_signal(signal.SIGTERM)
    assert [process.wait(100) for process in processes] == [143, 143]
    step = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"]
    assert step > 0
    err = "".join((tmp_path / f"err-{rank}.txt").read_text() for rank in range(2))
    (line,) = [line for line in err.splitlines() if "interrupted" in line]
    command = f"train_lm.py --resume --out {tmp_path / 'run'}"
    assert f"step {step} is saved" in line
    assert line.endswith(f"torchrun --nproc_per_node=2 {command}")
