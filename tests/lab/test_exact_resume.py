"""A run that dies anywhere, or is asked to stop, and then goes on: to the last bit as if nothing had happened.

`make fuzz` tries many more moments.
"""

import gc
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
from helpers import DROPOUT, ROOT, SHORT, TINY, assert_complains, call, numbers, same

from lab import figures
from lab.records import can_resume, read_metrics
from lab.run import Run

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="lets a copy of this process die, which needs fork"
)

POINTS = int(os.environ.get("POSLAB_FUZZ", 0)) // 10  # moments of each script; 0: a few
STEPS = ("--steps", "8", "--eval-every", "3")  # the last evaluation comes at a step of its own
WAYS = {
    "lm": ("train_lm", *SHORT["train_lm"], *STEPS, *DROPOUT),
    "lm, best by validation": (
        "train_lm",
        *SHORT["train_lm"],
        *STEPS,
        *DROPOUT,
        "--valid",
        "0.2",
        "--lr",
        "1",
        "--decay",
        "0",
    ),
    "mlm": ("train_mlm", *SHORT["train_mlm"], *STEPS, *DROPOUT),
    "seq2seq": ("train_seq2seq", *SHORT["train_seq2seq"], *STEPS, *DROPOUT),
    "tlm": ("train_tlm", *TINY, *STEPS, *DROPOUT),
    "thread": (
        "train_thread",
        *TINY,
        *STEPS,
        *DROPOUT,
        "--ancestors",
        "3",
        "--valid",
        "0.2",
        "--test",
        "0.2",
    ),
    "classifier": (
        "train_classifier",
        *SHORT["train_classifier"],
        *DROPOUT,
        "--epochs",
        "3",
        "--batch-size",
        "16",
    ),
    "classifier, frozen": (
        "train_classifier",
        *SHORT["train_classifier"],
        "--head-dropout",
        "0.2",
        "--no-refit",
        "--encoder",
    ),
}
# Between which lines a process may die: anywhere; in the few where files get their names; and while a checkpoint is half
# written.
PLACES = (
    lambda function: True,
    lambda function: (
        function
        in (
            "begin",
            "open_folder",
            "log",
            "save",
            "save_checkpoint",
            "write_checkpoint",
            "restore",
            "write_text",
            "finish",
        )
    ),
    lambda function: function == "_save",
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    for name, count in (("train", 30), ("val", 6), ("test", 6)):
        for ending, word in (("en", "word"), ("xx", "mot")):
            (folder / f"{name}.{ending}").write_text(
                "".join(f"{word} {n % 5} {word}{n}\n" for n in range(count)), encoding="utf-8"
            )
    return folder


@pytest.fixture(scope="module")
def threads(tmp_path_factory):
    path = tmp_path_factory.mktemp("threads") / "few.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "id": f"p{n}",
                    "title": f"post {n % 4}",
                    "comments": [
                        {"id": "a", "parent_id": f"t3_p{n}", "body": f"a {n % 4} and {n % 3}"},
                        {"id": "b", "parent_id": "t1_a", "body": f"b {n % 4} too"},
                    ],
                }
            )
            + "\n"
            for n in range(16)
        ),
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, corpus, finished, pairs, threads):
    """undisturbed(way) -> (argv, the folder of the whole run, its trace: the function of each line it went through)."""
    parent, made = tmp_path_factory.mktemp("whole"), {}

    def get(way):
        if way not in made:
            script, *argv = WAYS[way]
            argv += ([finished("train_mlm")] if argv[-1] == "--encoder" else []) + [
                "--device",
                "cpu",
                "--data",
                {"tlm": pairs, "thread": threads}.get(way, corpus),
            ]
            trace = []
            assert call(script, *argv, "--out", parent / way).code == 0
            with traced(
                script, trace.append
            ):  # the second time, when nothing is done for the first time in a process
                assert call(script, *argv, "--out", parent / f"{way}, traced").code == 0
            assert_same_run(parent / f"{way}, traced", parent / way)
            made[way] = argv, parent / way, trace
        return made[way]

    with (
        pytest.MonkeyPatch.context() as patch
    ):  # figures are drawn anew each time, and take longer than such a training
        patch.setattr(figures, "curves", lambda *args, **more: None)
        patch.setattr(figures, "confusion", lambda *args, **more: None)
        yield get


class traced:
    """A context in which `see(name of the function)` is called before each line of a script and of what it saves with."""

    def __init__(self, script, see):
        self.files = {
            str(ROOT / f"{name}.py") for name in (script, "run", "opened", "checkpoint", "stopping")
        } | {torch.serialization.__file__}
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


def in_a_copy(script, argv, point, signals):
    """Call a script in a copy of this process, to which the signals are sent at line `point`. Returns (exit code or
    -signal, stderr)."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        gc.disable()  # an exception in what the collector calls is lost, as Python has it
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # which a shell's background job is made to ignore
        try:
            count = iter(range(1, 10**9))

            def see(_):
                if next(count) == point:
                    for number in signals:
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
    """n numbers of lines drawn at random, in turn from each kind of PLACES."""
    dice, kinds = (
        random.Random(way),
        [
            [number for number, function in enumerate(trace, start=1) if place(function)]
            for place in PLACES
        ],
    )
    return [dice.choice(kinds[i % len(kinds)]) for i in range(POINTS or n)]


def go_on(script, argv, folder):
    """The same command again, with --resume where there is a checkpoint."""
    if not can_resume(folder):
        assert_complains(
            call(script, *argv, "--out", folder, "--resume"),
            folder,
            "holds no checkpoint.pt; leave --resume out",
        )
    return [*argv, "--out", folder, *(["--resume"] if can_resume(folder) else [])]


def assert_same_run(folder, whole):
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert numbers(folder) == numbers(whole) and not list(folder.glob("*.partial"))
    for name in ("checkpoint.pt", "best.pt"):
        a, b = (torch.load(path / name, weights_only=True) for path in (folder, whole))
        assert same(a | {"seconds": 0}, b | {"seconds": 0}), name


# ---------------------------------------------------------------------------- dying


@pytest.mark.parametrize("way", WAYS)
def test_a_run_killed_at_any_line_goes_on_to_the_last_bit(way, undisturbed, tmp_path):
    script = WAYS[way][0]
    argv, whole, trace = undisturbed(way)
    for number, point in enumerate(moments(way, trace, 6)):
        folder = tmp_path / str(number)
        assert (
            in_a_copy(script, [*argv, "--out", folder], point, [signal.SIGKILL])[0]
            == -signal.SIGKILL
        )
        if number % 3 == 0:  # and once more
            in_a_copy(
                script,
                go_on(script, argv, folder),
                random.Random(point).randrange(1, len(trace)),
                [signal.SIGKILL],
            )
        torch.rand(number)  # whatever the process did before must not matter
        done = call(script, *go_on(script, argv, folder))
        assert done.code == 0, (point, done.err)
        assert_same_run(folder, whole)


def test_a_process_killed_by_the_clock_goes_on_to_the_last_bit(corpus, tmp_path):
    argv = [
        "train_lm",
        "--data",
        corpus,
        *SHORT["train_lm"],
        *DROPOUT,
        "--steps",
        200,
        "--eval-every",
        5,
    ]
    start = [sys.executable, ROOT / "train_lm.py", *map(str, argv[1:]), "--out", tmp_path / "parts"]
    assert call(*argv, "--out", tmp_path / "whole").code == 0
    for sitting in range(max(1, POINTS // 10)):
        process = subprocess.Popen(
            [*start, *(["--resume"] if sitting else [])],
            stdout=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        before = len(read_metrics(tmp_path / "parts"))
        while process.poll() is None and len(read_metrics(tmp_path / "parts")) < before + 2:
            time.sleep(0.01)
        time.sleep(random.Random(sitting).random() / 10)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
    assert call(*argv, "--out", tmp_path / "parts", "--resume").code == 0
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


# ---------------------------------------------------------------------------- being asked


@pytest.mark.parametrize("way", WAYS)
def test_a_run_asked_to_stop_at_any_line_saves_and_goes_on_to_the_last_bit(
    way, undisturbed, tmp_path
):
    script = WAYS[way][0]
    argv, whole, trace = undisturbed(way)
    for number, point in enumerate(moments("asked " + way, trace, 3)):
        folder, asked = tmp_path / str(number), (signal.SIGTERM, signal.SIGINT)[number % 2]
        code, err = in_a_copy(script, [*argv, "--out", folder], point, [asked])
        # Before there is a run, SIGTERM has the system's own way to end it.
        assert code in (128 + asked, -asked if asked == signal.SIGTERM else None), (
            point,
            len(trace),
            err,
        )
        assert code < 0 or "interrupted; " in err and err.strip().count("\n") == 0
        done = call(script, *go_on(script, argv, folder))
        assert done.code == 0, (point, done.err)
        assert_same_run(folder, whole)


def at_progress(monkeypatch, number, *signals):
    """Send signals to this process right after that many updates."""
    progress, count = Run.progress, iter(range(1, 1000))

    def seen(self, *args):
        progress(self, *args)
        if next(count) == number:
            for each in signals:
                os.kill(os.getpid(), each)

    monkeypatch.setattr(Run, "progress", seen)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_is_saved_is_the_step_at_which_the_signal_came(
    way, asked, code, undisturbed, tmp_path, monkeypatch
):
    script, (argv, whole, _) = WAYS[way][0], undisturbed(way)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        at_progress(patch, 5, asked)
        done = call(script, *argv, "--out", tmp_path / "run")
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    if script == "train_classifier":
        batches = {"classifier": 3, "classifier, frozen": 12}[way]  # of an epoch
        assert (state["step"], state["more"]["batches_done"]) == divmod(5, batches)
    else:
        assert state["step"] == 5 and len(state["more"]["losses"]) == 2
    beside = " with the beginning of the next" * (script == "train_classifier")
    remedy = f"{state['step']}{beside} is saved; to go on from there: python {script}.py --resume --out {tmp_path / 'run'}\n"
    assert done.code == code and done.err.endswith(remedy)
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert call(script, *remedy.split()[-3:]).code == 0  # no other flag is needed
    assert_same_run(tmp_path / "run", whole)


def test_time_is_summed_over_both_sittings_and_the_command_is_the_first(
    undisturbed, tmp_path, monkeypatch
):
    argv, *_ = undisturbed("lm")
    with monkeypatch.context() as patch:
        at_progress(patch, 5, signal.SIGINT)
        call("train_lm", *argv, "--out", tmp_path / "run")
    first = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["seconds"]
    assert call("train_lm", "--resume", "--out", tmp_path / "run").code == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["seconds"] > first[0] and result["cpu_seconds"] > first[1] > 0
    assert result["command"] == shlex.join(
        map(str, ["python", "train_lm.py", *argv, "--out", tmp_path / "run"])
    )


def test_a_second_signal_ends_at_once(undisturbed, tmp_path, monkeypatch):
    argv, whole, _ = undisturbed("lm")
    with monkeypatch.context() as patch:
        at_progress(patch, 5, signal.SIGINT, signal.SIGTERM)
        done = call("train_lm", *argv, "--out", tmp_path / "run")
    assert (
        done.code == 143
        and "step 3 is saved" in done.err
        and not list((tmp_path / "run").glob("*.partial"))
    )
    assert call("train_lm", *argv, "--out", tmp_path / "run", "--resume").code == 0
    assert_same_run(tmp_path / "run", whole)


def test_a_second_signal_while_a_checkpoint_is_written_leaves_the_one_before(
    undisturbed, tmp_path, monkeypatch
):
    argv, whole, _ = undisturbed("lm")
    save, written = torch.save, []

    class Slow:
        def __init__(self, file):
            self.file = file

        def write(self, content):
            written.append(len(content))
            if len(written) == 9:
                os.kill(os.getpid(), signal.SIGINT)
            return self.file.write(content)

        def __getattr__(self, name):
            return getattr(self.file, name)

    def slow(state, file):
        return save(state, Slow(file) if state["step"] == 5 else file)

    with monkeypatch.context() as patch:
        at_progress(patch, 5, signal.SIGINT)
        patch.setattr(torch, "save", slow)
        done = call("train_lm", *argv, "--out", tmp_path / "run")
    assert (
        written
        and done.code == 130
        and "step 3 is saved" in done.err
        and not list((tmp_path / "run").glob("*.partial"))
    )
    assert call("train_lm", *argv, "--out", tmp_path / "run", "--resume").code == 0
    assert_same_run(tmp_path / "run", whole)


def test_a_process_asked_to_stop_says_how_to_go_on(corpus, tmp_path):
    argv = ["--data", corpus, *SHORT["train_lm"], "--steps", 100_000, "--out", tmp_path / "run"]
    process = subprocess.Popen(
        [sys.executable, ROOT / "train_lm.py", *map(str, argv)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while process.poll() is None and len(read_metrics(tmp_path / "run")) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    step = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"]
    assert process.returncode == 143 and err.strip() == (
        f"interrupted; step {step} is saved; to go on from there: "
        f"python {ROOT / 'train_lm.py'} --resume --out {tmp_path / 'run'}"
    )


def test_of_two_processes_one_is_asked_and_both_end_at_the_same_step(corpus, tmp_path):
    argv = [
        "--data",
        corpus,
        *SHORT["train_lm"],
        "--steps",
        100_000,
        "--device",
        "cpu",
        "--out",
        tmp_path / "run",
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, ROOT / "train_lm.py", *map(str, argv)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(2)
    ]
    while processes[1].poll() is None and len(read_metrics(tmp_path / "run")) < 2:
        time.sleep(0.01)
    processes[1].send_signal(signal.SIGTERM)
    err = [process.communicate(timeout=100)[1] for process in processes]
    step = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"]
    assert [process.returncode for process in processes] == [143, 143] and step > 0
    assert [line for line in "".join(err).splitlines() if "interrupted" in line] == [
        f"interrupted; step {step} is saved; to go on from there: "
        f"torchrun --nproc_per_node=2 {ROOT / 'train_lm.py'} --resume --out {tmp_path / 'run'}"
    ]
