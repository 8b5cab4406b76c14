"""What every script shares, under one name: the learning rate, the optimiser and the run folder being written;
by import also the command line (flags.py), the device (machine.py) and finished runs (opened.py). The training loops
are in the scripts.

A run is a folder: config.json, tokenizer.json, metrics.jsonl, checkpoint.pt (to resume), best.pt (to use),
result.json, and figures. `Run` writes one; `load_run` (opened.py) opens one.
"""

import dataclasses
import functools
import json
import math
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from data import NAMES, files
from data.files import printable, write_json, write_text
from data.tokenizer import load_tokenizer
from lab import processes
from lab.checkpoint import Damaged, load_optimizer, load_weights, read_checkpoint, write_checkpoint
from lab.errors import UserError, require
from lab.load import can_resume, read_config, read_json, read_metrics, resume_command
from lab.machine import clock, git_revision, peak_memory, versions
from lab.parameters import count_parameters
from lab.signals import Interrupted, Losses, Signals

# ---------------------------------------------------------------------------- the run folder


LOOKED_INTO = (
    "maps",
    "probe",
    "order",
)  # folders that other scripts put into a run's; they go with it
FREE = (
    "resume",
    "overwrite",
    "out",
    "device",
    "threads",
    "accumulate",
    "timeout",
)  # flags that may change when a run goes on


def first_only(method):
    """A method of Run that prints or writes: of several processes only the first does."""

    @functools.wraps(method)
    def alone(self, *args, **more):
        if processes.first():
            method(self, *args, **more)

    return alone


class Run:
    """A run folder being written.

    UserError when --out already holds something and neither --resume nor --overwrite is given, or when
    --resume finds a run of other flags.
    """

    def __init__(self, kind, flags, config, tokenizer, device, name="", **more):
        """kind: lm | mlm | classifier | seq2seq | thread; name: how the folder's name begins, if not with the kind.
        `more` goes into config.json."""
        self.flags, self.kind, self.device = flags, kind, device
        data = flags.data if flags.data in NAMES else Path(flags.data).resolve().stem
        split = getattr(flags, "split", "full").replace("/", "-of-")
        self.folder = Path(
            flags.out
            or f"out/{name or kind}-{data}-{config.pos}-{flags.seed}"
            + f"-{split}" * (split != "full")
        )
        self.started, self.resumed, self.last_line = time.perf_counter(), [0.0, 0.0], 0.0
        self.first_step, self.unit = 0, "epoch" if kind == "classifier" else "step"
        self.saved, self.damaged = (
            None,
            False,
        )  # number of the last checkpoint, and whether the file under its name is no good
        self.beside = ""  # what else is to be said of it
        self.losses, self.signals = Losses(), Signals(self.how_to_go_on)
        described = {
            "kind": kind,
            "flags": dataclasses.asdict(flags),
            "model": dataclasses.asdict(config),
            **more,
        }
        processes.from_first(lambda: self.begin(described, tokenizer))
        if processes.size() > 1:
            same = processes.from_first(tokenizer.to_str) == tokenizer.to_str()
            require(
                (
                    same,
                    f"--data {flags.data}: process {processes.rank()} reads another text than the first; "
                    "give all machines the same files",
                )
            )

    def begin(self, described, tokenizer):
        """Make the folder or, with --resume, look whether it is this run's."""
        flags = self.flags
        self.open_folder(described)
        if flags.resume:
            path = self.folder / "tokenizer.json"
            if (
                load_tokenizer(path).to_str() != tokenizer.to_str()
            ):  # the weights would meet other words than they learned
                raise UserError(
                    f"--resume: --data {flags.data} gives another vocabulary than {path}, so the data has changed; "
                    "restore the data, or start anew with another --out"
                )
        else:
            command = shlex.join([*processes.launcher(), Path(sys.argv[0]).name, *sys.argv[1:]])
            write_json(
                self.folder / "config.json",
                described
                | {
                    "command": command,
                    "seed": flags.seed,
                    "device": str(self.device),
                    "revision": git_revision(),
                    "versions": versions(),
                },
            )
            write_text(self.folder / "tokenizer.json", tokenizer.to_str(pretty=True))

    def open_folder(self, described):
        folder, flags = self.folder, self.flags
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {folder}: is a file; choose another folder")
        if folder.exists():
            self.hold()
        there = list(folder.iterdir()) if folder.exists() else []
        there.sort(
            key=lambda path: path.name == "config.json"
        )  # deleted last: by it, this is a run
        config, log = folder / "config.json", folder / "metrics.jsonl"
        is_run = config.exists() and "kind" in read_json(config)  # others have a config.json too
        # Stopped before its first checkpoint, a run has nothing to lose: a best.pt is that of the first line.
        early = ("config.json", "tokenizer.json", "metrics.jsonl", "best.pt")
        barely_begun = all(path.name in early or path.suffix == ".partial" for path in there) and (
            not log.exists() or log.read_bytes().count(b"\n") < 2
        )
        require(
            (
                not (flags.resume and flags.overwrite),
                "--resume and --overwrite: one continues the run, the other deletes it; give one of them",
            )
        )
        if flags.resume:
            if not can_resume(folder):
                raise UserError(
                    f"--resume: {folder} holds no checkpoint.pt; leave --resume out to start the run"
                )
            now, then = described["flags"], read_config(folder)["flags"]
            changed = [
                f"--{k.replace('_', '-')} {str(then.get(k))[:40] or 'empty'}, not {str(now[k]) or 'empty'}"
                for k in sorted(now)
                if k not in FREE and now[k] != then.get(k)
            ]
            remedy = (
                "leave these out"
                if flags.out
                else f"use the same, or --resume --out {folder} alone"
            )
            remedy += ", or use another --out"
            if hasattr(flags, "init_from"):
                remedy += f"; to train its weights on: --init-from {folder}, with another --out and without --resume"
            require(
                (not changed, f"--resume: {folder} was started with {'; '.join(changed)}; {remedy}")
            )
            for path in there:
                if path.suffix == ".partial":  # what a killed process had begun to write
                    path.unlink()
        elif (
            is_run
            and (flags.overwrite or barely_begun)
            or [path.name for path in there] == ["config.json.partial"]
        ):
            for path in there:
                if path.is_file():
                    path.unlink()
                elif path.name in LOOKED_INTO:
                    shutil.rmtree(path)
        elif there:
            what = (
                "already holds a run; continue it with --resume, replace it with --overwrite, or"
                if is_run
                else "is not empty and is no run;"
            )
            raise UserError(f"--out {folder}: {what} choose another folder")
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self.hold()

    def hold(self):
        """Keep other processes from training in the folder until this script ends."""
        try:
            files.hold(self.folder)
        except BlockingIOError:
            raise UserError(
                f"--out {self.folder}: another process is training there; "
                "wait for its end, or choose another folder"
            ) from None

    def log(self, step, **metrics):
        """Append a line to metrics.jsonl. No times in it: a repeated run gives the same file.
        UserError for a number that is none."""
        self.look_at_losses()
        wrong = [
            name
            for name, value in metrics.items()
            if isinstance(value, float) and not math.isfinite(value)
        ]
        if wrong:
            raise self.diverged(f"at {self.unit} {step} {wrong[0]} is {metrics[wrong[0]]}")
        if not processes.first():
            return
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(
                json.dumps(
                    {
                        "step": step,
                        **{name.replace("__", "/"): value for name, value in metrics.items()},
                    }
                )
                + "\n"
            )
            file.flush()
            os.fsync(file.fileno())  # so that it is never behind a checkpoint

    def look_at_losses(self):
        """UserError when training has diverged."""
        wrong = self.losses.first_wrong()
        if wrong:
            step, lr, loss = wrong
            raise self.diverged(
                f"at step {step}, with a learning rate of {lr:g}, the loss is {loss}"
            )

    def diverged(self, what):
        good = (
            f"the last good checkpoint is that of {self.unit} {self.saved} in {self.folder}"
            if self.saved is not None
            else "no checkpoint was written before"
        )
        return UserError(
            f"--lr {self.flags.lr:g}: training diverged, {what}; {good}; start again with a smaller --lr"
        )

    def interruptible(self, steps):
        """The steps of the training loop, in which SIGINT and SIGTERM wait for `stop_if_asked`; a second one ends the
        script at once."""
        return self.signals.wait_in(steps)

    def is_due(self, step):
        """Whether a step begins with an evaluation: each --eval-every-th does, and the end, but not what is logged already."""
        flags = self.flags
        logged = flags.resume and step == self.first_step
        return (step % flags.eval_every == 0 or step == flags.steps) and not logged

    def stop_if_asked(self, model, optimizer, step, **more):
        """Once a step: if a signal has come, save and end the script. After the last step nothing is left to save, so then
        it need not wait."""
        self.signals.waiting = step != getattr(self.flags, "steps", None)
        if processes.anywhere(self.signals.asked):
            # The others wait until it is written
            processes.from_first(lambda: self.save_checkpoint(model, optimizer, step, **more))
            self.saved, self.beside = (
                step,
                " with the beginning of the next" if more.get("batches_done") else "",
            )
            raise Interrupted(self.signals.asked or signal.SIGTERM, self.how_to_go_on())

    def how_to_go_on(self):
        if self.saved is None:
            return "nothing new was saved, and the same command starts again"
        command = resume_command(sys.argv[0], self.folder, processes.launcher())
        return f"{self.unit} {self.saved}{self.beside} is saved; to go on from there: {command}"

    def progress(self, step, steps, loss, lr, tokens):
        """After every update: end a training that has diverged, and a few times a second show the live line on a terminal;
        `tokens` were processed since the start."""
        if self.losses.add(step, lr, loss):
            self.look_at_losses()
        now = time.perf_counter()
        if (
            not processes.first()
            or not sys.stderr.isatty()
            or now - self.last_line < 0.2
            and step < steps
        ):
            return
        self.last_line = now
        seconds = now - self.started
        left = seconds / max(1, step - self.first_step) * (steps - step)
        print(
            f"\r{step}/{steps}  loss {float(loss):.3f}  lr {lr:.1e}  {tokens / seconds:,.0f} tokens/s  {clock(left)} left ",
            end="\n" if step == steps else "",
            file=sys.stderr,
            flush=True,
        )

    @first_only
    def say(self, text):
        """A plain line on stdout, not mixed up with the live line, whatever the names in it hold."""
        if sys.stderr.isatty():
            print("\r" + " " * 79 + "\r", end="", file=sys.stderr, flush=True)
        print(printable(text), flush=True)

    def save(self, name, previous=None, **state):
        """Write a checkpoint under its name only when it is whole and on disk. UserError, and no file changed, when its
        weights are not finite."""
        if not all(weight.isfinite().all() for weight in state["model"].values()):
            raise self.diverged(
                f"at {self.unit} {state['step']} there are weights that are no finite numbers"
            )
        if processes.first():
            write_checkpoint(self.folder / name, state, previous)

    def save_checkpoint(self, model, optimizer, step, **more):
        """checkpoint.pt: all that exact resumption needs; data order and masks follow from seed and step. The one before
        becomes previous.pt."""
        self.look_at_losses()
        previous = (
            None if self.damaged else self.folder / "previous.pt"
        )  # a damaged file takes no whole one's place
        self.save(
            "checkpoint.pt",
            previous,
            model=model.state_dict(),
            optimizer=optimizer.state_dict(),
            step=step,
            rng=torch.get_rng_state(),
            cuda_rng=torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
            seconds=[self.seconds(), self.cpu_seconds()],
            more=more,
        )
        self.saved, self.damaged = step, False

    def restore(self, model, optimizer):
        """Load the newest whole checkpoint into model and optimizer. Returns (step, more); (0, {}) for a fresh run."""
        if not self.flags.resume:
            return 0, {}
        name, state = processes.from_first(self.newest_checkpoint)
        load_weights(model, state["model"], self.folder / name)
        load_optimizer(optimizer, state["optimizer"], self.folder / name)
        seconds = state["seconds"] if isinstance(state["seconds"], list) else []
        require(
            (
                type(state["step"]) is int
                and state["step"] >= 0
                and isinstance(state["more"], dict)
                and list(map(type, seconds)) == [float, float],
                f"{self.folder / name}: its step, seconds or numbers are not as a run saves them; restore the file",
            )
        )
        try:
            torch.set_rng_state(state["rng"].cpu())
            if self.device.type == "cuda" and state["cuda_rng"]:
                torch.cuda.set_rng_state_all([rng.cpu() for rng in state["cuda_rng"]])
        except (AttributeError, RuntimeError, TypeError):
            raise UserError(
                f"{self.folder / name}: its random state is none; restore the file"
            ) from None
        self.resumed, self.first_step, self.saved = seconds, state["step"], state["step"]
        if processes.first():
            # What is later than the checkpoint will come again
            kept = [line for line in self.metrics() if line["step"] <= state["step"]]
            write_text(
                self.folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept)
            )
            at_the_end = {
                "step": ", the last: nothing is left to train, the results are computed again",
                "epoch": ", the last: what came after it is done again",
            }
            over = state["step"] == getattr(self.flags, f"{self.unit}s")
            self.say(
                f"going on from {self.unit} {state['step']}{at_the_end[self.unit] if over else ''}"
            )
        return state["step"], state["more"]

    def newest_checkpoint(self):
        """Name and content of checkpoint.pt, or of previous.pt with a line that says why: when the other is damaged or, as
        a process that died between two renamings leaves it, missing. UserError when there is nothing to read, or best.pt
        is needed and damaged."""
        damages = []
        for path in (self.folder / "checkpoint.pt", self.folder / "previous.pt"):
            if not path.exists():
                continue
            try:
                state = read_checkpoint(
                    path,
                    self.device,
                    ("model", "optimizer", "step", "rng", "cuda_rng", "seconds", "more"),
                )
            except Damaged as error:
                damages.append(error.what)
                continue
            # Its best.pt comes last; others' may stay the best, so a damage had better be known now
            if self.kind != "classifier":
                read_checkpoint(self.folder / "best.pt", "cpu")
            if path.name == "previous.pt":
                print(
                    f"note: {damages[0] if damages else 'checkpoint.pt is missing'}; going on from {path}, "
                    f"{self.unit} {state['step']}",
                    file=sys.stderr,
                )
            self.damaged = bool(damages)
            return path.name, state
        raise UserError(f"{'; '.join(damages)}; restore one of them or train the run again")

    def metrics(self):
        """All logged lines so far, as dictionaries."""
        return read_metrics(self.folder)

    def seconds(self):
        """Wall time of this run, earlier sittings counted in."""
        return self.resumed[0] + time.perf_counter() - self.started

    def cpu_seconds(self):
        """The same of the first process's CPU time."""
        return self.resumed[1] + time.process_time()

    def finish(self, result, model, tokens):
        """result.json: the final numbers, and what they cost."""
        seconds = self.seconds()
        write_json(
            self.folder / "result.json",
            result
            | {
                "parameters": count_parameters(model),
                "seconds": round(seconds, 2),
                "cpu_seconds": round(self.cpu_seconds(), 2),
                "tokens_per_second": round(tokens / seconds, 1),
                "peak_memory_mb": peak_memory(self.device),
                "processes": processes.size(),
                "command": read_config(self.folder).get("command", ""),
            },
        )


def figures_folder(out):
    """--out of a script that draws, as a path. UserError for a file, and for a run, which its figures would mix with."""
    out = Path(out)
    require(
        (
            not (out / "config.json").exists() and not out.is_file(),
            f"--out {out}: is a {'file' if out.is_file() else 'run'}; choose another folder",
        )
    )
    return out
