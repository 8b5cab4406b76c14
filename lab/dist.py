"""Several processes that train one model, on the GPUs of one machine or of several.

    torchrun --nproc_per_node 2 train_lm.py --data speeches

All draw the same batch, each computes its rows, and the gradients are summed. Rank 0 writes. With
one process, every function here does nothing or returns its argument.
"""

import os
import time

import torch
import torch.distributed as dist

from data.batching import generator
from data.files import UserError

# What torchrun tells each process
VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def rank():
    """Return the number of this process, from 0."""
    if size() == 1:
        return 0
    return int(os.environ["RANK"])


def size():
    """Return the number of processes that torchrun started, or 1."""
    if all(name in os.environ for name in VARIABLES):
        return int(os.environ["WORLD_SIZE"])
    return 1


def start():
    """Join the other processes, each on a GPU of its own if there are enough. Raises UserError if
    WORLD_SIZE promises other processes and torchrun has not started this one."""
    if size() == 1:
        n = os.environ.get("WORLD_SIZE", "1")
        if n not in ("", "0", "1"):
            raise UserError(f"WORLD_SIZE is {n}: start with torchrun, or unset WORLD_SIZE")
        return
    n_gpus = torch.cuda.device_count()
    if n_gpus > 0:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % n_gpus)
    backend = "gloo"
    if n_gpus >= int(os.environ["LOCAL_WORLD_SIZE"]):
        backend = "cpu:gloo,cuda:nccl"  # nccl does not let two processes share a GPU
    dist.init_process_group(backend)


def end():
    """Leave the other processes."""
    if dist.is_initialized():
        time.sleep(0.1)  # gloo's threads still free the last tensors, and would wait for this one
        dist.destroy_process_group()


def wait_for_all():
    """Wait until all processes have called this."""
    if dist.is_initialized():
        dist.barrier()


# ------------------------------------------------------------------------------ what they exchange


def all_sum(tensor):
    """Sum a tensor over all processes, in place; all of them must call."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def in_any(condition):
    """Return whether a condition holds in any process; all of them must call."""
    return all_sum(torch.tensor(int(condition))).item() > 0


def from_rank_0(make):
    """Return what make() returns in rank 0. If it raises there, the other processes exit."""
    if not dist.is_initialized():
        return make()
    message = [False, None]  # whether make() succeeded, and its result; the others receive into it
    try:
        if rank() == 0:
            message = [True, make()]
    finally:  # also after an error, else the others would wait
        dist.broadcast_object_list(message)
    succeeded, result = message
    if not succeeded:
        raise SystemExit(2)
    return result


def copy_from_rank_0(model):
    """Give the model of every process the weights of rank 0."""
    if dist.is_initialized():
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


# ------------------------------------------------------------------------------- sharing the work


def my_share(batches):
    """Return this process's part of a list of batches to evaluate."""
    return batches[rank() :: size()]


def seed_dropout(seed, step):
    """Reseed the random numbers, so that processes differ in their dropout. All were seeded alike,
    for the same initial weights."""
    if size() > 1:
        torch.manual_seed(generator(seed, "dropout", step, rank()).initial_seed())


def my_parts(targets, accumulate=1, members=1):
    """Yield (rows, their targets) for each part of the batch that this process computes.

    targets (M * B, T) has B rows for each of M members. The B rows are cut into `accumulate` parts
    for each process. rows: indices of a part's rows, of each member equally many.
    """
    n_parts = size() * accumulate
    if n_parts == 1:
        yield slice(None), targets  # the whole batch, without a copy
        return
    rows_of_members = torch.arange(len(targets)).view(members, -1)  # (M, B)
    parts = rows_of_members.tensor_split(n_parts, dim=1)
    first = rank() * accumulate
    for part in parts[first : first + accumulate]:
        if part.numel() > 0:
            rows = part.flatten()
            yield rows, targets[rows]
        else:  # fewer rows than parts: read a row without targets, to have gradients to sum
            rows = rows_of_members[:, :1].flatten()
            yield rows, torch.full_like(targets[rows], -100)


def sum_gradients(model):
    """Add up the gradients of all processes, in one message. Each divided its loss by the number of
    targets in the whole batch, so the sum is the gradient of the whole batch."""
    if not dist.is_initialized():
        return
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    message = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(message)
    parts = message.split([gradient.numel() for gradient in gradients])
    sums = [part.view_as(gradient) for part, gradient in zip(parts, gradients)]
    torch._foreach_copy_(gradients, sums)  # one kernel for all
