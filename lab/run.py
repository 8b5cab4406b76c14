"""A run being trained: its folder, and what surrounds the training loop.

A run is a folder: config.json, tokenizer.json, sentences.npy (hashes of all texts that made it),
metrics.jsonl, checkpoint.pt (to resume), best.pt (to use), result.json and figures, and with --keep
step-N.pt. `Run` writes one, `lab.load` opens it.
"""

import contextlib
import dataclasses
import errno
import json
import math
import os
import platform
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import filelock
import numpy as np
import torch
from tokenizers import Tokenizer
from tqdm import tqdm

import lab.dist as dist
from data import name_of
from data.corpus import Corpus
from data.files import (
    UserError,
    printable,
    read_json,
    short_name,
    whole_file,
    write_json,
    write_text,
)
from data.leaks import hashes, read_hashes, write_hashes
from lab.flags import AT_END, MAY_CHANGE, require, spelled
from lab.machine import code_hash, command_of, git_revision, module_of
from nets.build import name_replacements

# Flags that name a folder with hashes of texts, and a file by which the folder is known
SOURCES = {
    "data": "meta.json",  # of data.prepare
    "init_from": "best.pt",  # of a run
    "encoder": "best.pt",
    "init": "sentences.npy",  # of beyond.export
}
INPUTS = (*SOURCES, "vocab_from")  # flags that name a file or folder to read

# The only files that a new run deletes in its folder, by subfolder: those of a run, of sample.py,
# of attention_maps.py and of studies.probe. A subfolder that is a link is deleted like a file
WRITTEN = {
    ".": (
        "config.json",
        "tokenizer.json",
        "sentences.npy",
        "metrics.jsonl",
        "checkpoint.pt",
        "best.pt",
        "step-[0-9]*.pt",
        "result.json",
        "curve.png",
        "confusion.png",
        "scatter.png",
        "predictions.tsv",
        "answers.tsv",
        "maps",
        "probe",
    ),
    "maps": ("map-[0-9]*", "attention-[0-9]*.html", "positions-*"),
    "probe": ("median.*", "order.*", "probe.png", "result.json"),
}
# Errors of file systems without locks, such as some network drives
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
LOOK_EVERY = 100  # steps between checks of the losses on a GPU, since each check waits for it


@dataclass
class RunData:
    """What a run is trained on, as far as its folder records it."""

    tokenizer: Tokenizer
    hash: str  # of the data; --resume needs the same
    corpora: dict[str, Corpus]  # flag -> the Corpus that it names, for the hashes of all texts
    classes: list[str] | None = None  # of a classifier


class Run:
    """A run folder being written.

    script: path of the training script. kind: what `lab.inside` can do with the run. build: further
    arguments of `build_model`, to load the model. name: start of the folder's name, default: the
    kind. Raises UserError if something would be lost, if --resume finds another run than the flags
    describe, and if the run starts from what was made with sentences that --split removes.
    """

    def __init__(self, flags, *, script, kind, config, build, data, device, name=""):
        self.flags = flags  # those of the script
        self.data = data  # RunData
        self.device = device  # where the model is
        self.script = module_of(script)  # "train_lm"
        self.folder = Path(flags.out or self.default_folder(name or kind)).expanduser()
        self.file_lock = None  # against other processes in the folder
        self.makes_folder = False  # whether there was none before this run
        self.has_begun = flags.resume  # whether the folder has the first files of this run
        self.old_files = []  # of an earlier run, which this one replaces
        self.sources = {}  # see `hash_sources`
        self.handlers = {}  # signal: what handled it before this run
        self.description = self.describe(script, kind, config, build)  # config.json
        self.started = time.perf_counter()  # seconds
        self.seconds_before = [0.0, 0.0]  # wall and CPU seconds before a resume
        self.tokens = 0  # targets so far, of one member
        self.lines = []  # of metrics.jsonl
        self.best = None  # the line of the best evaluation, whose weights are in best.pt
        self.recent_losses = []  # of the steps since the last evaluation
        self.unchecked_losses = []  # [(step, loss)] that may be NaN
        self.stop_signal = 0  # the signal that asked to stop
        self.bar = None  # the progress bar
        AT_END.callback(self.close)
        dist.from_rank_0(self.open)
        for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C, and a scheduler that ends a job
            self.handlers[number] = signal.signal(number, self.ask_to_stop)

    # ------------------------------------------------------------------------------ the folder

    def default_folder(self, name):
        """Return the folder of a run without --out: out/lm-speeches-alibi-0."""
        flags = self.flags
        positions = flags.pos
        if getattr(flags, "body", "transformer") != "transformer":
            positions = flags.body
        parts = [name, name_of(flags.data), positions, str(flags.seed)]
        split = getattr(flags, "split", "full")
        if split != "full":
            parts.append(split.replace("/", "-of-"))
        return f"out/{short_name('-'.join(parts))}"

    def describe(self, script, kind, config, build):
        """Return the content of config.json."""
        description = {
            "kind": kind,
            "script": self.script,
            "command": f"{command_of(self.script)} {shlex.join(sys.argv[1:])}".strip(),
            "flags": dataclasses.asdict(self.flags),
            "model": dataclasses.asdict(config),
            "build": build,
            "seed": self.flags.seed,
            "device": str(self.device),
            "revision": git_revision() or "an unknown revision",
            "code": code_hash(script),
            "data_hash": self.data.hash,
            "torch": torch.__version__,
            "platform": platform.platform(),
            "date": time.strftime("%Y-%m-%d"),
        }
        if self.data.classes is not None:
            description["classes"] = self.data.classes
        return description

    def open(self):
        """Make the folder, lock it and check that this run may write there. See `begin`."""
        self.makes_folder = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock()
        if self.flags.resume:
            self.check_resume()
            return
        self.check_inputs()
        self.old_files = self.find_replaceable()
        self.sources = self.hash_sources()
        self.check_leaks(self.sources)

    def begin(self):
        """Write the first files, in place of those of an earlier run, unless they are there. What
        else this run writes calls this first, so that a start which fails before its first
        evaluation, as for an option that the model refuses, leaves the folder as it was."""
        if self.has_begun:
            return
        self.has_begun = True
        self.delete(self.old_files)
        write_text(self.folder / "tokenizer.json", self.data.tokenizer.to_str(pretty=True))
        write_hashes(self.folder, self.sources.values())
        write_json(self.folder / "config.json", self.description)

    def lock(self):
        """Keep other processes from training in the folder until the script ends."""
        self.file_lock = filelock.FileLock(self.folder / ".lock")
        try:
            self.file_lock.acquire(timeout=0)
        except filelock.Timeout:
            problem = f"--out {self.folder}: another process is training there"
            raise UserError(problem) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            problem = f"{self.folder} is on a file system without locks"
            self.say(f"note: {problem}; train there with one process at a time", file=sys.stderr)

    def close(self):
        """Release the lock, the signals and the progress bar: a notebook's process lives on. Remove
        a folder in which nothing was written."""
        self.close_bar()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        if self.file_lock:
            self.file_lock.release()
        if self.makes_folder and not self.has_begun:
            with contextlib.suppress(OSError):  # there is no folder, or somebody wrote into it
                (self.folder / ".lock").unlink(missing_ok=True)
                self.folder.rmdir()

    def check_inputs(self):
        """Raise UserError if a flag reads the folder, or something in it."""
        for flag in INPUTS:
            value = getattr(self.flags, flag, "")
            if not value:
                continue
            path = Path(value).expanduser()
            as_typed = Path(os.path.abspath(path))  # in the folder it may be a link to elsewhere
            for place in (path.resolve(), as_typed):
                is_inside = self.folder.resolve() in (place, *place.parents)
                problem = f"--out {self.folder}: is or holds what {spelled(flag)} {value} reads"
                require(not (is_inside and path.exists()), f"{problem}; choose another folder")

    def find_replaceable(self):
        """Return the files and links of an earlier run in the folder, which this one replaces: with
        --overwrite, or if it ended before its first checkpoint. Raises UserError if the folder
        holds anything else, or a run that may not be deleted."""
        names = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        if not names:
            return []
        config = self.folder / "config.json"
        is_run = config.exists() and "kind" in read_json(config)
        require(is_run, f"--out {self.folder}: is not empty and no run; choose another")
        is_worth_keeping = "checkpoint.pt" in names or "result.json" in names
        remedy = "continue it with --resume, replace it with --overwrite, or choose another folder"
        problem = f"--out {self.folder}: already holds a run; {remedy}"
        may_delete = self.flags.overwrite or not is_worth_keeping
        require(may_delete, problem)
        files = find_files(self.folder)
        for path in files:
            is_ours = is_written(path.relative_to(self.folder))
            problem = f"--out {self.folder}: holds {path}, which no run wrote"
            require(is_ours, f"{problem}; move it, or choose another folder")
        return files

    def hash_sources(self):
        """Return {flag: hashes of the texts that its value was made with}."""
        sources = {}
        for flag, corpus in self.data.corpora.items():
            sources[flag] = hashes(corpus.texts())
        for flag, file in SOURCES.items():
            value = getattr(self.flags, flag, "")
            if not value or flag in sources:
                continue
            folder = Path(value).expanduser()
            if (folder / file).exists():  # else a name on the hub, or data without running text
                sources[flag] = read_hashes(folder)
        return sources

    def check_leaks(self, sources):
        """Raise UserError if a source was made with sentences that --split removes."""
        removed = set()
        for corpus in self.data.corpora.values():
            removed |= corpus.removed
        removed = sorted(removed)
        removed_hashes = hashes(removed)
        for flag, source_hashes in sources.items():
            is_leak = np.isin(removed_hashes, source_hashes)  # (len(removed),)
            leaks = [text for text, leaked in zip(removed, is_leak) if leaked]
            if leaks:
                example = f"{max(leaks, key=len)!r:.60}"
                raise UserError(
                    f"{spelled(flag)} {getattr(self.flags, flag)}: was made with {len(leaks):,} of "
                    f"the sentences that --split removes, like {example}; make it with the same "
                    "--split, or without them"
                )

    def delete(self, files):
        """Delete files and links, then the subfolders that this leaves empty."""
        for path in files:
            path.unlink()
        for name in WRITTEN:
            if name != ".":
                with contextlib.suppress(OSError):  # it does not exist, or holds hidden files
                    (self.folder / name).rmdir()

    # ------------------------------------------------------------------------------ resuming

    def check_resume(self):
        """Raise UserError unless the folder has a checkpoint of a run with these flags and data."""
        saved = read_json(self.folder / "config.json")
        has_checkpoint = (self.folder / "checkpoint.pt").exists()
        require(has_checkpoint, f"--resume: {self.folder} holds no checkpoint; start it anew")
        changes = []
        for name in saved["flags"].keys() - self.description["flags"].keys():
            changes.append(f"{spelled(name)} {saved['flags'][name]}, which this code does not have")
        for name, value in self.description["flags"].items():
            saved_value = saved["flags"].get(name, value)
            if name not in MAY_CHANGE and saved_value != value:
                changes.append(f"{spelled(name)} {saved_value}, not {value}")
        problem = f"--resume: {self.folder} was started with {'; '.join(changes)}"
        remedy = "leave these out, or train from its weights: --init-from"
        require(not changes, f"{problem}; {remedy}")
        same_data = saved["data_hash"] == self.data.hash
        problem = f"--resume: --data {self.flags.data} has changed since {self.folder} was started"
        require(same_data, f"{problem}; restore it, or start anew")
        if saved["code"] != self.description["code"]:
            self.say(f"note: {self.folder} was made at {saved['revision']}; the code differs")

    def resume(self, model, optimizer):
        """Load checkpoint.pt. Return the step to continue with."""
        path = self.folder / "checkpoint.pt"
        state = dist.from_rank_0(partial(read_weights, path))
        load_weights(model, state["model"], path)
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)
        self.seconds_before = state["seconds"]
        self.tokens = state["tokens"]
        self.best = state["best"]
        self.recent_losses = [torch.tensor(loss, device=self.device) for loss in state["losses"]]
        self.lines = state["lines"]
        if dist.rank() == 0:  # later lines will be written again
            lines = [json.dumps(line) + "\n" for line in self.lines]
            write_text(self.folder / "metrics.jsonl", "".join(lines))
        self.say(f"resuming from step {state['step']}")
        return state["step"]

    # ------------------------------------------------------------------------------ evaluations

    def log(self, step, numbers, words):
        """Append the numbers of an evaluation to metrics.jsonl, and print it in words. Does nothing
        at the step of a checkpoint that --resume has loaded: its line is the last one already."""
        already_logged = bool(self.lines) and self.lines[-1]["step"] >= step
        if already_logged:
            return
        self.check_losses()
        for name, value in numbers.items():
            require(math.isfinite(value), self.diverged(f"{name} is {value} at step {step}"))
        line = {"step": step, "tokens": self.tokens, **numbers}  # without times: can be repeated
        if self.recent_losses:
            line["loss/train"] = torch.stack(self.recent_losses).mean().item()
        self.recent_losses = []
        self.lines.append(line)
        if dist.rank() == 0:
            self.begin()
            with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        self.say(words)

    def save_best(self, model, monitor=""):
        """Write best.pt if the last line has the best number `monitor` so far; with "", always."""
        line = self.lines[-1]
        if self.best is not None and monitor:
            value, best_value = line[monitor], self.best[monitor]
            if monitor.startswith(("accuracy", "pearson")):
                is_better = value > best_value
            else:  # a loss or a perplexity
                is_better = value < best_value
            if not is_better:
                return
        self.best = line
        self.save_weights("best.pt", model, **line)

    def logged(self, names):
        """Return {label: (steps, values)} of the logged numbers {label: name}, for `curves`."""
        curves = {}
        for label, name in names.items():
            lines = [line for line in self.lines if name in line]
            if lines:
                steps = [line["step"] for line in lines]
                values = [line[name] for line in lines]
                curves[label] = (steps, values)
        return curves

    # ------------------------------------------------------------------------------ steps

    def progress(self, step, total, loss, tokens):
        """Record a finished step: check its loss, and show the progress on a terminal. loss: this
        process's share, a scalar tensor, which a GPU may still be computing."""
        loss = dist.all_sum(loss.detach())
        self.recent_losses.append(loss)
        self.unchecked_losses.append((step, loss))
        self.tokens += tokens
        on_cpu = loss.device.type == "cpu"
        if on_cpu or len(self.unchecked_losses) == LOOK_EVERY:
            self.check_losses()
        if self.bar is None:
            hide = True if dist.rank() > 0 else None  # None: shown on a terminal alone
            self.bar = tqdm(total=total, initial=step, disable=hide, leave=False)
        if on_cpu or step % LOOK_EVERY == 0:
            self.bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        self.bar.update()

    def close_bar(self):
        """Remove the progress bar; the next step begins another one."""
        if self.bar is not None:
            self.bar.close()
        self.bar = None

    def check_losses(self):
        """Raise UserError naming the first loss that is NaN or infinite since the last check."""
        if not self.unchecked_losses:
            return
        steps = [step for step, _ in self.unchecked_losses]
        losses = torch.stack([loss for _, loss in self.unchecked_losses]).tolist()
        self.unchecked_losses = []
        for step, loss in zip(steps, losses):
            require(math.isfinite(loss), self.diverged(f"the loss is {loss} at step {step + 1}"))

    def diverged(self, problem):
        """Return the message that training diverged."""
        remedy = "earlier checkpoints are kept; use a smaller --lr"
        return f"--lr {self.flags.lr:g}: training diverged, {problem}; {remedy}"

    # ------------------------------------------------------------------------------ stopping

    def ask_to_stop(self, number, frame):
        """Note a signal, on which `exit_if_stopped` acts. The second one ends the script."""
        if self.stop_signal:
            raise KeyboardInterrupt
        self.stop_signal = number
        with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr is None or closed
            # print fails if the signal came during a print
            os.write(sys.__stderr__.fileno(), b"stopping after this step\n")

    def exit_if_stopped(self, model, optimizer, step):
        """Save a checkpoint and exit if a signal arrived in any process."""
        if not dist.in_any(self.stop_signal != 0):
            return
        # The others wait until the file is whole: torchrun ends all processes once one exits
        dist.from_rank_0(partial(self.save, model, optimizer, step))
        folder = shlex.quote(str(self.folder))
        remedy = f"to resume: {command_of(self.script)} --resume --out {folder}"
        self.say(f"stopped; step {step} is saved; {remedy}", file=sys.stderr)
        number = self.stop_signal or signal.SIGTERM  # 0 if the signal came to another process
        raise SystemExit(128 + number)

    def save(self, model, optimizer, step):
        """Write all that resuming needs to checkpoint.pt."""
        self.check_losses()
        losses = []
        if self.recent_losses:
            losses = torch.stack(self.recent_losses).tolist()
        state = {
            "step": step,
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "seconds": self.seconds(),
            "tokens": self.tokens,
            "best": self.best,
            "lines": self.lines,
            "losses": losses,
        }
        if self.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        self.save_weights("checkpoint.pt", model, **state)

    def save_weights(self, name, model, **state):
        """Write a file of weights. Raises UserError before it is written if some are not finite."""
        weights = model.state_dict()
        finite = torch.stack([weight.isfinite().all() for weight in weights.values()])
        all_finite = finite.all().item()  # waits for a GPU once, not once per weight
        require(all_finite, self.diverged("some weights are NaN or infinite"))
        if dist.rank() == 0:
            self.begin()
            with whole_file(self.folder / name) as file:
                try:
                    torch.save({"model": weights, **state}, file)
                except RuntimeError as error:
                    if isinstance(error.__context__, OSError):  # the reason, such as a full disk
                        raise error.__context__ from None
                    raise

    # ------------------------------------------------------------------------------ the end

    def stop_catching_signals(self):
        """The loop is over: from here on signals end the script at once, as does one that came
        during the last step. The checkpoint is saved, so --resume continues with the results."""
        for number in self.handlers:
            signal.signal(number, signal.default_int_handler)
        if self.stop_signal:
            raise KeyboardInterrupt

    def load_best(self, model):
        """Load best.pt into the model, and return the line of its evaluation."""
        self.stop_catching_signals()
        best = dist.from_rank_0(partial(read_weights, self.folder / "best.pt"))
        model.load_state_dict(best.pop("model"))
        return best

    def finish(self, result, model):
        """Write result.json: the final numbers and what they cost. The processes part: afterwards
        rank 0 does not wait for the others."""
        dist.wait_for_all()
        dist.end()
        self.close_bar()
        if dist.rank() > 0:
            return
        wall, cpu = self.seconds()
        cost = {
            "vocab_size": model.body.config.vocab_size,
            "parameters": sum(p.numel() for p in model.parameters()),
            "seconds": round(wall, 2),
            "cpu_seconds": round(cpu, 2),
            "tokens_per_second": round(self.tokens / wall, 1),
            "processes": dist.size(),
            "command": read_json(self.folder / "config.json")["command"],
        }
        if self.device.type == "cuda":
            cost["peak_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
        write_json(self.folder / "result.json", result | cost)

    def seconds(self):
        """Return the wall and CPU seconds of this run, with those before a resume."""
        wall_before, cpu_before = self.seconds_before
        wall = wall_before + time.perf_counter() - self.started
        return [wall, cpu_before + time.process_time()]

    # ------------------------------------------------------------------------------ what it prints

    def say(self, text, file=None):
        """Print a line, in rank 0 alone, above the progress bar."""
        if dist.rank() == 0:
            with tqdm.external_write_mode():
                print(printable(text), file=file or sys.stdout, flush=True)

    def say_start(self, words, model):
        """Print the data in the script's words, and the size and device of the model."""
        config = model.body.config
        total = sum(p.numel() for p in model.parameters())
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        sizes = f"{config.vocab_size:,} entries in the vocabulary; {total:,} parameters"
        if trained < total:
            sizes += f", {trained:,} of them trained"
        line = f"{words}, {sizes}, pos={config.pos}, on {self.device}"
        classes = name_replacements(model)
        if classes:  # in place of those of model.py
            line += f", with {', '.join(classes)} (nets/)"
        self.say(line)

    def say_unknown(self, name, share, source=None):
        """Print a note if the vocabulary, that of `source` if there is one, lacks over a tenth of
        the words of a set."""
        if share <= 0.1:
            return
        vocabulary = "the vocabulary; try --tokenizer bpe"
        if source:
            vocabulary = f"{source.folder}; pretrain it on text of the same kind"
        self.say(f"  note: {share:.0%} of the {name} words are unknown to {vocabulary}")

    def say_end(self, words):
        """Print the result in words, the time, and the folder."""
        wall, _ = self.seconds()
        self.say(f"{words}; {wall:.0f} s, {self.folder}")


def find_files(folder):
    """Return the files and links below a folder, without hidden ones: the lock, and what systems
    and editors leave there."""
    paths = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_hidden = any(part.startswith(".") for part in parts)
        is_folder = path.is_dir() and not path.is_symlink()
        if not (is_hidden or is_folder):
            paths.append(path)
    return paths


def is_written(path):
    """Return whether a run's files include this path in its folder, or the part of one that was
    not completed."""
    patterns = WRITTEN.get(path.parent.as_posix(), ())
    name = path.name.removesuffix(".partial")
    return any(fnmatch(name, pattern) for pattern in patterns)


def read_weights(path):
    """Return the content of a file of weights. Raises UserError naming it."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises almost anything
        reason = str(error).splitlines()[0][:80]
        raise UserError(f"{path}: cannot be read ({reason}); train the run again") from None


def load_weights(model, weights, path):
    """Load weights into a model. Raises UserError naming the file and the first that do not fit."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split()[6:])[:200]  # without "Error(s) in loading state_dict"
        raise UserError(f"{path}: its weights do not fit the model ({reason})") from None
