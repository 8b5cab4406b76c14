"""One training in several processes: on the cards of a machine, or of many machines.
Alone, every function here does next to nothing.

    torchrun --nproc_per_node 2 train_lm.py --data speeches

starts the script once for each card and tells each by environment variables who it is. All draw the same global batch
of a step, a function of seed and step; each reads its rows of it, and the gradients are added up, divided by the number
of targets in the whole batch. So the number of processes changes the speed and not the result.
The first process alone prints and writes.
"""

import contextlib
import datetime
import io
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from data import batching

JOIN = datetime.timedelta(minutes=5)  # how long to wait for the others to start

store = None  # key and value, shared by all processes; there is one before there is a group


# ---------------------------------------------------------------------------- who is there


def rank():
    """Which of the processes this is, from 0."""
    return int(os.environ.get("RANK", 0))


def local_rank():
    """Which of this machine's processes this is: the number of its card."""
    return int(os.environ.get("LOCAL_RANK", 0))


def size():
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", 1))


def first():
    """Whether this is the process that prints and writes."""
    return rank() == 0


def local_size():
    """How many of them share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def launcher():
    """The words of the command line in front of the script's name."""
    machines = size() // local_size()
    return (
        ["python"]
        if size() == 1
        else [
            "torchrun",
            *([f"--nnodes={machines}"] if machines > 1 else []),
            f"--nproc_per_node={local_size()}",
        ]
    )


def meet(timeout):
    """The store at the address all were told."""
    global store
    if store is None:
        store, *_ = next(dist.rendezvous("env://", timeout=timeout))
    return store


def start(timeout):
    """Join the other processes, if there are any; from then on one that waits `timeout` seconds for another gives up.
    RuntimeError when they do not come."""
    if size() > 1:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(
            backend,
            store=meet(JOIN),
            rank=rank(),
            world_size=size(),
            timeout=datetime.timedelta(seconds=timeout),
        )


def leave():
    """Part from the others, all at the same place.
    Whether this process has nothing more to do: the first goes on alone, to draw and to print."""
    end()
    return not first()


def end():
    global store
    if dist.is_initialized():
        # Gloo's threads are still freeing the last tensors, which takes the interpreter;
        # a group destroyed meanwhile would wait for them, and they for it
        time.sleep(0.1)
        dist.destroy_process_group()
    store = None


# ---------------------------------------------------------------------------- sums and copies


def add(tensor):
    """The tensor, summed in place over all processes; all of them must call."""
    if size() > 1:
        dist.all_reduce(tensor)
    return tensor


def mine(batches):
    """This process's share of a list of batches to evaluate; `add` makes the sums over all of them."""
    return batches[rank() :: size()]


def anywhere(flag):
    """Whether the flag is set in any process; all of them must call. Waits for the others, but for no card."""
    return bool(add(torch.tensor(int(flag))))


def from_first(make):
    """What make() returns in the first process, in all of them: tensors, numbers, text, and lists and dictionaries of these.

    When it raises there, that process says why, and the others end.
    """
    if size() == 1:
        return make()
    sent, error = {"value": None}, None
    if first():
        try:
            sent["value"] = make()
        except BaseException as caught:
            sent, error = {}, caught
    buffer = io.BytesIO()
    if first():
        torch.save(sent, buffer)
    length = torch.tensor(buffer.getbuffer().nbytes)
    dist.broadcast(length, 0)
    content = (
        torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
        if first()
        else torch.empty(int(length), dtype=torch.uint8)
    )
    dist.broadcast(content, 0)
    if error:
        raise error
    if not first():
        sent = torch.load(io.BytesIO(content.numpy()), map_location="cpu", weights_only=True)
    if "value" not in sent:
        raise SystemExit(2)
    return sent["value"]


# ---------------------------------------------------------------------------- one step


class Loss(torch.nn.Module):
    """A model's loss as a forward pass, since that is where DistributedDataParallel prepares to gather the gradients."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *batch, **more):
        loss = self.model.loss(*batch, **more)
        # The same value with `size` times the gradient, because gradients will be averaged
        return loss + (size() - 1) * (loss - loss.detach())


def spread(model, some_unused=False):
    """model.loss; with several processes one whose backward pass adds up the gradients of all of them, so that a loss
    divided by the number of targets in the whole batch gives the gradient of the whole batch.
    Their weights become those of the first.

    some_unused: there are steps in which some of the parameters take no part.
    """
    if size() == 1:
        return model.loss
    return DistributedDataParallel(
        Loss(model), find_unused_parameters=some_unused, gradient_as_bucket_view=True
    )


def parts(loss, labels, flags, step, members=1):
    """What this process reads of a step's batch, in flags.accumulate parts: pairs of (rows, labels of these rows), to
    be used in a loop that computes `loss` (of `spread`) and its backward pass. labels (M * B, T) hold B rows for each
    of M members of an ensemble; so does each part.

    Alone and in one part that is everything as it is. A process for which no row is left reads one without targets,
    since all must take part in adding up the gradients.
    With several processes the dropout of each is drawn from (seed, step, rank).
    """
    n = size() * flags.accumulate
    if n == 1:
        yield slice(None), labels
        return
    if size() > 1:
        torch.manual_seed(batching.generator(flags.seed, "dropout", step, rank()).initial_seed())
    rows = torch.arange(len(labels)).view(members, -1)  # (M, B)
    shares = rows.tensor_split(n, dim=1)[
        rank() * flags.accumulate : (rank() + 1) * flags.accumulate
    ]
    for k, share in enumerate(shares, start=1):
        chosen = (share if share.numel() else rows[:, :1]).flatten()
        wanted = labels[chosen] if share.numel() else torch.full_like(labels[chosen], -100)
        with loss.no_sync() if size() > 1 and k < len(shares) else contextlib.nullcontext():
            yield chosen, wanted


# ---------------------------------------------------------------------------- failing


def has_lost_another(error):
    """Whether a RuntimeError comes from waiting for a process that has gone."""
    words = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "timed out")
    return size() > 1 and (
        isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)
    )


def first_to_fail():
    """Whether no other process has failed before this one,
    so that a mistake all make, or one that ends them all, is told once."""
    if size() == 1:
        return True
    try:
        return meet(datetime.timedelta(seconds=10)).add("failed", 1) == 1
    except RuntimeError:  # it was kept by a process that has gone
        return True
