"""Call a student's function with the inputs of a case, and return its outputs as tensors."""

import torch

from course import watch


def observe(function, task, args):
    """Return {output: tensor}: what a function gives in a case. Random numbers are the same in each
    call. Raises watch.Wrong for a result that is no tensor, and for inputs changed in place."""

    def ask(*args):
        given = copied(args)
        result = function(*given)
        for argument, before, after in zip(task["arguments"], args, given):
            if changed(before, after):
                copy = f"{argument}.clone()" if torch.is_tensor(before) else "a copy of it"
                raise watch.Wrong(
                    f"changes its input {argument} in place, and the caller still needs it. "
                    f"Work on {copy}, or write x = x + y instead of x += y."
                )
        return named(result, task["outputs"])

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(watch, task["watcher"])(ask, *args)


def get_gradients(function, task):
    """Return the names of the arguments that get a gradient from the first output in the first
    case; [] for a function that a watcher calls in another way."""
    given = dict(zip(task["arguments"], copied(task["cases"][0])))
    if task["watcher"] not in ("call", "dropout"):
        return []
    floats = {n: a for n, a in given.items() if torch.is_tensor(a) and a.is_floating_point()}
    with torch.enable_grad():
        result = function(*(a.requires_grad_() if n in floats else a for n, a in given.items()))
        result = result[0] if isinstance(result, (list, tuple)) else result
        if not (torch.is_tensor(result) and result.requires_grad):
            return []
        found = torch.autograd.grad(result.sum(), floats.values(), allow_unused=True)
    return [name for name, gradient in zip(floats, found) if gradient is not None]


def copied(value):
    if isinstance(value, (list, tuple)):
        return type(value)(copied(each) for each in value)
    return value.clone() if isinstance(value, torch.Tensor) else value


def changed(before, after):
    if isinstance(before, (list, tuple)):
        return len(before) != len(after) or any(map(changed, before, after))
    return isinstance(before, torch.Tensor) and not torch.equal(before, after)


def named(result, names):
    """Return {output: tensor} of what a function returned. Raises watch.Wrong."""
    several = isinstance(result, (list, tuple))
    parts = result if several else [result]
    if isinstance(result, list) and len(names) == 1:
        raise watch.Wrong("returns a list, expected a torch.Tensor")
    if result is None:
        raise watch.Wrong("returns None. Does it end with `return`?")
    if len(parts) != len(names):
        given = "one value" if len(parts) == 1 else f"{len(parts)} values"
        raise watch.Wrong(f"returns {given}, expected {len(names)} ({', '.join(names)})")
    found = {}
    for name, part in zip(names, parts):
        part = torch.tensor(part) if isinstance(part, (bool, int, float)) else part
        if not isinstance(part, torch.Tensor) or part.is_complex():
            kind = f"{type(part).__module__}.{type(part).__name__}".removeprefix("builtins.")
            raise watch.Wrong(f"returns {name} as {kind}, expected a torch.Tensor of real numbers")
        found[name] = part.detach().cpu().to_dense().clone()
    return found
