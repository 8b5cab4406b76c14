"""A training step as a CUDA graph: Python is slow to start the kernels of small models."""

import torch

import lab.dist as dist
from data.batching import send
from lab.flags import require
from lab.machine import autocast
from lab.optim import clip_gradients

RECORDED_CALL = 4  # earlier ones load libraries and make the optimizer's state


class GraphStep:
    """The step of train_lm.py --graph: its kernels are recorded once, then replayed
    on each batch. Raises UserError without CUDA, and if the batch is split."""

    def __init__(self, model, optimizer, flags, device):
        fits = device.type == "cuda" and dist.size() * flags.accumulate == 1
        require(fits, "--graph: needs CUDA and one process, without --accumulate; leave it out")
        self.model = model
        self.optimizer = optimizer
        self.flags = flags
        self.device = device
        self.calls = 0

    def step(self, x, y, n_tokens, lr):
        """Train on inputs and targets x, y (M * B, T), of the same shape at every call. Return the
        loss, a scalar tensor."""
        # Numbers too become tensors: a graph would replay those of the recorded step
        inputs = [send(torch.as_tensor(value), self.device) for value in (x, y, n_tokens, lr)]
        self.calls += 1
        if self.calls < RECORDED_CALL:
            return self.update(*inputs)
        if self.calls == RECORDED_CALL:
            self.inputs = inputs
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):  # records, computes nothing
                self.loss = self.update(*inputs)
        for recorded, new in zip(self.inputs, inputs):
            recorded.copy_(new)
        self.graph.replay()
        return self.loss.clone()

    def update(self, x, y, n_tokens, lr):
        """Do the step of train_lm.py's loop, on the whole batch at once."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        with autocast(self.flags.dtype, self.device):
            loss = self.model.loss(x, y, smoothing=self.flags.label_smoothing) / n_tokens
        loss.backward()
        clip_gradients(self.model, self.flags.clip)
        self.optimizer.step()
        return loss.detach()
