"""A run being trained: its folder, and what surrounds the training loop.

A run is a folder: config.json, tokenizer.json, sentences.npy (hashes of all texts that made it),
metrics.jsonl, checkpoint.pt (to resume), best.pt (to use), result.json and figures, and with --keep
step-N.pt. `Run` writes one, `lab.load` opens it.
"""

import dataclasses
import json
import math
import os
import platform
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import filelock
import numpy as np
import torch
from tqdm import tqdm

from data.corpus import hashes, name_of, read_hashes, write_hashes
from data.files import UserError, printable, read_json, whole_file, write_json, write_text
from lab import dist
from lab.flags import MAY_CHANGE, require, spelled
from lab.machine import code_hash, git_revision, module_of

# Flag -> a file of the folders that have hashes of texts; with --init, those of beyond.export
SOURCES = dict(data="meta.json", init_from="best.pt", encoder="best.pt", init="sentences.npy")
LOOK_EVERY = 100  # steps between checks of the losses on a GPU, since each check waits for it


class Run:
    """A run folder being written.
    script: path of the training script. kind: what `lab.inside` can do with the run. digest:
    --resume needs the same data. build: arguments of the script's `build`, which makes the model.
    read: {flag: its Corpus}. name: start of the folder's name. more: entries of config.json. Raises
    UserError if something would be lost, if --resume finds another run than the flags describe, and
    if the run starts from what was made with sentences that --split removes."""

    def __init__(
        self, script, flags, kind, config, tokenizer, device, digest, build, read, name="", **more
    ):
        self.flags, self.device, module = flags, device, module_of(script)
        self.launch = f"python -m {module}" if "." in module else f"python {module}.py"
        split = getattr(flags, "split", "full").replace("/", "-of-")
        parts = [name or kind, name_of(flags.data), config.pos, str(flags.seed)]
        parts += [split] if split != "full" else []
        self.folder = Path(flags.out or f"out/{'-'.join(parts)}").expanduser()
        self.started, self.earlier = time.perf_counter(), [0.0, 0.0]  # seconds before a resume
        self.first_step, self.tokens, self.best = 0, 0, None
        self.lines, self.recent, self.unchecked = [], [], []  # of metrics.jsonl; of losses
        self.asked, self.bar = 0, None  # the signal that asks to stop; the progress bar
        described = {
            "kind": kind,
            "script": module,
            "command": f"{self.launch} {shlex.join(sys.argv[1:])}".strip(),
            "flags": dataclasses.asdict(flags),
            "model": dataclasses.asdict(config),
            "build": build,
            "seed": flags.seed,
            "device": str(device),
            "revision": git_revision() or "an unknown revision",
            "code": code_hash(script),
            "data_hash": digest,
            "torch": torch.__version__,
            "platform": platform.platform(),
            "date": time.strftime("%Y-%m-%d"),
            **more,
        }
        dist.from_rank_0(lambda: self.open(described, tokenizer, read))
        for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C, and a scheduler that ends a job
            signal.signal(number, self.ask_to_stop)

    def open(self, described, tokenizer, read):
        """Make the folder, empty it with --overwrite, or check it with --resume."""
        flags, folder = self.flags, self.folder
        require(not folder.is_file(), f"--out {folder}: is a file; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = filelock.FileLock(folder / ".lock")
        try:
            self.lock.acquire(timeout=0)  # until this process ends
        except filelock.Timeout:
            raise UserError(f"--out {folder}: another process is training there") from None
        if flags.resume:
            return self.check_resume(described)
        found = [path for path in folder.iterdir() if path.name != ".lock"]
        path = folder / "config.json"
        is_run = path.exists() and "kind" in read_json(path)
        begun = any((folder / name).exists() for name in ("checkpoint.pt", "result.json"))
        require(is_run or not found, f"--out {folder}: is not empty and no run; choose another")
        remedy = "continue it with --resume, replace it with --overwrite, or choose another folder"
        require(flags.overwrite or not begun, f"--out {folder}: already holds a run; {remedy}")
        made_with = {flag: hashes(corpus.texts()) for flag, corpus in read.items()}
        for flag, file in SOURCES.items():
            source = Path(getattr(flags, flag, "") or "/").expanduser().resolve()
            if flag not in read and (source / file).exists():
                same = f"--out {folder}: is the run that {spelled(flag)} reads"
                require(source != folder.resolve(), same)
                made_with[flag] = read_hashes(source)
        removed = sorted(set().union(*(corpus.removed for corpus in read.values())))
        for flag, texts in made_with.items():
            leaks = [removed[i] for i in np.isin(hashes(removed), texts).nonzero()[0]]
            where = f"{spelled(flag)} {getattr(flags, flag)}: was made with {len(leaks):,} of the"
            like = f"sentences that --split removes, like {max(leaks, key=len, default='')!r:.60}"
            require(not leaks, f"{where} {like}; make it with the same --split, or without them")
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
        write_hashes(folder, made_with.values())
        write_json(folder / "config.json", described)

    def check_resume(self, now):
        """Raise UserError unless the folder has a checkpoint of the run that `now` describes."""
        folder, then = self.folder, read_json(self.folder / "config.json")
        problem = f"--resume: {folder} holds no checkpoint; start it anew"
        require((folder / "checkpoint.pt").exists(), problem)
        changed = [
            f"{spelled(name)} {then['flags'][name]}, not {value}"
            for name, value in now["flags"].items()
            if name not in MAY_CHANGE and then["flags"].get(name, value) != value
        ]
        problem = f"--resume: {folder} was started with {'; '.join(changed)}"
        require(not changed, f"{problem}; leave these out, or train from its weights: --init-from")
        problem = f"--resume: --data {self.flags.data} has changed since {folder} was started"
        require(then["data_hash"] == now["data_hash"], f"{problem}; restore it, or start anew")
        if then["code"] != now["code"]:
            self.say(f"note: {folder} was made at {then['revision']}; the code differs")

    def load_checkpoint(self, model, optimizer):
        """With --resume, load checkpoint.pt. Give all processes the weights of rank 0."""
        if self.flags.resume:
            state = dist.from_rank_0(lambda: read_weights(self.folder / "checkpoint.pt"))
            load_weights(model, state["model"], self.folder / "checkpoint.pt")
            optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["rng"])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(state["cuda_rng"], self.device)
            self.first_step = state["step"]
            self.earlier, self.tokens, self.best = state["seconds"], state["tokens"], state["best"]
            self.recent = [torch.tensor(loss, device=self.device) for loss in state["losses"]]
            self.lines = state["lines"]
            if dist.rank() == 0:  # later lines will be written again
                text = "".join(json.dumps(line) + "\n" for line in self.lines)
                write_text(self.folder / "metrics.jsonl", text)
            self.say(f"resuming from step {self.first_step}")
        dist.copy_from_rank_0(model)
        model.train()

    def log(self, step, numbers, words, model, monitor=""):
        """Append an evaluation to metrics.jsonl, print it in words, and write best.pt if the number
        named `monitor` is the best so far (an accuracy the highest, others the lowest) or ""."""
        if self.lines and self.lines[-1]["step"] >= step:  # logged before a resume
            return
        self.check_losses()
        for name, value in numbers.items():
            require(math.isfinite(value), self.diverged(f"{name} is {value} at step {step}"))
        if self.recent:
            numbers = numbers | {"loss/train": torch.stack(self.recent).mean().item()}
        self.recent = []
        line = {"step": step, "tokens": self.tokens, **numbers}  # without times: can be repeated
        self.lines.append(line)
        if dist.rank() == 0:
            with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        self.say(words)
        sign = -1 if monitor.startswith(("accuracy", "pearson")) else 1
        value = numbers.get(monitor, 0.0) * sign
        if self.best is None or not monitor or value < self.best[1]:
            self.best = [step, value]
            self.save_weights("best.pt", model, step=step, **numbers)

    def progress(self, step, total, loss, tokens):
        """Record a finished step: check its loss, and show the progress on a terminal. loss: this
        process's share, a scalar tensor, which a GPU may still be computing."""
        loss = dist.all_sum(loss.detach())
        self.recent.append(loss)
        self.unchecked.append((step, loss))
        self.tokens += tokens
        if loss.device.type == "cpu" or len(self.unchecked) == LOOK_EVERY:
            self.check_losses()
        if self.bar is None:  # shown on a terminal alone
            self.bar = tqdm(total=total, initial=step, disable=dist.rank() > 0 or None, leave=False)
        if loss.device.type == "cpu" or not step % LOOK_EVERY:
            self.bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        self.bar.update()

    def check_losses(self):
        """Raise UserError naming the first loss that is NaN or infinite since the last check."""
        unchecked, self.unchecked = self.unchecked, []
        losses = torch.stack([loss for _, loss in unchecked]).tolist() if unchecked else []
        for (step, _), loss in zip(unchecked, losses):
            require(math.isfinite(loss), self.diverged(f"the loss is {loss} at step {step + 1}"))

    def diverged(self, problem):
        """Return the message that training diverged."""
        kept = "earlier checkpoints are kept; use a smaller --lr"
        return f"--lr {self.flags.lr:g}: training diverged, {problem}; {kept}"

    def ask_to_stop(self, number, frame):
        """Note a signal, until the step has ended. The second one ends the script at once."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = number
        os.write(2, b"stopping after this step\n")  # print fails if the signal came during a print

    def exit_if_stopped(self, model, optimizer, step):
        """Save a checkpoint and exit if a signal arrived in any process."""
        if dist.all_sum(torch.tensor(self.asked)):
            dist.from_rank_0(lambda: self.save(model, optimizer, step))
            remedy = f"to resume: {self.launch} --resume --out {shlex.quote(str(self.folder))}"
            self.say(f"stopped; step {step} is saved; {remedy}", file=sys.stderr)
            raise SystemExit(128 + (self.asked or signal.SIGTERM))

    def say(self, text, file=None):
        """Print a line, in rank 0 alone, above the progress bar."""
        if dist.rank() == 0:
            with tqdm.external_write_mode():
                print(printable(text), file=file or sys.stdout, flush=True)

    def save(self, model, optimizer, step):
        """Write all that resuming needs to checkpoint.pt."""
        self.check_losses()
        state = dict(step=step, optimizer=optimizer.state_dict(), rng=torch.get_rng_state())
        if self.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        state |= dict(seconds=self.seconds(), tokens=self.tokens, best=self.best, lines=self.lines)
        state["losses"] = torch.stack(self.recent).tolist() if self.recent else []
        self.save_weights("checkpoint.pt", model, **state)

    def save_weights(self, name, model, **more):
        """Write a file of weights. Raises UserError before it is written if some are not finite."""
        weights = model.state_dict()
        finite = torch.stack([w.isfinite().all() for w in weights.values()]).all()  # one GPU sync
        require(finite, self.diverged("some weights are NaN or infinite"))
        if dist.rank() == 0:
            with whole_file(self.folder / name) as file:
                torch.save({"model": weights, **more}, file)

    def load_best(self, model):
        """Load best.pt into the model; return its step and numbers. Signals act as usual again."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        if self.asked:
            raise KeyboardInterrupt
        best = dist.from_rank_0(lambda: read_weights(self.folder / "best.pt"))
        model.load_state_dict(best.pop("model"))
        return best

    def finish(self, result, model):
        """Write result.json: the final numbers and what they cost. Only rank 0 returns."""
        dist.keep_rank_0()
        if self.bar is not None:
            self.bar.close()
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

    def say_start(self, what, model):
        """Print the data in the script's words, and the size and device of the model."""
        config, total = model.body.config, sum(p.numel() for p in model.parameters())
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        sizes = f"{config.vocab_size:,} entries in the vocabulary; {total:,} parameters"
        sizes += f", {trained:,} of them trained" if trained < total else ""
        self.say(f"{what}, {sizes}, pos={config.pos}, on {self.device}")

    def logged(self, names):
        """Return {label: (steps, values)} of the logged numbers {label: name}, for `curves`."""
        found = {label: [x for x in self.lines if name in x] for label, name in names.items()}
        found = {label: lines for label, lines in found.items() if lines}
        return {n: ([x["step"] for x in f], [x[names[n]] for x in f]) for n, f in found.items()}

    def say_end(self, words):
        """Print the result in words, the time, and the folder."""
        self.say(f"{words}; {self.seconds()[0]:.0f} s, {self.folder}")

    def seconds(self):
        """Return the wall and CPU seconds of this run, with those before a resume."""
        wall, cpu = self.earlier
        return [wall + time.perf_counter() - self.started, cpu + time.process_time()]


def read_weights(path):
    """Return the content of a file of weights. Raises UserError naming it."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises almost anything
        why = str(error).splitlines()[0][:80]
        raise UserError(f"{path}: cannot be read ({why}); train the run again") from None


def load_weights(model, weights, path):
    """Load weights into a model. Raises UserError naming the file and the first that do not fit."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        why = " ".join(str(error).split()[6:])[:200]
        raise UserError(f"{path}: its weights do not fit the model ({why})") from None
