"""Several processes that train one model, on the GPUs of one machine or of several.

    torchrun --nproc_per_node 2 train_lm.py --data speeches

All draw the same batch, each computes its rows, and the gradients are summed. Rank 0 writes.
"""

import os
import time

import torch
import torch.distributed as dist

from data.batching import generator


def rank():
    """Return the number of this process, from 0."""
    return int(os.environ.get("RANK", 0))


def size():
    """Return the number of processes."""
    return int(os.environ.get("WORLD_SIZE", 1))


def start():
    """Join the other processes, on a GPU of one's own where there is one."""
    if size() > 1:
        own_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        dist.init_process_group("cpu:gloo,cuda:nccl" if own_gpu else "gloo")


def end():
    """Leave the other processes."""
    if dist.is_initialized():
        time.sleep(0.1)  # gloo's threads still free the last tensors, and would wait for this one
        dist.destroy_process_group()


def keep_rank_0():
    """End all processes but rank 0, which continues alone to draw and print."""
    if size() > 1:
        dist.barrier()
    end()
    if rank():
        raise SystemExit(0)


def all_sum(tensor):
    """Sum a tensor over all processes, in place; all of them must call."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def my_share(batches):
    """Return this process's part of a list of batches to evaluate."""
    return batches[rank() :: size()]


def from_rank_0(make):
    """Return what make() returns in rank 0. If it raises there, the other processes exit."""
    if not dist.is_initialized():
        return make()
    sent = [None]
    try:
        if rank() == 0:
            sent = [[make()]]
    finally:
        dist.broadcast_object_list(sent)
    if sent[0] is None:
        raise SystemExit(2)
    return sent[0][0]


def copy_from_rank_0(model):
    """Give the model of every process the weights of rank 0."""
    if dist.is_initialized():
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


def micro_batches(labels, accumulate, seed, step, members=1):
    """Yield this process's `accumulate` parts of a batch: (indices of rows, their labels). labels
    (M * B, T): B rows for each of M members, of which each part has equally many. A process without
    rows gets one without targets, so that it has gradients to sum."""
    n = size() * accumulate
    if n == 1:
        yield slice(None), labels
        return
    if size() > 1:  # so that ranks differ in their dropout
        torch.manual_seed(generator(seed, "dropout", step, rank()).initial_seed())
    rows = torch.arange(len(labels)).view(members, -1)  # (M, B)
    for part in rows.tensor_split(n, dim=1)[rank() * accumulate : (rank() + 1) * accumulate]:
        chosen = (part if part.numel() else rows[:, :1]).flatten()
        yield chosen, labels[chosen] if part.numel() else torch.full_like(labels[chosen], -100)


def sum_gradients(model):
    """Add up the gradients of all processes, in one message. Each divided its loss by the number of
    targets in the whole batch, so the sum is the gradient of the whole batch."""
    if dist.is_initialized():
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(parts, gradients)])
