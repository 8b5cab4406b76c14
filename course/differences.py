"""Compare what a function returned with what it should return, or with what a mistake returns."""

import functools

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


# ------------------------------------------------------------------------------------- sketches
# What mistakes return is kept as a sketch: a few numbers that differ where the results differ.
# Even thousands of pairs of mistakes take little space.

N_DIRECTIONS = 3  # of each tensor, that many weighted sums of its numbers are kept


def sketch(results, expected):
    """Return (K,) numbers on {name: tensor}. Those of two results differ by less than 1 if the
    results are equal within the tolerance. K depends on the right results, `expected`, alone."""
    parts = []
    for name in expected:
        is_sentence = " " in name
        if name not in results:  # a measure can return less
            size = 2 + N_DIRECTIONS
            if is_sentence:
                size = 1
            parts.append(torch.full((size,), -99.0))
        elif is_sentence:  # of a measure, with one number
            value = as_double(results[name]).flatten().nan_to_num(nan=77)
            parts.append(value.sign() * value.abs().log1p() / RANDOM)
        else:
            parts.append(sketch_tensor(results[name].detach()))
    return torch.cat(parts).float()


def sketch_tensor(tensor):
    """Return numbers on a tensor, in units of EXACT: shape, dtype, size and weighted sums."""
    code = sum(2**n for n, holds in enumerate(kind(tensor)) if holds)
    for size in tensor.shape:
        code = (code * 131 + size + 1) % 65521  # a prime number
    values = as_double(tensor).flatten()
    values = values.nan_to_num(nan=3.7, posinf=7.1, neginf=-5.3)
    scale = 1 + values.square().mean().sqrt()
    sums = weights_of_sums(len(values)) @ values / len(values) ** 0.5 / scale
    return torch.cat([torch.tensor([2.0 * code]), scale.log()[None] / EXACT, sums / EXACT])


@functools.cache
def weights_of_sums(n):
    """Return (N_DIRECTIONS, n) numbers that look random but are the same on every machine."""
    i = torch.arange(n, dtype=torch.float64)
    factors = 0.6180339887 + torch.arange(N_DIRECTIONS, dtype=torch.float64)[:, None] / 7
    return ((i + 1) * (i + 7) * factors) % 1 - 0.5


def find_same(sketches, mine):
    """Return which of the sketches (M, K) agree with one, (M,) bool. NaN is like no other."""
    return ((sketches - mine).abs() < 1).all(1)
