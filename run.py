"""What every script shares: its command line (from flags.py), device, seed, learning rate, and the run folder. The training loops are in the scripts.

A run is a folder: config.json, tokenizer.json, metrics.jsonl, checkpoint.pt (to resume), best.pt (to use),
result.json, and figures. `Run` writes one; `load_run` opens one.
"""

import contextlib
import ctypes
import dataclasses
import datetime
import functools
import json
import math
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy
import tokenizers
import torch

import distributed
import model as models
from checkpoint import Damaged, check_weights, load_optimizer, load_weights, read_checkpoint, write_checkpoint
from classifier import Classifier
from data import NAMES, files, shards
from data.files import MEGABYTE, printable
from data.tokenizer import is_word_level, load_tokenizer
from ensemble import Ensemble
from flags import (ContinueFlags, ModelFlags, RunFlags, SpreadFlags, TokenizerFlags, UserError, adopt, flag, main, model_config, parse,  # noqa: F401
                   require, step_checks, stop)  # some only for the scripts, which say runs.require and so on
from stopping import Interrupted, Losses, Signals

METRICS_LIMIT = 256 * MEGABYTE


# ---------------------------------------------------------------------------- where weights and data come from


def roberta_of(flags, head=True):
    """The model and tokenizer of --init as if it were a run; the flags then have its architecture. DataError as of roberta.load_roberta."""
    model, tokenizer = models.load_roberta(flags.init, head)
    adopt(flags, model.body.config, f"--init {flags.init}")
    return LoadedRun(Path(flags.init), "roberta", {"flags": {}}, model, tokenizer)


def source_of(flags, kind):
    """The run of --init-from, whose architecture the flags then have; None without the flag."""
    if not flags.init_from:
        return None
    require((not getattr(flags, "vocab_from", ""), f"--init-from {flags.init_from} brings its vocabulary along; leave --vocab-from out"))
    source = load_run(flags.init_from, (kind,), flag_name="--init-from")
    adopt(flags, source.model.body.config, f"--init-from {flags.init_from}")
    return source


def prepared_of(flags, source):
    """The prepared folder of --data, open; None where --data is a text. The flags then say what prepare.py was told.

    source: the LoadedRun to continue from, or None. UserError when it has another vocabulary, and for flags that ask for what prepare.py has decided.
    """
    if flags.data in NAMES or not shards.is_prepared(flags.data):
        return None
    decided = [field for field in dataclasses.fields(flags) if field.name in ("tokenizer", "vocab_size", "vocab_from", "valid", "split")]
    given = " and ".join(f"--{field.name.replace('_', '-')} {getattr(flags, field.name)}" for field in decided if getattr(flags, field.name) != field.default)
    require((not given, f"{given}: --data {flags.data} is prepared, with its own tokenizer and sets; leave that out, or give it to prepare.py and another --out"))
    prepared = shards.Prepared(flags.data)
    if source and source.tokenizer.to_str() != prepared.tokenizer.to_str():
        raise UserError(f"--data {flags.data}: was prepared with another vocabulary than that of {source.folder}; prepare it with --vocab-from {source.folder}")
    flags.tokenizer, flags.valid = "word" if is_word_level(prepared.tokenizer) else "bpe", prepared.settings["valid"]
    return prepared


# ---------------------------------------------------------------------------- machine


def prepare(flags, n_embd=None):
    """Seed everything, choose threads, and return the torch device. UserError when it is not there."""
    device = flags.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available() or device == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"--device {device}: this machine or this torch build has none; use --device cpu")
    if distributed.size() > 1:
        require((device != "mps", "--device mps: is for one process; use --device cpu"),
                (device != "cuda" or distributed.local_rank() < torch.cuda.device_count(),
                 f"--device cuda: {distributed.local_size()} processes on a machine with {torch.cuda.device_count()} cards; start one for each (--nproc_per_node)"))
        if device == "cuda":
            torch.cuda.set_device(distributed.local_rank())
    require((0 <= getattr(flags, "threads", 0) <= 4096, f"--threads must not be negative, nor above 4096, got {getattr(flags, 'threads', 0)}"))
    threads = getattr(flags, "threads", 0) or (1 if (n_embd or 0) <= 128 else max(1, os.cpu_count() // distributed.local_size()))
    torch.set_num_threads(threads)
    # Far-away tokens get weights too small for normal floats, which processors compute many times slower.
    torch.set_flush_denormal(True)
    torch.manual_seed(getattr(flags, "seed", 0))
    if device == "cpu":
        keep_freed_memory()
    return torch.device(device)


def keep_freed_memory():
    """From now on this process keeps the memory it frees, where the C library is glibc, which otherwise gives tensors of some megabytes
    back to the system in every step, and a small model's step pays with a tenth of its time for getting them again."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # another C library
        return
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    mallopt(-3, 2**25)      # M_MMAP_THRESHOLD, the largest there is


def autocast(flags, device):
    """Context in which the forward pass runs: bfloat16 on CUDA unless --dtype says otherwise."""
    if flags.dtype == "bfloat16" or flags.dtype == "auto" and device.type == "cuda":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def compile_blocks(model, backend="inductor"):
    """Let PyTorch compile each block of the model, in place; the names of its weights stay. All blocks share the work of compiling."""
    for module in model.modules():
        if isinstance(module, models.Block):
            module.compile(backend=backend)


def learning_rate(step, steps, peak, warmup, decay):
    """The schedule: (1) up in a straight line for `warmup` steps, (2) constant, (3) down in a straight line to zero
    at the end, over the last `decay` share of the steps. step counts from 0."""
    if step < warmup:
        return peak * (step + 1) / warmup
    falling = min(steps - warmup, decay * steps)
    if steps - step >= falling:
        return peak
    return peak * (steps - step) / falling


def make_optimizer(model, lr, weight_decay, betas=(0.9, 0.999)):
    """AdamW that decays matrices and spares biases, norms and scalars. Each parameter is in exactly one group."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=weight_decay),
              dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=parameters[0].device.type in ("cpu", "cuda"))


def perplexity(nats, tokens):
    """exp(nats / tokens), at most exp(700), which a float still holds."""
    return math.exp(min(nats / tokens, 700.0)) if tokens else math.nan


# ---------------------------------------------------------------------------- the run folder


LOOKED_INTO = ("maps", "probe", "order")  # folders that other scripts put into a run's; they go with it


def first_only(method):
    """A method of Run that prints or writes: of several processes only the first does."""

    @functools.wraps(method)
    def alone(self, *args, **more):
        if distributed.first():
            method(self, *args, **more)

    return alone


class Run:
    """A run folder being written.

    UserError when --out already holds something and neither --resume nor --overwrite is given, or when
    --resume finds a run of other flags.
    """

    def __init__(self, kind, flags, config, tokenizer, device, name="", **more):
        """kind: lm | mlm | classifier | seq2seq | thread; name: how the folder's name begins, if not with the kind. `more` goes into config.json."""
        self.flags, self.kind, self.device = flags, kind, device
        data = flags.data if flags.data in NAMES else Path(flags.data).resolve().stem
        split = getattr(flags, "split", "full").replace("/", "-of-")
        self.folder = Path(flags.out or f"out/{name or kind}-{data}-{config.pos}-{flags.seed}" + f"-{split}" * (split != "full"))
        self.started, self.resumed_seconds, self.last_line = time.perf_counter(), 0.0, 0.0
        self.first_step, self.unit = 0, "epoch" if kind == "classifier" else "step"
        self.saved, self.damaged = None, False  # number of the last checkpoint, and whether the file under its name is no good
        self.losses, self.signals = Losses(), Signals(self.how_to_go_on)
        described = {"kind": kind, "flags": dataclasses.asdict(flags), "model": dataclasses.asdict(config), **more}
        distributed.from_first(lambda: self.begin(described, tokenizer))
        if distributed.size() > 1:
            same = distributed.from_first(tokenizer.to_str) == tokenizer.to_str()
            require((same, f"--data {flags.data}: process {distributed.rank()} reads another text than the first; give all machines the same files"))

    def begin(self, described, tokenizer):
        """Make the folder or, with --resume, look whether it is this run's."""
        flags = self.flags
        self.open_folder(described)
        if flags.resume:
            path = self.folder / "tokenizer.json"
            if load_tokenizer(path).to_str() != tokenizer.to_str():  # the weights would meet other words than they learned
                raise UserError(f"--resume: --data {flags.data} gives another vocabulary than {path}, so the data has changed; "
                                "restore the data, or start anew with another --out")
        else:
            write_json(self.folder / "config.json", described | {
                "seed": flags.seed, "device": str(self.device), "revision": git_revision(), "versions": versions()})
            write_text(self.folder / "tokenizer.json", tokenizer.to_str(pretty=True))

    def open_folder(self, described):
        folder, flags = self.folder, self.flags
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {folder}: is a file; choose another folder")
        if folder.exists():
            self.hold()
        there = sorted(folder.iterdir(), key=lambda path: path.name == "config.json") if folder.exists() else []  # that last: by it, this is a run
        is_run = (folder / "config.json").exists() and "kind" in read_json(folder / "config.json")  # others have a config.json too
        # Stopped before its first checkpoint, a run has nothing to lose: a best.pt is that of the first line.
        log = folder / "metrics.jsonl"
        barely_begun = all(path.name in ("config.json", "tokenizer.json", "metrics.jsonl", "best.pt") or path.suffix == ".partial" for path in there) and (
            not log.exists() or log.read_bytes().count(b"\n") < 2)
        require((not (flags.resume and flags.overwrite), "--resume and --overwrite: one continues the run, the other deletes it; give one of them"))
        if flags.resume:
            if not can_resume(folder):
                raise UserError(f"--resume: {folder} holds no checkpoint.pt; leave --resume out to start the run")
            before = read_config(folder)
            now, then = ({k: v for k, v in flags.items() if k not in ("resume", "overwrite", "out", "device", "threads", "accumulate", "timeout")}
                         for flags in (described["flags"], before.get("flags", {})))
            changed = [f"--{k.replace('_', '-')} {str(then.get(k))[:40] or 'empty'}, not {str(now[k]) or 'empty'}" for k in sorted(now) if now[k] != then.get(k)]
            if changed:
                raise UserError(f"--resume: {folder} was started with {'; '.join(changed)}; use the same, or another --out")
            for path in there:
                if path.suffix == ".partial":  # what a killed process had begun to write
                    path.unlink()
        elif is_run and (flags.overwrite or barely_begun) or [path.name for path in there] == ["config.json.partial"]:
            for path in there:
                if path.is_file():
                    path.unlink()
                elif path.name in LOOKED_INTO:
                    shutil.rmtree(path)
        elif there:
            what = "already holds a run; continue it with --resume, replace it with --overwrite, or" if is_run else "is not empty and is no run;"
            raise UserError(f"--out {folder}: {what} choose another folder")
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self.hold()

    def hold(self):
        """Keep other processes from training in the folder until this script ends."""
        try:
            files.hold(self.folder)
        except BlockingIOError:
            raise UserError(f"--out {self.folder}: another process is training there; wait for its end, or choose another folder") from None

    def log(self, step, **metrics):
        """Append a line to metrics.jsonl. No times in it: a repeated run gives the same file. UserError for a number that is none."""
        self.look_at_losses()
        wrong = [name for name, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)]
        if wrong:
            raise self.diverged(f"at {self.unit} {step} {wrong[0]} is {metrics[wrong[0]]}")
        if not distributed.first():
            return
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **{name.replace("__", "/"): value for name, value in metrics.items()}}) + "\n")
            file.flush()
            os.fsync(file.fileno())  # so that it is never behind a checkpoint

    def look_at_losses(self):
        """UserError when training has diverged."""
        wrong = self.losses.first_wrong()
        if wrong:
            step, lr, loss = wrong
            raise self.diverged(f"at step {step}, with a learning rate of {lr:g}, the loss is {loss}")

    def diverged(self, what):
        good = f"the last good checkpoint is that of {self.unit} {self.saved} in {self.folder}" if self.saved is not None else "no checkpoint was written before"
        return UserError(f"--lr {self.flags.lr:g}: training diverged, {what}; {good}; start again with a smaller --lr")

    def interruptible(self, steps):
        """The steps of the training loop, in which SIGINT and SIGTERM wait for `stop_if_asked`; a second one ends the script at once."""
        return self.signals.wait_in(steps)

    def stop_if_asked(self, model, optimizer, step, **more):
        """Once a step: if a signal has come, save and end the script. After the last step nothing is left to save, so then it need not wait."""
        self.signals.waiting = step != getattr(self.flags, "steps", None)
        if distributed.anywhere(self.signals.asked):
            distributed.from_first(lambda: self.save_checkpoint(model, optimizer, step, **more))  # the others wait until it is written
            self.saved = step
            raise Interrupted(self.signals.asked or signal.SIGTERM, self.how_to_go_on())

    def how_to_go_on(self):
        if self.saved is None:
            return "nothing new was saved, and the same command starts again"
        return f"{self.unit} {self.saved} is saved, and the same command with --resume{' instead of --overwrite' * self.flags.overwrite} goes on from there"

    def progress(self, step, steps, loss, lr, tokens):
        """After every update: end a training that has diverged, and a few times a second show the live line on a terminal;
        `tokens` were processed since the start."""
        if self.losses.add(step, lr, loss):
            self.look_at_losses()
        now = time.perf_counter()
        if not distributed.first() or not sys.stderr.isatty() or now - self.last_line < 0.2 and step < steps:
            return
        self.last_line = now
        seconds = now - self.started
        left = seconds / max(1, step - self.first_step) * (steps - step)
        print(f"\r{step}/{steps}  loss {float(loss):.3f}  lr {lr:.1e}  {tokens / seconds:,.0f} tokens/s  {clock(left)} left ",
              end="\n" if step == steps else "", file=sys.stderr, flush=True)

    @first_only
    def say(self, text):
        """A plain line on stdout, not mixed up with the live line, whatever the names in it hold."""
        if sys.stderr.isatty():
            print("\r" + " " * 79 + "\r", end="", file=sys.stderr, flush=True)
        print(printable(text), flush=True)

    def save(self, name, previous=None, **state):
        """Write a checkpoint under its name only when it is whole and on disk. UserError, and no file changed, when its weights are not finite."""
        if not all(weight.isfinite().all() for weight in state["model"].values()):
            raise self.diverged(f"at {self.unit} {state['step']} there are weights that are no finite numbers")
        if distributed.first():
            write_checkpoint(self.folder / name, state, previous)

    def save_checkpoint(self, model, optimizer, step, **more):
        """checkpoint.pt: all that exact resumption needs; data order and masks follow from seed and step. The one before becomes previous.pt."""
        self.look_at_losses()
        previous = None if self.damaged else self.folder / "previous.pt"  # a damaged file takes no whole one's place
        self.save("checkpoint.pt", previous, model=model.state_dict(), optimizer=optimizer.state_dict(), step=step, rng=torch.get_rng_state(),
                  cuda_rng=torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
                  seconds=self.seconds(), more=more)
        self.saved, self.damaged = step, False

    def restore(self, model, optimizer):
        """Load the newest whole checkpoint into model and optimizer. Returns (step, more); (0, {}) for a fresh run."""
        if not self.flags.resume:
            return 0, {}
        name, state = distributed.from_first(self.newest_checkpoint)
        load_weights(model, state["model"], self.folder / name)
        load_optimizer(optimizer, state["optimizer"], self.folder / name)
        require((type(state["step"]) is int and state["step"] >= 0 and type(state["seconds"]) is float and isinstance(state["more"], dict),
                 f"{self.folder / name}: its step, seconds or numbers are not as a run saves them; restore the file"))
        try:
            torch.set_rng_state(state["rng"].cpu())
            if self.device.type == "cuda" and state["cuda_rng"]:
                torch.cuda.set_rng_state_all([rng.cpu() for rng in state["cuda_rng"]])
        except (AttributeError, RuntimeError, TypeError):
            raise UserError(f"{self.folder / name}: its random state is none; restore the file") from None
        self.resumed_seconds, self.first_step, self.saved = state["seconds"], state["step"], state["step"]
        if distributed.first():
            kept = [line for line in self.metrics() if line["step"] <= state["step"]]  # what is later than the checkpoint will come again
            write_text(self.folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
            self.say(f"going on from {self.unit} {state['step']}")
        return state["step"], state["more"]

    def newest_checkpoint(self):
        """Name and content of checkpoint.pt, or of previous.pt with a line that says why: when the other is damaged or, as a process that
        died between two renamings leaves it, missing. UserError when there is nothing to read, or best.pt is needed and damaged."""
        damages = []
        for path in (self.folder / "checkpoint.pt", self.folder / "previous.pt"):
            if not path.exists():
                continue
            try:
                state = read_checkpoint(path, self.device, ("model", "optimizer", "step", "rng", "cuda_rng", "seconds", "more"))
            except Damaged as error:
                damages.append(error.what)
                continue
            if self.kind != "classifier":  # its best.pt comes last; others' may stay the best, so a damage had better be known now
                read_checkpoint(self.folder / "best.pt", "cpu")
            if path.name == "previous.pt":
                print(f"note: {damages[0] if damages else 'checkpoint.pt is missing'}; going on from {path}, {self.unit} {state['step']}", file=sys.stderr)
            self.damaged = bool(damages)
            return path.name, state
        raise UserError(f"{'; '.join(damages)}; restore one of them or train the run again")

    def metrics(self):
        """All logged lines so far, as dictionaries."""
        return read_metrics(self.folder)

    def seconds(self):
        """Wall time of this run, earlier sittings counted in."""
        return self.resumed_seconds + time.perf_counter() - self.started

    def finish(self, result, model, tokens):
        """result.json: the final numbers, and what they cost."""
        seconds = self.seconds()
        write_json(self.folder / "result.json", result | {
            "parameters": models.count_parameters(model), "seconds": round(seconds, 2), "cpu_seconds": round(time.process_time(), 2),
            "tokens_per_second": round(tokens / seconds, 1), "peak_memory_mb": peak_memory(self.device), "processes": distributed.size(),
            "command": shlex.join([*distributed.launcher(), Path(sys.argv[0]).name, *sys.argv[1:]])})


def can_resume(folder):
    """Whether a run folder holds a checkpoint to go on from."""
    return any((Path(folder) / name).exists() for name in ("checkpoint.pt", "previous.pt"))


@dataclass
class LoadedRun:
    folder: Path
    kind: str
    config: dict           # config.json
    model: torch.nn.Module
    tokenizer: tokenizers.Tokenizer


def load_run(folder, kinds=("lm", "mlm", "classifier", "seq2seq"), device="cpu", flag_name=""):
    """Open a finished or unfinished run: its model in evaluation mode with the best weights, and its tokenizer.

    UserError when the folder is no run, a run of another kind, or its parts do not fit together.
    """
    folder, where = Path(folder), f"{flag_name} {folder}".strip()
    if not folder.is_dir():
        raise UserError(f"{where}: no such run folder; train one first or check the path")
    if not (folder / "config.json").exists():
        raise UserError(f"{where}: no config.json, so this is no run folder; give a folder a train_*.py script wrote")
    described = read_config(folder)
    kind = described.get("kind")
    if kind not in kinds:
        raise UserError(f"{where}: is a run of kind {str(kind)[:40]!r}, but {' or '.join(repr(k) for k in kinds)} is needed here; "
                        f"give a folder written by {' or '.join(f'train_{k}.py' for k in kinds)}")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    try:
        config = models.Config(**described["model"])
    except (TypeError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'}: does not describe a model ({error}); train the run again") from None
    if tokenizer.get_vocab_size() != config.vocab_size:
        raise UserError(f"{folder / 'tokenizer.json'}: has {tokenizer.get_vocab_size()} entries but the checkpoint's model {config.vocab_size}; "
                        "they are of different runs, restore the right one")
    path = folder / "best.pt"
    if not path.exists():
        raise UserError(f"{where}: no best.pt yet; finish the run with --resume")
    checkpoint = read_checkpoint(path, device)
    weights = checkpoint["model"]

    members = described.get("members", 1)

    def build():
        if kind == "classifier":
            return Classifier((models.Decoder if described.get("body") == "decoder" else models.Encoder)(config), **described["classifier"])
        body = {"lm": models.Decoder, "mlm": models.Encoder, "seq2seq": models.EncoderDecoder}[kind]
        return Ensemble([models.LanguageModel(body(config)) for _ in range(members)]) if members > 1 else models.LanguageModel(body(config))

    # config.json may ask for anything: its model takes memory only when the weights prove to be such a model's.
    require((0 < members * config.n_layer <= len(weights), f"{path}: holds {len(weights)} tensors, which cannot be the {config.n_layer} layers of config.json, "
             f"{members} times; restore the file"))
    try:
        with torch.device("meta"):
            model = build()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'}: does not describe a model ({str(error)[:200]}); train the run again") from None
    check_weights(model, weights, path)
    if kind == "classifier":
        n_class = len(described["classes"])
        require((n_class == described["classifier"].get("n_class"), f"{folder / 'config.json'}: names {n_class} classes, but the classifier has another number; restore the file"))
    model = build()
    load_weights(model, weights, path)
    if not (folder / "result.json").exists():
        print(printable(f"note: the run in {folder} has not ended; these are its weights of {'epoch' if kind == 'classifier' else 'step'} {checkpoint.get('step', '?')}"), file=sys.stderr)
    return LoadedRun(folder, kind, described, model.to(device).eval(), tokenizer)


def figures_folder(out):
    """--out of a script that draws, as a path. UserError for a file, and for a run, which its figures would mix with."""
    out = Path(out)
    require((not (out / "config.json").exists() and not out.is_file(), f"--out {out}: is a {'file' if out.is_file() else 'run'}; choose another folder"))
    return out


def by_position(loaded):
    """{label: runs}: runs that differ in their seed only come together under their position choice; where that does not
    tell them apart, each stands alone under its folder's name."""
    groups = {}
    for run in loaded:
        groups.setdefault(run.model.body.config.pos, []).append(run)

    def alike(group):
        return all({**run.config["flags"], "seed": 0, "out": ""} == {**group[0].config["flags"], "seed": 0, "out": ""} for run in group)

    if all(alike(group) and len({run.config["flags"]["seed"] for run in group}) == len(group) for group in groups.values()):
        return groups
    names = [run.folder.resolve().name for run in loaded]
    return {name if names.count(name) == 1 else str(run.folder): [run] for name, run in zip(names, loaded)}


class Described(dict):
    """What a file of a run says, by name. A name that it has not costs whoever asks for it one line: UserError."""

    def __init__(self, path, entries):
        super().__init__(entries)
        self.path = path

    def __missing__(self, name):
        raise UserError(f"{self.path}: holds no {name}; restore the file or train the run again")


def read_json(path):
    return Described(path, files.read_json(path, "give the folder of a run, restore the file or train the run again"))


def check_entries(path, entries, kinds):
    """UserError unless those of the entries that `kinds`, {name: type}, names are of these types; a whole number is also a float."""
    wrong = [name for name, kind in kinds.items() if name in entries and type(entries[name]) is not kind and (type(entries[name]), kind) != (int, float)]
    require((not wrong, f"{path}: {', '.join(wrong)} of another type than the scripts write; restore the file or train the run again"))


def read_config(folder):
    """config.json of a run, also its flags as a Described. UserError where an entry is of a type that no script writes."""
    path = Path(folder) / "config.json"
    described = read_json(path)
    check_entries(path, described, {"kind": str, "flags": dict, "model": dict, "classifier": dict, "classes": list, "languages": list, "members": int,
                                    **({"first_sentinel": int} if described.get("first_sentinel") is not None else {})})
    flags = described["flags"] = Described(path, described.get("flags", {}))
    shared = {field.name: field.type for some in (RunFlags, ModelFlags, TokenizerFlags, ContinueFlags) for field in dataclasses.fields(some)}
    check_entries(path, flags, shared | {"encoder": str, "init": str, "split": str, "mask_rate": float, "mean_span": float})
    named = [*described.get("classes", ()), *described.get("languages", ()), *flags]
    plain = [value for value in flags.values() if not isinstance(value, (list, dict))]
    require((all(isinstance(name, str) for name in named) and len(plain) == len(flags) and not any("\0" in value for value in plain if isinstance(value, str)),
             f"{path}: flags, classes or languages are not as the scripts write them; restore the file or train the run again"))
    return described


def read_result(folder):
    """result.json of a run. UserError where a measured number is none."""
    path = Path(folder) / "result.json"
    result = read_json(path)
    wrong = [name for name, value in result.items() if ("/" in name or name in ("seconds", "tokens_per_second", "vocab_size")) and not is_measured(name, value)]
    require((not wrong, f"{path}: {', '.join(wrong)} is no number that a run can measure; restore the file or train the run again"))
    return result


def is_measured(name, value):
    """Whether a value is a number that a run can have written: perplexities are above zero."""
    return type(value) in (int, float) and abs(value) <= 1e305 and (value > 0 or not name.startswith("perplexity/"))


def read_metrics(folder):
    """The lines of metrics.jsonl as dictionaries, [] when there is none; a last line that was cut off is left out.

    UserError for any other damage.
    """
    path = Path(folder) / "metrics.jsonl"
    if not path.exists():
        return []
    raw = files.read_bytes(path, METRICS_LIMIT, "restore the file or train the run again")
    try:
        lines = [files.parse_json(line) for line in raw.decode("utf-8").split("\n")[:-1]]
        if not all(isinstance(line, dict) and type(line.get("step")) is int and all(is_measured(*entry) for entry in line.items()) for line in lines):
            raise ValueError("a line holds something else than a step and finite numbers")
    except ValueError as error:
        raise UserError(f"{path}: not readable ({error}); restore the file or train the run again") from None
    return [Described(path, line) for line in lines]


def write_json(path, value):
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path, text):
    """Replace a text file in one step, so that it is never half-written under its name."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def peak_memory(device):
    """Largest memory of this process so far in MB, on the device that computes; None where the system does not tell."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10), 1)


def git_revision():
    """The commit of the code, with a + when files were changed; "unknown" outside a checkout."""
    try:
        here = Path(__file__).parent
        revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        changes = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True, check=True)
        return revision.stdout.strip() + ("+" if changes.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions():
    return {"python": platform.python_version(), "torch": torch.__version__, "tokenizers": tokenizers.__version__, "numpy": numpy.__version__,
            "platform": platform.platform(), "date": datetime.date.today().isoformat()}


def clock(seconds):
    """Seconds as 1:02:03 or 2:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
