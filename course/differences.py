"""Compare what a function returned with what it should return."""

import torch

EXACT = 1e-4  # tolerance of numbers, absolute and relative
RANDOM = 0.03  # of what a measure returns: over 7 standard errors
LOW = -1e4  # a score below this hides a key, as -inf does


def first_difference(results, expected):
    """Compare {name: tensor} with the right one. Return None, or a sentence and the numbers."""
    # Weights come first: if they are wrong, the output is wrong too
    for name in sorted(expected, key=lambda name: name != "weights"):
        difference = compare(name, results[name].detach(), expected[name].detach())
        if difference:
            return difference
    return None


def compare(name, mine, right):
    """Return None if two tensors are equal within the tolerance, else a sentence and numbers."""
    if mine.shape != right.shape:
        return f"{name} has shape {tuple(mine.shape)}, expected {tuple(right.shape)}", ""
    if kind(mine) != kind(right):
        return f"{name} has dtype {mine.dtype}, expected {right.dtype}", ""
    tolerance = EXACT
    if " " in name:  # a sentence of a measure
        tolerance = RANDOM
    close = torch.isclose(as_double(mine), as_double(right), tolerance, tolerance, equal_nan=True)
    if close.all():
        return None
    index = tuple((~close).nonzero()[0].tolist())
    sentence = f"{name}{list(index) or ''} is {show(mine[index])}, expected {show(right[index])}"
    if index:
        sentence += f" ({(~close).sum()} of {close.numel()} numbers differ)"
    matrix = index[:-2]  # the first wrong number stands in this one
    return sentence, f"expected\n{right[matrix]}\nyours\n{mine[matrix]}"


def kind(tensor):
    """Return which of bool, integer and float a tensor is; their sizes may differ."""
    return tensor.dtype == torch.bool, tensor.is_floating_point()


def as_double(tensor):
    tensor = tensor.double()
    return tensor.masked_fill(tensor <= LOW, -torch.inf)


def show(number):
    return f"{number.item() + 0.0:.5g}"  # + 0.0: not -0
