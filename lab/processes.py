"""Several processes that train one model, on the GPUs of one machine or of several.

    torchrun --nproc_per_node 2 train_lm.py --data speeches

torchrun starts the script once per GPU and tells each process its rank in environment variables.
All processes draw the same batch, a function of seed and step. Each computes its rows, and the
gradients are summed, so the number of processes changes the speed and not the result. Only rank 0
prints and writes. With one process, everything here is a no-op.
"""

import datetime
import os
import time

import torch
import torch.distributed as dist

from data.batching import generator

JOIN = datetime.timedelta(minutes=5)  # how long to wait for the other processes to start

store = None  # shared by all processes as soon as one has called `meet`


# ---------------------------------------------------------------------------- ranks


def rank():
    """Return the number of this process, from 0."""
    return int(os.environ.get("RANK", 0))


def local_rank():
    """Return the number of this process on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", 0))


def size():
    """Return the number of processes."""
    return int(os.environ.get("WORLD_SIZE", 1))


def local_size():
    """Return the number of processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def is_rank_0():
    """Return whether this is the process that prints and writes."""
    return rank() == 0


def launcher():
    """Return the words of the command line before the script: ["python"] or ["torchrun", ...]."""
    if size() == 1:
        return ["python"]
    machines = size() // local_size()
    nodes = [f"--nnodes={machines}"] if machines > 1 else []
    return ["torchrun", *nodes, f"--nproc_per_node={local_size()}"]


def meet(timeout):
    """Return the key-value store at the address that torchrun gave to all processes."""
    global store
    if store is None:
        store, *_ = next(dist.rendezvous("env://", timeout=timeout))
    return store


def start(timeout):
    """Join the other processes; afterwards none waits longer than `timeout` seconds for another.
    Raises RuntimeError if they do not join."""
    own_gpu = torch.cuda.device_count() >= local_size()  # nccl refuses to share one
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if own_gpu else "gloo",
        store=meet(JOIN),
        rank=rank(),
        world_size=size(),
        timeout=datetime.timedelta(seconds=timeout),
    )


def end():
    """Leave the other processes."""
    global store
    if dist.is_initialized():
        # Gloo's threads still free the last tensors and need the interpreter for it. Destroying
        # the group meanwhile would make each wait for the other.
        time.sleep(0.1)
        dist.destroy_process_group()
    store = None


def keep_rank_0():
    """End all processes but rank 0, which continues alone to draw and print."""
    end()
    if not is_rank_0():
        raise SystemExit(0)


# ---------------------------------------------------------------------------- sums and copies


def all_sum(tensor):
    """Sum a tensor over all processes, in place; all of them must call."""
    if size() > 1:
        dist.all_reduce(tensor)
    return tensor


def my_share(batches):
    """Return this process's part of a list of batches to evaluate."""
    return batches[rank() :: size()]


def from_rank_0(make):
    """Return what make() returns in rank 0: tensors, numbers, text, lists and dictionaries.

    If it raises there, rank 0 raises and the others exit.
    """
    if size() == 1:
        return make()
    sent = [None]  # becomes [[value]] unless make() raises: the value itself may be None
    try:
        if is_rank_0():
            sent = [[make()]]
    finally:
        dist.broadcast_object_list(sent)
    if sent[0] is None:
        raise SystemExit(2)
    return sent[0][0]


# ---------------------------------------------------------------------------- one step


def micro_batches(flags, step, labels, members=1):
    """Yield the micro-batches of this process, one for each of the --accumulate parts: (indices of
    rows, labels of these rows).

    labels (M * B, T) hold B rows for each of the M members of an ensemble. Each micro-batch holds
    equally many rows of every member. One process and one part: all rows at once. A process
    without rows gets a row without targets, so that it has gradients to sum. With several
    processes, dropout depends on seed, step and rank.
    """
    n = size() * flags.accumulate
    if n == 1:
        yield slice(None), labels
        return
    if size() > 1:
        torch.manual_seed(generator(flags.seed, "dropout", step, rank()).initial_seed())
    rows = torch.arange(len(labels)).view(members, -1)  # (M, B)
    mine = slice(rank() * flags.accumulate, (rank() + 1) * flags.accumulate)
    for part in rows.tensor_split(n, dim=1)[mine]:
        chosen = (part if part.numel() else rows[:, :1]).flatten()
        yield chosen, labels[chosen] if part.numel() else torch.full_like(labels[chosen], -100)


def sum_gradients(model):
    """Add up the gradients of all processes, in one message; with one process, do nothing.

    If every process divides its loss by the number of targets in the whole batch, the sum is the
    gradient of the whole batch.
    """
    if size() == 1:
        return
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    totals = flat.split([gradient.numel() for gradient in gradients])
    totals = [total.view_as(gradient) for total, gradient in zip(totals, gradients)]
    torch._foreach_copy_(gradients, totals)  # all in one kernel


def copy_from_rank_0(model):
    """Give the model of every process the weights of rank 0."""
    if size() > 1:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


# ---------------------------------------------------------------------------- failing


def is_lost_peer(error):
    """Return whether an error comes from waiting for a process that has ended."""
    if size() == 1 or not isinstance(error, RuntimeError):
        return False
    words = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "timed out")
    named = any(word in str(error).lower() for word in words)
    return named or isinstance(error, dist.DistError)


def first_to_fail():
    """Return whether no other process has failed before, so that an error is printed once."""
    if size() == 1:
        return True
    try:
        return meet(datetime.timedelta(seconds=10)).add("failed", 1) == 1
    except RuntimeError:  # the process that kept the store has ended
        return True
