"""Compare tensors, and show the first place where they differ as text."""

import torch

HIDDEN = -1e4  # a score below this hides a key as -inf does
EXACT, RANDOM = 1e-4, 0.03  # tolerances; random is what a watcher measured, "the share of ..."
WINDOW = 6  # rows and columns of a picture


def first_difference(found, right):
    """Compare {name: tensor} with the right one. Return None, or a sentence and a picture.

    Attention weights come first, since a wrong output follows from them.
    """
    for name in sorted(right, key=lambda name: name != "weights"):
        expected = right[name]
        mine = found[name]
        tolerance = RANDOM if " " in name else EXACT
        if mine.shape != expected.shape:
            return f"{name} has shape {tuple(mine.shape)}, expected {tuple(expected.shape)}", ""
        if kind(mine) != kind(expected):
            return f"{name} has dtype {mine.dtype}, expected {expected.dtype}", ""
        a, b = comparable(mine), comparable(expected)
        close = torch.isclose(a, b, tolerance, tolerance, equal_nan=True)
        if not close.all():
            index = tuple((~close).nonzero()[0].tolist())
            alike = written(mine[index], ".4g") == written(expected[index], ".4g")
            digits = ".9g" if alike else ".4g"
            values = f"{written(mine[index], digits)}, expected {written(expected[index], digits)}"
            if not index:
                return f"{name} is {values}{why_nan(mine)}", ""
            many = f"{(~close).sum().item()} of {close.numel()} numbers differ"
            sentence = f"{name}{list(index)} is {values} ({many}){why_nan(mine[index])}"
            return sentence, picture(name, mine, expected, close, index)
    return None


def kind(tensor):
    if tensor.dtype == torch.bool:
        return "bool"
    return "float" if tensor.is_floating_point() else "int"


def comparable(tensor):
    hidden = (tensor <= HIDDEN) & (kind(tensor) == "float")
    return tensor.double().masked_fill(hidden, -torch.inf)


def written(number, digits):
    value = number.item()
    return f"{value + 0.0:{digits}}" if isinstance(value, float) else str(value)  # 0.0: not -0


def why_nan(number):
    found = number != number
    return ". NaN comes from 0 / 0, 0 * inf or a softmax over nothing but -inf" * found.item()


def picture(name, mine, right, close, index):
    """Return the surroundings of a place in both tensors as text; * marks what differs."""
    row, column = (0, *index)[-2:]
    top, left = max(0, row - WINDOW // 2), max(0, column - WINDOW // 2)
    matrices = [t[index[:-2]] if t.dim() > 1 else t[None] for t in (right, mine, close)]
    below, beyond = matrices[0].size(0) > top + WINDOW, matrices[0].size(1) > left + WINDOW
    right, mine, close = (t[top : top + WINDOW, left : left + WINDOW] for t in matrices)

    def lines(matrix, same):
        rows = [
            [written(number, ".3f") + (" " if ok else "*") for number, ok in zip(*pair)]
            for pair in zip(matrix, same)
        ]
        width = max(len(cell) for row in rows for cell in row) + 1
        text = ["".join(cell.rjust(width) for cell in row) + "  …" * beyond for row in rows]
        return text + ["…".rjust(width - 1)] * below

    place = [name + "".join(f"[{i}]" for i in index[:-2])]
    place += [f"rows from {top}"] * (top > 0) + [f"columns from {left}"] * (left > 0)
    shown = f" ({', '.join(place)})" if len(index) > 2 or len(place) > 1 else ""
    expected = ["  expected", *lines(right, torch.ones_like(close))]
    yours = [f"  yours{shown}", *lines(mine, close)]
    width = max(map(len, expected))
    return "\n".join(f"  {a.ljust(width)}  |{b}" for a, b in zip(expected, yours))
