"""A training step as a CUDA graph: Python is slow to start the kernels of small models."""

import torch

from data.batching import send
from lab import dist
from lab.flags import require


class Graph:
    """A function of tensors of fixed shapes, and of numbers. The fourth call records its kernels,
    later ones replay them. Raises UserError without CUDA and if the function splits its batch."""

    def __init__(self, function, device, n_parts):
        fits = device.type == "cuda" and dist.size() * n_parts == 1
        require(fits, "--graph: needs CUDA and one process, without --accumulate; leave it out")
        self.function, self.device, self.calls = function, device, 0

    def __call__(self, *inputs):
        inputs, self.calls = [send(torch.as_tensor(x), self.device) for x in inputs], self.calls + 1
        if self.calls < 4:  # until libraries are loaded and the optimizer has its state
            return self.function(*inputs)
        if self.calls == 4:
            self.inputs, self.graph = inputs, torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.output = self.function(*inputs)
        for kept, new in zip(self.inputs, inputs):
            kept.copy_(new)
        self.graph.replay()
        return self.output.clone()
