"""Run folders: exact resume, damage, and what is refused."""

import contextlib
import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import filelock
import pytest
import torch
from helpers import ROOT, SIZE, TINY, call, fails, start, succeed

import data.files
import lab.run
import model
from data.files import read_json, write_json
from lab.load import read_run
from lab.run import Run

LONG = ["--steps", 60, "--eval-every", 20, "--dropout", 0.1, "--threads", 1]


def train(corpus, out, *argv, **flags):
    return call("train_lm", "--data", corpus, *TINY, *LONG, *argv, out=out, **flags)


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """The folder of a run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    succeed(train(corpus, folder))
    return folder


def assert_same(folder, whole):
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    states = [torch.load(f / "best.pt", weights_only=True)["model"] for f in (folder, whole)]
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in states)))


def slow(*values):
    """Return parameters of which the tests are slow ones."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize("number", [*slow(signal.SIGINT, signal.SIGTERM), signal.SIGKILL])
def test_a_killed_run_resumes_exactly(corpus, tmp_path, whole, number):
    folder = tmp_path / "run"
    process = start("train_lm", "--data", corpus, *TINY, *LONG, out=folder)
    while not (folder / "checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
    if number != signal.SIGKILL and not (folder / "result.json").exists():
        assert process.returncode == 128 + number
        assert f"--resume --out {folder}" in printed
    succeed(call("train_lm", "--resume", out=folder))
    assert_same(folder, whole)


def test_a_damaged_checkpoint_is_one_message(corpus, tmp_path):
    succeed(train(corpus, tmp_path / "run"))
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"damaged")
    resumed = call("train_lm", "--resume", out=tmp_path / "run")
    fails(resumed, "checkpoint.pt: cannot be read", "train the run again")


def test_nan_ends_the_run_and_keeps_the_checkpoint(corpus, tmp_path):
    fails(train(corpus, tmp_path / "run", lr=1e30, clip=0), "training diverged", "smaller --lr")
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert all(weight.isfinite().all() for weight in state["model"].values())


def test_a_full_disk_loses_nothing(corpus, tmp_path, monkeypatch):
    folder, saves, save = tmp_path / "run", [], torch.save

    def fill(state, file):
        saves.append(1)
        if len(saves) == 5:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(state, file)

    monkeypatch.setattr(torch, "save", fill)
    fails(train(corpus, folder), "disk is full")
    assert not list(folder.glob("*.partial"))
    monkeypatch.undo()
    succeed(call("train_lm", "--resume", out=folder))


def test_a_folder_that_holds_a_run_is_replaced_only_with_overwrite(copied, corpus, tmp_path):
    folder = copied("train_lm")
    fails(train(corpus, folder), "already holds a run", "--resume", "--overwrite")
    (tmp_path / "texts.txt").write_text("we want peace\n")
    argv = [folder, "--text", "we want", "--html", "--positions", "--save-weights"]
    succeed(call("attention_maps", *argv))
    succeed(call("sample", folder, file=tmp_path / "texts.txt"))
    (folder / "best.pt.partial").write_bytes(b"of an interrupted run")
    (folder / ".DS_Store").write_bytes(b"of the system")
    succeed(train(corpus, folder, overwrite=True))
    assert not (folder / "maps").exists() and not (folder / "answers.tsv").exists()
    assert (folder / ".DS_Store").exists()


SCRIPTS = [
    ["train_classifier"],
    ["train_mlm"],
    ["beyond.train_seq2seq"],
    ["beyond.train_context", "--task", "threads"],
]


@pytest.mark.parametrize("command", SCRIPTS)
def test_overwrite_knows_all_files_that_a_script_writes(command, finished):
    folder = finished(*command)
    files = lab.run.find_files(folder)
    assert len(files) > 6
    assert [path for path in files if not lab.run.is_written(path.relative_to(folder))] == []


def files_in(folder):
    """Return {path: content} of all files in a folder but the lock."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: path.read_bytes() for path in paths}


@pytest.mark.parametrize("command", [["train_lm", "--data", "copy", "--length", "1"], *SCRIPTS])
def test_a_start_that_never_trains_leaves_nothing(command, copied, tmp_path, monkeypatch):
    folder = copied(*command)
    words = shlex.split(read_json(folder / "config.json")["command"])
    words = words[words.index("--data") :]

    def refuse(*args):
        raise data.files.UserError("refused in the first evaluation")

    monkeypatch.setattr(Run, "log", refuse)
    before = files_in(folder)
    fails(call(command[0], *words, "--overwrite", out=folder), "refused")
    assert files_in(folder) == before
    fails(call(command[0], *words, out=tmp_path / "new"), "refused")
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    fails(call(command[0], *words, out=tmp_path / "empty"), "refused")
    assert files_in(tmp_path / "empty") == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nor_does_one_with_a_refused_option(corpus, tmp_path):
    fails(train(corpus, tmp_path / "run", graph=True), "--graph")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", ["my.txt", "texts/my.txt", "maps/map-1.txt"])
def test_overwrite_refuses_a_folder_with_an_input_or_other_files(place, copied, corpus, tmp_path):
    folder = copied("train_lm")
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"line {n} of my text\n" for n in range(30)))
    before = files_in(folder)
    message = f"is or holds what --data {path} reads"
    fails(train(path, folder, overwrite=True), message, "choose another folder")
    (tmp_path / "link.txt").symlink_to(path)
    fails(train(tmp_path / "link.txt", folder, overwrite=True), "is or holds what --data")
    vocabulary = train(corpus, folder, overwrite=True, vocab_from=path)
    fails(vocabulary, f"is or holds what --vocab-from {path} reads")
    if not place.startswith("maps"):
        fails(train(corpus, folder, overwrite=True), f"holds {path}, which no run wrote", "move it")
    assert files_in(folder) == before


def test_a_run_inside_the_folder_is_neither_deleted_nor_overwritten(copied, finished, corpus):
    folder = copied("train_lm")
    inner = shutil.copytree(finished("train_mlm"), folder / "encoder")
    before = files_in(folder)
    flags = dict(out=folder, overwrite=True, data=corpus)
    fails(call("train_classifier", *SIZE, encoder=inner, **flags), "holds what --encoder")
    fails(call("train_lm", *TINY, **flags), f"holds {inner / 'best.pt'}, which no run wrote")
    assert files_in(folder) == before


def test_overwrite_removes_links_and_keeps_what_they_point_to(copied, corpus, tmp_path):
    folder = copied("train_lm")
    shutil.move(folder / "best.pt", tmp_path / "best.pt")
    (folder / "best.pt").symlink_to(tmp_path / "best.pt")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "map-1.png").write_text("an older figure")
    (folder / "maps").symlink_to(tmp_path / "kept")
    before = files_in(tmp_path / "kept") | {"best": (tmp_path / "best.pt").read_bytes()}
    succeed(train(corpus, folder, overwrite=True))
    assert not (folder / "maps").exists() and not (folder / "best.pt").is_symlink()
    after = files_in(tmp_path / "kept") | {"best": (tmp_path / "best.pt").read_bytes()}
    assert after == before
    (folder / "notes").symlink_to(tmp_path / "kept")
    fails(train(corpus, folder, overwrite=True), "notes, which no run wrote")


def test_a_folder_of_other_files_is_never_emptied(corpus, tmp_path):
    (tmp_path / "thesis.doc").write_text("two years of work")
    fails(train(corpus, tmp_path, overwrite=True), "is not empty and no run")
    assert (tmp_path / "thesis.doc").exists()


def test_two_processes_never_train_in_one_folder(copied, corpus):
    folder = copied("train_lm")
    with filelock.FileLock(folder / ".lock"):
        fails(train(corpus, folder, overwrite=True), "another process is training there")


def test_a_run_is_not_replaced_by_the_one_that_starts_from_it(copied, corpus):
    folder = copied("train_lm")
    again = train(corpus, folder, overwrite=True, init_from=folder)
    fails(again, f"is or holds what --init-from {folder} reads")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_it_trains_with_a_note(number, corpus, tmp_path, monkeypatch):
    def refuse(lock, *args, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    done = succeed(train(corpus, tmp_path / "run"))
    assert done.err.count("file system without locks; train there with one process") == 1


@pytest.mark.slow
def test_a_write_that_fails_inside_torch_is_one_message(corpus, tmp_path):
    """Of a folder whose files may have 10 kB, as on a full disk: torch hides the reason."""
    command = [
        sys.executable,
        ROOT / "train_lm.py",
        "--data",
        corpus,
        *TINY,
        "--out",
        tmp_path / "x",
    ]
    words = shlex.join(map(str, command))
    limited = ["bash", "-c", f"ulimit -f 10; exec {words}"]
    done = subprocess.run(limited, text=True, capture_output=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "the run folder: File too large; check" in done.stderr


@pytest.mark.parametrize("how", ["finished", "stopped", "diverged", "own mistake"])
def test_every_exit_releases_lock_and_signals(how, corpus, tmp_path, monkeypatch):
    """IPython's %run keeps the process, and through its history also the Run."""
    runs = []
    begin, progress = Run.__init__, Run.progress

    def kept(run, *args, **options):
        runs.append(run)
        begin(run, *args, **options)

    def end(run, *args):
        progress(run, *args)
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGINT)
        if how == "own mistake":
            raise ValueError("my own mistake")

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        patch.setattr(Run, "__init__", kept)
        patch.setattr(Run, "progress", end)
        flags = dict(lr=1e30, clip=0) if how == "diverged" else {}
        with contextlib.suppress(ValueError):
            done = train(corpus, tmp_path / "run", **flags)
            assert done.code == {"finished": 0, "stopped": 130, "diverged": 2}[how]
    assert len(runs) == 1 and not runs[0].file_lock.is_locked
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    if how in ("finished", "stopped"):
        succeed(call("train_lm", "--resume", out=tmp_path / "run"))


def test_a_long_name_of_data_gives_a_short_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "语" * 83  # three bytes each
    lines = [f"line {n} of a text\n" for n in range(30)]
    (tmp_path / f"{name}.txt").write_text("".join(lines))
    succeed(call("train_lm", "--data", tmp_path / f"{name}.txt", *TINY))
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name.startswith("lm-语语语") and len(folder.name.encode()) <= 200
    names = [data.files.short_name(f"{name}{end}") for end in "ab"]
    assert names[0] != names[1] and data.files.short_name("lm-toy-0") == "lm-toy-0"


# ---------------------------------------------------------------------------- what resume refuses


def test_resume_keeps_the_flags_and_refuses_others(copied, tmp_path):
    folder = copied("train_lm")
    fails(call("train_lm", "--resume", n_layer=2, out=folder), "--n-layer 1, not 2")
    fails(call("train_lm", "--resume"), "--out RUN")
    fails(call("train_lm", "--resume", out=tmp_path), "config.json")
    other = call("train_mlm", "--resume", out=folder)
    fails(other, "a run of train_lm, not train_mlm")
    succeed(call("train_lm", "--resume", eval_every=3, threads=1, out=folder))


def test_resume_refuses_changed_data(tmp_path):
    lines = [f"line {i} of a text\n" for i in range(30)]
    (tmp_path / "own.txt").write_text("".join(lines))
    flags = dict(data=tmp_path / "own.txt", out=tmp_path / "run")
    succeed(call("train_lm", *TINY, **flags))
    (tmp_path / "own.txt").write_text("".join(lines[1:] + lines[:1]))
    fails(call("train_lm", "--resume", out=flags["out"]), "has changed since")


def test_a_run_of_other_code_is_said_to_be_so(copied):
    folder = copied("train_lm")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"code": "x", "revision": "abc"}))
    assert "made at abc; the code differs" in succeed(call("train_lm", "--resume", out=folder)).out
    model = config["model"] | {"n_embd": 32}
    (folder / "config.json").write_text(json.dumps(config | {"model": model, "code": "x"}))
    with pytest.raises(
        data.files.UserError, match="code differs.*: its weights do not fit"
    ) as caught:
        read_run(folder)
    revision = config["revision"].rstrip("+")  # empty outside a checkout
    assert ("git worktree add ../old" in str(caught.value)) == bool(revision)


# ---------------------------------------------------------------------------- where it runs


@pytest.mark.slow
def test_home_terminals_and_notebooks(corpus, tmp_path):
    """~ is the home folder; an ASCII terminal and a notebook's backend are no obstacles."""
    env = {
        "HOME": str(tmp_path),
        "PYTHONIOENCODING": "ascii",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    process = start("train_lm", "--data", corpus, *TINY, "--out=~/run", env=env)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    assert (tmp_path / "run" / "curve.png").stat().st_size > 5000
    for words in (["--help"], ["--pos", "é"]):
        process = start("train_lm", *words, env=env)
        printed, _ = process.communicate(timeout=60)
        assert "Traceback" not in printed and "--pos" in printed


HIDE = """
import importlib.machinery, importlib.metadata
find = importlib.machinery.PathFinder.find_spec
def find_others(name, *args):
    return None if name.startswith("matplotlib_inline") else find(name, *args)
importlib.machinery.PathFinder.find_spec = staticmethod(find_others)
importlib.metadata.entry_points = lambda **kind: ()
"""  # Python and matplotlib do not find matplotlib_inline


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train_lm", "attention_maps"])
def test_a_backend_of_another_environment_is_ignored(script, tmp_path):
    """A notebook's ! calls another Python, with the notebook's MPLBACKEND."""
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    env = {"PYTHONPATH": str(tmp_path), "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    process = start(script, "--help", env=env)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["nonsense", " ", "QtAgg", "module://nonsense", "svg"])
def test_figures_are_drawn_whatever_the_backend(backend, tmp_path):
    """A backend that matplotlib knows stays, for a user's own use of pyplot."""
    code = """
import os, sys, lab
from lab.figures import new_figure, save
figure, axis = new_figure()
for ending in (".png", ".pdf"):
    save(figure, sys.argv[1] + ending)
print(os.environ.get("MPLBACKEND"))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "figure")]
    env = os.environ | {"MPLBACKEND": backend}
    env.pop("DISPLAY", None)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figure.png").stat().st_size > 1000
    assert (tmp_path / "figure.pdf").exists()
    is_known = backend not in ("nonsense", " ")
    assert done.stdout.strip() == (backend if is_known else "None")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-"])
def test_closed_streams_are_no_obstacle(closed, corpus, tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, ROOT / "train_lm.py", "--data", corpus, *TINY, "--out", folder]
    line = f"exec {shlex.join(map(str, command))} {closed}"
    done = subprocess.run(["bash", "-c", line], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "curve.png").exists()
    if closed == ">&-":
        assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", ""])
def test_the_message_of_a_signal_goes_nowhere_else(closed, corpus, tmp_path):
    """Without standard error, the next file that is opened may get its number."""
    folder = tmp_path / "run"
    command = [sys.executable, ROOT / "train_lm.py", "--data", corpus, *TINY, "--steps", 10**6]
    line = f"exec {shlex.join(map(str, [*command, '--out', folder]))} {closed}"
    pipe = subprocess.PIPE
    process = subprocess.Popen(["bash", "-c", line], text=True, stdout=pipe, stderr=pipe)
    while not (folder / "checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert ("stopping after this step" in errors) == (not closed)
    assert "stopping" not in printed
    assert not any(b"stopping" in content for content in files_in(folder).values())


def test_missing_packages_are_named_without_a_traceback(tmp_path):
    empty = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-E", ROOT / "train_lm.py"],
        env=empty,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "torch" in done.stderr and "pip install" in done.stderr


def test_an_error_in_edited_code_keeps_its_traceback(corpus, tmp_path, monkeypatch):
    def broken(self, idx, *args, **more):
        raise ValueError("my own mistake")

    monkeypatch.setattr("model.Decoder.forward", broken)
    with pytest.raises(ValueError, match="my own mistake"):
        train(corpus, tmp_path / "run")


def test_a_flag_that_the_code_has_no_longer_is_not_dropped_on_resume(corpus, tmp_path):
    folder = tmp_path / "run"
    succeed(train(corpus, folder))
    config = read_json(folder / "config.json")
    config["flags"]["dilated"] = 2  # an option of an earlier revision
    write_json(folder / "config.json", config)
    resumed = call("train_lm", "--resume", out=folder)
    fails(resumed, "--dilated 2, which this code does not have")


def test_an_error_in_an_edited_encoding_keeps_its_traceback(corpus, tmp_path, monkeypatch):
    def broken(self, config, causal):
        self.n_head, self.n_embd, self.D = config.n_head, config.n_embd  # one value is missing

    monkeypatch.setattr(model.Learned, "__init__", broken)
    with pytest.raises(ValueError, match="not enough values to unpack"):
        train(corpus, tmp_path / "run")
