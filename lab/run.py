"""A run being trained: its folder, and what surrounds the training loop.

A run is a folder: config.json, tokenizer.json, metrics.jsonl, checkpoint.pt (to resume), best.pt
(to use), result.json and figures, and with --keep step-N.pt. `Run` writes one, `lab.load` opens it.
"""

import dataclasses
import json
import math
import os
import signal
import time

import torch

from data.files import write_json, write_text
from lab import processes, resume
from lab.checkpoint import check_weights, load_optimizer, read_checkpoint, write_checkpoint
from lab.command import typed_command
from lab.errors import UserError, require
from lab.flags import ContinueFlags, script_of, whole_numbers
from lab.folder import name_folder, open_folder
from lab.live import LiveLine, clock
from lab.machine import git_revision, peak_memory, versions
from lab.parameters import count_parameters
from lab.records import read_config, read_metrics
from lab.signals import Interrupted, Signals

LOOK_EVERY = 100  # steps between checks of the losses on a GPU, since each check waits for it


class Run:
    """A run folder being written.

    kind: one of SCRIPTS in lab/load.py. name: start of the folder's name, if it is not
    the kind. `described` goes into config.json. Raises UserError if --out holds something and
    neither --resume nor --overwrite is given, or if --resume finds a run with other flags.
    """

    def __init__(self, kind, flags, config, tokenizer, device, name="", **described):
        self.flags, self.device = flags, device
        self.folder = name_folder(flags, name or kind, config.pos, flags.seed)
        self.started = time.perf_counter()
        self.earlier = [0.0, 0.0]  # seconds before a resume: wall time, CPU time
        self.first_step = self.tokens = 0
        self.recent = []  # losses since the last evaluation
        self.unchecked = []  # (step, learning rate, loss) since the last check of losses
        self.best = None  # (step or epoch, value of the monitor) of the best evaluation so far
        self.saved = None  # step of the last checkpoint
        self.keeps_best = not getattr(flags, "refit", False)  # else the script does, in the end
        self.damaged = False  # whether checkpoint.pt is corrupt
        self.retraining = False  # whether the loop of `retrain` has begun
        self.retrained = 0  # epochs of that loop
        self.live, self.signals = LiveLine(), Signals(self.how_to_resume)
        self.unit, self.per_epoch = "step", 1  # see `count_in_epochs`
        self.every = getattr(flags, "eval_every", 1)
        self.total = getattr(flags, "steps", 0) + getattr(flags, "class_steps", 0)
        self.to_keep = whole_numbers(flags, "keep") if getattr(flags, "keep", "") else []
        for step in self.to_keep:
            problem = f"--keep {step}: must be a step from 0 to {self.total}"
            require((0 <= step <= self.total, problem))
        described |= {"kind": kind, "model": dataclasses.asdict(config)}
        processes.from_rank_0(lambda: self.begin(described, tokenizer))
        same = processes.from_rank_0(tokenizer.to_str) == tokenizer.to_str()
        problem = f"--data {flags.data}: rank {processes.rank()} reads a different text from rank 0"
        require((same, f"{problem}; give all machines the same files"))

    def begin(self, described, tokenizer):
        """Open the folder and, for a new run, write config.json and tokenizer.json."""
        flags = self.flags
        open_folder(self.folder, flags)
        if flags.resume:
            resume.check_tokenizer(self.folder, tokenizer, flags.data)
            resume.check_encoder(self.folder, described.get("encoder_sha256", ""), flags)
            return
        described |= {
            "script": script_of(flags),
            "command": typed_command(flags),
            "flags": dataclasses.asdict(flags),
            "given": sorted(getattr(flags, "given", ())),
            "seed": flags.seed,
            "device": str(self.device),
            "revision": git_revision(),
            "versions": versions(),
        }
        write_json(self.folder / "config.json", described)
        write_text(self.folder / "tokenizer.json", tokenizer.to_str(pretty=True))

    # ------------------------------------------------------------------------ the training loop

    def count_in_epochs(self, epochs, per_epoch):
        """Count in epochs of `per_epoch` steps, with an evaluation after each epoch."""
        self.unit, self.total = "epoch", epochs * per_epoch
        self.every = self.per_epoch = per_epoch

    def steps(self, model, optimizer, measure, monitor="", whole=None):
        """Yield the steps that are left to train, counted from 0.

        Resumes with --resume. Evaluates every --eval-every steps and at the end: `measure()`
        returns ({name: number} for metrics.jsonl, the words to print). best.pt then gets the
        weights of `model` if the number named `monitor` has improved, or always without a monitor.
        checkpoint.pt follows. Between steps, a signal saves a checkpoint and ends the script.
        whole: the model for best.pt, if `model` is only the trained part of it.
        """
        if self.flags.resume:
            self.restore(model, optimizer, monitor)
        processes.copy_from_rank_0(model)
        model.train()
        self.signals.waiting = True  # until `stop_if_asked` at the last step
        for step in range(self.first_step, self.total + 1):
            if self.is_due(step):
                self.evaluate(step, measure, monitor, model if whole is None else whole)
                self.save_checkpoint(model, optimizer, step)
            if step in self.to_keep:
                self.save(f"step-{step}.pt", model=model.state_dict(), step=step)
            self.stop_if_asked(model, optimizer, step)
            if step == self.first_step:
                self.start_loop(optimizer)  # the speed leaves out the first evaluation
            if step < self.total:
                yield step

    def record_step(self, step, loss, tokens):
        """Record a finished step: check its loss and show the live line.

        loss: this process's share of the loss, a scalar tensor. tokens: how many the step read.
        """
        loss = processes.all_sum(loss.detach())
        self.recent.append(loss)
        self.tokens += tokens
        self.new_tokens += tokens
        lr = self.optimizer.param_groups[0]["lr"]
        self.unchecked.append((step + 1, lr, loss))
        if loss.device.type == "cpu" or len(self.unchecked) == LOOK_EVERY:
            self.check_losses()
        if processes.is_rank_0() and self.live.is_due():
            seconds = time.perf_counter() - self.loop_started
            left = seconds / (step + 1 - self.first_step) * (self.total - step - 1)
            self.live.show(
                f"{step + 1}/{self.total}  loss {float(loss):.3f}  lr {lr:.1e}  "
                f"{self.new_tokens / seconds:,.0f} tokens/s  {clock(left)} left"
            )

    def retrain(self, optimizer, per_epoch, measure):
        """Yield the steps of a second training, which is neither logged nor saved.

        It takes as many epochs as the best one of the search, and more while the model `is_behind`,
        but not more than the search.
        """
        best, last = self.best[0], self.total // self.per_epoch
        self.retraining, self.first_step = True, 0
        self.start_loop(optimizer)
        while self.retrained < best or (
            self.retrained < last and self.is_behind(measure()[0]["accuracy/train"])
        ):
            self.total = max(best, self.retrained + 1) * per_epoch
            yield from range(self.retrained * per_epoch, (self.retrained + 1) * per_epoch)
            self.retrained += 1

    def is_behind(self, accuracy):
        """Return whether an accuracy on the training rows is over 5 points below the search's."""
        return accuracy < self.accuracy_of_search() - 0.05

    def accuracy_of_search(self):
        """Return the accuracy on the training rows at the best epoch of the search."""
        logged = {line["step"]: line["accuracy/train"] for line in read_metrics(self.folder)}
        return logged[self.best[0]]

    def start_loop(self, optimizer):
        """Start to measure the speed of a loop."""
        self.optimizer = optimizer  # whose learning rate `record_step` shows
        self.loop_started, self.new_tokens = time.perf_counter(), 0

    def is_due(self, step):
        """Return whether a step begins with an evaluation that is not logged already."""
        is_logged = self.flags.resume and step == self.first_step
        if is_logged or (self.unit == "epoch" and step == 0):
            return False
        return step % self.every == 0 or step == self.total

    def evaluate(self, step, measure, monitor, model):
        """Measure, log, print, and save best.pt if there is an improvement."""
        numbers, words = measure()
        if self.recent:
            numbers["loss/train"] = torch.stack(self.recent).mean().item()
        self.recent, count = [], step // self.per_epoch
        self.log(count, tokens=self.tokens, **numbers)
        self.say(f"{self.unit} {count:>5}  {words}")
        if self.improves(numbers, monitor):
            self.best = count, numbers.get(monitor)
            if self.keeps_best:
                self.save("best.pt", model=model.state_dict(), step=count, **numbers)

    def improves(self, numbers, monitor):
        """Return whether a number is better than the best: an accuracy higher, others lower."""
        if self.best is None or not monitor:
            return True
        new, old = numbers[monitor], self.best[1]
        return new > old if monitor.startswith("accuracy") else new < old

    def stop_if_asked(self, model, optimizer, step):
        """Save and raise Interrupted if a signal arrived. After the last step, a signal ends the
        script at once."""
        self.signals.waiting = step != self.total
        if processes.all_sum(torch.tensor(self.signals.asked)):  # in any process
            # from_rank_0 holds the other processes until the file is written
            processes.from_rank_0(lambda: self.save_checkpoint(model, optimizer, step))
            self.saved = step
            raise Interrupted(self.signals.asked or signal.SIGTERM, self.how_to_resume())

    def how_to_resume(self):
        """Return what was saved before a signal, and the command to resume from there."""
        if self.saved is None:
            return "nothing new was saved; the same command starts again"
        count, rest = divmod(self.saved, self.per_epoch)
        saved = f"{self.unit} {count}{' and the start of the next' if rest else ''} is saved"
        saved += "; the final training is not, and starts again" if self.retraining else ""
        command = resume.resume_command(script_of(self.flags), self.folder, processes.launcher())
        return f"{saved}; to resume: {command}"

    def check_losses(self):
        """Raise UserError naming the first loss that is NaN or infinite since the last check."""
        unchecked, self.unchecked = self.unchecked, []
        losses = torch.stack([loss for *_, loss in unchecked]).tolist() if unchecked else []
        for (step, lr, _), loss in zip(unchecked, losses):
            if not math.isfinite(loss):
                where = f"at step {step}, with learning rate {lr:g}"
                raise self.diverged(f"{where}, the loss is {loss}")

    def diverged(self, problem):
        """Return the UserError that names the last good checkpoint."""
        kept = "no checkpoint was written before"
        if self.saved is not None:
            count = self.saved // self.per_epoch
            kept = f"the last good checkpoint is that of {self.unit} {count} in {self.folder}"
        rates = "--lr or --class-lr" if hasattr(self.flags, "class_lr") else "--lr"
        problem = f"--lr {self.flags.lr:g}: training diverged, {problem}"
        return UserError(f"{problem}; {kept}; start again with a smaller {rates}")

    # ------------------------------------------------------------------------ what is written

    def say(self, text):
        """Print a plain line, in rank 0 alone."""
        if processes.is_rank_0():
            self.live.say(text)

    def say_end(self, words):
        """Print the last line: the result in words, the time, and the folder."""
        self.live.say(f"{words}; {self.seconds():.0f} s, {self.folder}")

    def log(self, count, **metrics):
        """Append a line to metrics.jsonl, without times: a repeated run gives the same file.
        Raises UserError for NaN and infinite numbers."""
        self.check_losses()
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise self.diverged(f"at {self.unit} {count} {name} is {value}")
        if processes.is_rank_0():
            with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": count, **metrics}) + "\n")
                file.flush()
                os.fsync(file.fileno())  # so that it is never behind a checkpoint

    def save(self, name, previous=None, **state):
        """Write a checkpoint. Raises UserError, and changes no file, if weights are not finite."""
        finite = [weight.isfinite().all() for weight in state["model"].values()]
        if not torch.stack(finite).all():  # one wait for a GPU, not one per weight
            raise self.diverged(f"at {self.unit} {state['step']} some weights are NaN or infinite")
        if processes.is_rank_0():
            write_checkpoint(self.folder / name, state, previous)

    def save_checkpoint(self, model, optimizer, step):
        """Write all that exact resuming needs to checkpoint.pt; the one before is previous.pt.
        Data order and masks follow from seed and step."""
        self.check_losses()
        previous = None if self.damaged else self.folder / "previous.pt"
        cuda = self.device.type == "cuda"
        losses = torch.stack(self.recent).tolist() if self.recent else []
        self.save(
            "checkpoint.pt",
            previous,
            model=model.state_dict(),
            optimizer=optimizer.state_dict(),
            step=step,
            rng=torch.get_rng_state(),
            cuda_rng=torch.cuda.get_rng_state(self.device) if cuda else [],
            seconds=[self.seconds(), self.cpu_seconds()],
            more={"tokens": self.tokens, "losses": losses, "per_epoch": self.per_epoch},
        )
        self.saved, self.damaged = step, False

    def load_best(self, model):
        """Load best.pt into the model and return its step and numbers."""
        best = processes.from_rank_0(lambda: read_checkpoint(self.folder / "best.pt"))
        model.load_state_dict(best.pop("model"))
        self.best_step = best["step"]
        if self.best_step != self.total // self.per_epoch:
            self.say(f"best {self.unit}: {best['step']}; the results below use its weights")
        return best

    def finish(self, result, model):
        """Write result.json: the final numbers and what they cost. Only rank 0 returns."""
        processes.keep_rank_0()
        self.live.clear()
        seconds = self.seconds()
        result = {
            **({"step": self.best_step} if self.unit == "step" else {}),
            "vocab_size": model.body.config.vocab_size,
            **result,
            "parameters": count_parameters(model),
            "seconds": round(seconds, 2),
            "cpu_seconds": round(self.cpu_seconds(), 2),
            "tokens_per_second": round(self.tokens / seconds, 1),
            "peak_memory_mb": peak_memory(self.device),
            "processes": processes.size(),
            "command": read_config(self.folder).get("command", ""),
        }
        write_json(self.folder / "result.json", result)

    def seconds(self):
        """Return the wall time of this run, with that before a resume."""
        return self.earlier[0] + time.perf_counter() - self.started

    def cpu_seconds(self):
        """Return the CPU time of rank 0, with that before a resume."""
        return self.earlier[1] + time.process_time()

    # ------------------------------------------------------------------------ resuming

    def restore(self, model, optimizer, monitor):
        """Load the newest checkpoint that is not corrupt, and the best evaluation before it."""
        first_best = self.per_epoch if self.unit == "epoch" else 0  # the step that writes best.pt
        best_from = first_best if self.keeps_best else math.inf
        found = processes.from_rank_0(lambda: resume.newest_checkpoint(self.folder, best_from))
        name, state, self.damaged = found
        path = self.folder / name
        check_weights(model, state["model"], path)
        model.load_state_dict(state["model"])
        load_optimizer(optimizer, state["optimizer"], path)
        resume.check_counts(path, state, self.total, self.per_epoch)
        resume.restore_random(path, state, self.device)
        self.earlier, step, more = state["seconds"], state["step"], state["more"]
        self.first_step = self.saved = step
        self.tokens = more.get("tokens", 0)
        self.recent = [torch.tensor(float(x), device=self.device) for x in more.get("losses", [])]
        count = step // self.per_epoch
        lines = processes.from_rank_0(lambda: resume.read_log(self.folder, count, self.unit))
        for line in lines if monitor else []:
            if self.improves(line, monitor):
                self.best = line["step"], line[monitor]
        if processes.is_rank_0():  # later lines will be written again
            write_text(self.folder / "metrics.jsonl", "".join(json.dumps(x) + "\n" for x in lines))
        note = ", the last; the results are computed again" if step == self.total else ""
        if note and isinstance(self.flags, ContinueFlags):
            note += " (to train longer: --init-from)"
        self.say(f"resuming from {self.unit} {count}{note}")
