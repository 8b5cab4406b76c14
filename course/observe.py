"""Call a student's function with the inputs of a case, and return its outputs as tensors."""

import torch

from course import watch


def observe(function, task, args):
    """Return {output: tensor}: what a function gives in a case. Raises watch.Wrong for a result
    that is not a tensor, and for inputs changed in place."""

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

    return watched(ask, task, args)


def get_gradients(function, task, args):
    """Return {argument: gradient} of the sum of the first output in a case."""
    found = {}

    def ask(*args):
        leaves = [value.clone().requires_grad_() if real(value) else value for value in args]
        inputs = {name: leaf for name, leaf in zip(task["arguments"], leaves) if real(leaf)}
        found.update((name, torch.zeros_like(leaf)) for name, leaf in inputs.items())
        result = function(*map(copied, leaves))  # copies may be changed in place, leaves may not
        first = result[0] if isinstance(result, (list, tuple)) else result
        if inputs and torch.is_tensor(first) and first.requires_grad:
            given = torch.autograd.grad(first.sum(), inputs.values(), materialize_grads=True)
            found.update(zip(inputs, given))
        return named(result, task["outputs"])

    with torch.enable_grad():
        watched(ask, task, args)
    return found


def watched(ask, task, args):
    """Return what the watcher of a task makes of a case. Random numbers are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(watch, task["watcher"])(ask, *args)


def real(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


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
