"""Models that take timed turns, in this process or in one of their own."""

import contextlib
import multiprocessing

import torch
import torch.nn as nn

from bench import measure, rivals
from bench.work import make_batches
from lab.machine import autocast, compile_blocks
from lab.optim import make_adamw
from model import Block, Config, Decoder, Encoder, LanguageModel
from nets.cross_entropy import LinearCrossEntropySum
from nets.encoder_decoder import EncoderDecoder

# Raised by a pipe whose other end has gone
GONE = (EOFError, BrokenPipeError, ConnectionResetError)


class Poslab(nn.Module):
    """A model of model.py with the interface of bench/rivals.py.

    An encoder has RoBERTa's shape (post-norm, its head), a decoder GPT-2's (pre-norm).
    """

    on_cpu = ("targets",)  # the loss looks at them first; on the CPU no GPU has to be waited for

    def __init__(self, size, task, pos, window=0):
        super().__init__()
        encoder = task == "masked"
        self.logits = "masked" if encoder else "all"
        self.config = Config(
            vocab_size=size.vocab_size,
            block_size=size.block_size,
            n_layer=size.n_layer,
            n_head=size.n_head,
            n_embd=size.n_embd,
            n_ffn=size.n_ffn,
            activation=size.activation,
            pos=pos,
            window=window,
            head="roberta" if encoder else "linear",
            norm_first=not encoder,
            init_std=0.02,
        )
        body = {"masked": Encoder, "causal": Decoder, "seq2seq": EncoderDecoder}[task]
        self.model = LanguageModel(body(self.config))

    def forward(self, idx, targets, **more):
        return self.model.loss(idx, targets, **more) / (targets != -100).sum()


class Contestant:
    """A model, its optimizer and its batches, warmed up by two training steps."""

    def __init__(self, build, batches, size, flags, device):
        torch.manual_seed(0)
        memory = measure.PeakMemory(device)
        self.flags, self.device, self.count = flags, device, 0
        self.model = build(size).to(device)
        stay = getattr(self.model, "on_cpu", ())
        self.batches = [
            {name: tensor if name in stay else tensor.to(device) for name, tensor in batch.items()}
            for batch in batches
        ]
        self.call = self.model
        if flags.compile and any(isinstance(module, Block) for module in self.model.modules()):
            compile_blocks(self.model)  # as the training scripts do
        elif flags.compile:
            self.call = torch.compile(self.model)
        self.optimizer = make_adamw(self.model, 1e-4, 0.01)
        first = self.evaluate(self.batches[1]).item()
        if size.train:
            self.train(), self.train()
        self.facts = {
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "logits": self.model.logits,
            "loss_first": first,
            "loss_after_two_steps": self.evaluate(self.batches[1]).item(),
            "peak_memory_mb": memory.megabytes(),
        }

    @contextlib.contextmanager
    def kernels(self):
        """Let rivals choose cuDNN's attention, as outside of poslab's scripts (lab/machine.py)."""
        enabled = torch.backends.cuda.cudnn_sdp_enabled()
        torch.backends.cuda.enable_cudnn_sdp(enabled or not isinstance(self.model, Poslab))
        try:
            yield
        finally:
            torch.backends.cuda.enable_cudnn_sdp(enabled)

    def next_batch(self):
        self.count += 1
        return self.batches[self.count % len(self.batches)]

    def train(self):
        self.model.train()
        with autocast(self.flags, self.device), self.kernels():
            loss = self.call(**self.next_batch())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, batch=None):
        """Return the loss of a batch, by default of the next one."""
        self.model.eval()
        with autocast(self.flags, self.device), self.kernels():
            return self.call(**(batch or self.next_batch()))

    def turn(self, phase, n):
        """Return (wall, CPU) seconds per step over n steps. phase: train | eval."""
        work = self.train if phase == "train" else self.evaluate
        wall, cpu = measure.timed(work, n, self.device)
        return wall / n, cpu / n


class Graphed(Contestant):
    """A decoder of poslab that trains by replaying a CUDA graph: the CPU launches one graph per
    step, instead of hundreds of kernels. Every token has a target, so that no shape changes."""

    def train(self):
        batch = self.next_batch()
        idx, targets = batch["idx"], batch["targets"].flatten()
        if self.count == 1:  # not recorded: libraries reserve their memory in the first step
            self.idx, self.targets = idx.clone(), targets.to(self.device)
            torch.cuda.synchronize()  # another stream does not wait for the copies
            with torch.cuda.stream(torch.cuda.Stream()):
                self.step()
            torch.cuda.synchronize()
            return
        self.idx.copy_(idx)
        self.targets.copy_(targets)
        if self.count == 2:
            self.record()
        self.graph.replay()

    def record(self):
        for group in self.optimizer.param_groups:
            group["capturable"] = True
        self.optimizer.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def step(self):
        self.model.train()
        model = self.model.model
        with autocast(self.flags, self.device):
            h = model.body(self.idx).flatten(0, 1)  # (B * T, C)
            loss = LinearCrossEntropySum.apply(*model.head.project(h), self.targets, 0.0)
        (loss / len(self.targets)).backward()
        self.optimizer.step()


class Apart:
    """A Contestant of bench/rivals.py in a process of its own, on the CPU.

    Raises one of GONE if that process ends early.
    """

    def __init__(self, name, size, task, flags):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, other_end = spawn.Pipe()
        arguments = (other_end, name, size, task, flags, torch.get_num_threads())
        self.process = spawn.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        other_end.close()
        self.facts = self.pipe.recv()

    def turn(self, phase, n):
        self.pipe.send((phase, n))
        return self.pipe.recv()

    def __del__(self):
        self.pipe.close()  # ends the process
        self.process.join()


def serve(pipe, name, size, task, flags, n_threads):
    """Answer an Apart from its process, which keeps the C library's handling of freed memory."""
    torch.set_num_threads(n_threads)
    torch.set_flush_denormal(True)
    build, batches = rivals.rivals(task)[0][name], make_batches(size, task)
    contestant = Contestant(build, batches, size, flags, torch.device("cpu"))
    pipe.send(contestant.facts)
    with contextlib.suppress(*GONE, KeyboardInterrupt):
        while True:
            pipe.send(contestant.turn(*pipe.recv()))
