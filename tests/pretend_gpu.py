"""A pretend GPU: tensors on the device "meta" that hold real numbers.

    with PretendGPU() as gpu:
        model.to("meta")        # its numbers stay
        gpu.waits.clear()
        ...                     # gpu.waits: what would have made the host wait for a real GPU

Mixing tensors of both devices raises RuntimeError, as on a GPU.
"""

import traceback

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

aten = torch.ops.aten
META = torch.device("meta")
# What a GPU computes, and the host needs to go on: a number, or the size of a result
WAITING = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.item}
COPIES = {aten._to_copy, aten.copy_}


class OnGPU(torch.Tensor):
    """A tensor that reports the device "meta"; its numbers are in `here`."""

    @staticmethod
    def __new__(cls, here):
        about = dict(strides=here.stride(), dtype=here.dtype, device=META)
        return torch.Tensor._make_wrapper_subclass(cls, here.size(), **about)

    def __init__(self, here):
        self.here = here

    def __repr__(self):
        return f"OnGPU({self.here})"

    def tolist(self):
        return self.cpu().tolist()  # torch has none for such a class

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} on the pretended GPU outside of `with PretendGPU()`")


class PretendGPU(TorchDispatchMode):
    """While it is entered, the device "meta" computes. waits: [(operation, line of code)]."""

    def __init__(self):
        super().__init__()
        self.waits, self.pinned = [], WeakIdKeyDictionary()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, packet = dict(kwargs or {}), func.overloadpacket
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        if packet in (aten.is_pinned, aten._pin_memory):
            return self.pin(args[0]) if packet is aten._pin_memory else args[0] in self.pinned
        on_gpu = [isinstance(t, OnGPU) for t in tensors]
        moves = packet in COPIES
        if any(on_gpu) and not moves:
            self.check_devices(packet, tensors)
        asked = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        if "device" in kwargs:
            kwargs["device"] = None if packet is aten._to_copy else torch.device("cpu")
        kwargs.pop("pin_memory", None)
        if packet in WAITING and any(on_gpu):
            self.note(packet)
        found = func(*tree_map(numbers, args), **tree_map(numbers, kwargs))
        if packet is aten.copy_:
            if on_gpu[0] != on_gpu[1]:
                self.note_copy(packet, args[1], args[2] if len(args) > 2 else False)
            return args[0]
        if packet is aten._to_copy and asked is not None and (asked.type == "meta") != on_gpu[0]:
            self.note_copy(packet, args[0], kwargs.get("non_blocking", False))
        to_gpu = asked.type == "meta" if asked is not None else any(on_gpu)
        if func._schema.is_mutable and func._schema.name.endswith("_"):
            return args[0] if func._schema.returns else None
        return tree_map_only(torch.Tensor, OnGPU, found) if to_gpu else found

    def pin(self, source):
        """Return a pinned copy with the same strides, as a GPU's driver makes it."""
        same = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype)
        found = same.copy_(source)  # raises RuntimeError for strides of 0
        self.pinned[found] = True
        return found

    def check_devices(self, packet, tensors):
        """Raise RuntimeError if tensors of both devices meet, except for single numbers."""
        for tensor in tensors:
            index = packet in (aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_)
            if not isinstance(tensor, OnGPU) and tensor.dim():
                if not index:
                    raise RuntimeError(f"{packet}: tensors on cpu and on the GPU are mixed")
                self.note(packet)  # the index is copied
            if index and tensor.dtype == torch.bool:
                self.note(packet)

    def note_copy(self, packet, source, non_blocking):
        """A copy is waited for unless it leaves pinned memory and nobody asked to wait."""
        pinned = source in self.pinned and source.is_contiguous()
        if isinstance(source, OnGPU) or not (non_blocking and pinned):
            self.note(packet)

    def note(self, packet):
        lines = [f for f in traceback.extract_stack() if "site-packages" not in f.filename]
        ours = [f for f in lines if "pretend_gpu" not in f.filename]
        self.waits.append((str(packet), f"{ours[-1].filename}:{ours[-1].lineno} {ours[-1].line}"))


def numbers(value):
    return value.here if isinstance(value, OnGPU) else value
