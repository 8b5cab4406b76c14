"""Copy tensors from the CPU to the device that computes."""

import torch

GPUS = ("cuda",)  # they keep computing while the host prepares the next batch


def device_of(model):
    """Return the device of a model's weights."""
    return next(model.parameters()).device


def is_gpu(device):
    return torch.device(device).type in GPUS


def send(tensor, device):
    """Copy a tensor to a device. For a GPU it is pinned first, so the CPU does not have to wait."""
    if is_gpu(device) and tensor.device.type == "cpu":
        tensor = tensor.contiguous().pin_memory()  # strides of 0 cannot be pinned
    return tensor.to(device, non_blocking=True)


def send_all(tensors, device):
    """Copy the tensors of a dictionary."""
    return {name: send(tensor, device) for name, tensor in tensors.items()}


def send_mask(mask, device):
    """Copy a mask (B, T), or return None for a GPU if it hides nothing: flash attention takes no
    mask."""
    return None if is_gpu(device) and mask.all() else send(mask, device)
