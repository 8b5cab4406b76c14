"""Say in plain words how a function was called, and why it fails."""

import re
import traceback
from textwrap import shorten

import torch

PLAIN = {  # a pattern of a message of Python or PyTorch: what a student reads instead
    r"tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at .*dimension (\d+)": (
        r"sizes \1 and \2 do not broadcast (dimension \3 of the result). Shapes are aligned at "
        r"their last dimension, and sizes must be equal or 1; x[:, None] inserts a 1."
    ),
    r"expanded size of the tensor .* Target sizes: (\[.*\]). +Tensor sizes: (\[.*\])": (
        r"a tensor of shape \2 does not fit into the shape \1."
    ),
    r"shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)": (
        r"(\1, \2) @ (\3, \4): the inner sizes \2 and \3 must be equal. Transpose one of them?"
    ),
    r"first two dimensions of batch2 tensor to be: \[(\d+), (\d+)\] but got: \[\1, (\d+)\]": (
        r"(..., \2) @ (..., \3, ...): the inner sizes \2 and \3 must be equal. Transpose with .mT?"
    ),
    r"shape '(\[.*\])' is invalid for input of size (\d+)": (
        r"a tensor of \2 numbers does not fit into the shape \1."
    ),
    r"view size is not compatible": (
        r"view needs the numbers in the order of memory, unlike after transpose. Use reshape."
    ),
    r"shape mismatch: value tensor of shape (\[.*\]) .* indexing result of shape (\[.*\])": (
        r"x[places] = values needs \2 values, one for each place, not \1. Write values[places], or "
        r"torch.where(places, values, x)."
    ),
    r"shape of the mask (\[.*\]) at index .* the shape of the indexed tensor (\[.*\])": (
        r"x[mask] does not broadcast \1 to \2. Use masked_fill, which does."
    ),
    r"Boolean value of Tensor with more than one value": (
        r"`if`, `and`, `or`, `not` and a < x < b need one True or False, and this tensor has "
        r"several. Use torch.where, &, | or ~; or `if x is not None`."
    ),
    r"bitwise_\w+\W not implemented for 'Float'": (
        r"& and | bind more tightly than < and ==. Write (a < b) & (c == d)."
    ),
    r"only integer tensors of a single element": (
        r"one whole number is expected here, not a tensor of several or of real numbers. To join "
        r"tensors of equal shape use torch.stack, not torch.tensor."
    ),
    r"expected sequence of length (\d+) at dim \d+ \(got (\d+)\)": (
        r"torch.tensor needs rows of equal length, and these have \1 and \2. Pad them first."
    ),
    r"ints?, ?(not|but got|but found element of type) float|'float' object cannot be interpreted|"
    r"slice indices must be|(zeros|ones|randn?|empty|reshape|expand)\(\) takes 1 positional|"
    r"(zeros|ones|randn?|empty|view)\(\) received an invalid": (
        r"a size or an index must be a whole number. Divide with //, not with /."
    ),
    r"only one element tensors|cannot be converted to Scalar": (
        r"a single number is expected here, not a tensor of several. Use the functions of torch, "
        r"not those of math; torch.stack, not torch.tensor."
    ),
    r"(\w+)\(\): argument 'input' \(position 1\) must be Tensor, not (int|float)": (
        r"torch.\1 takes a tensor, and this is a number (\2). Use math, or torch.tensor(number)."
    ),
    r"expected scalar type (\w+) but found (\w+)|to have the same dtype, but got: (.+) != (.+)": (
        r"one tensor is \1\3, the other \2\4. Convert one of them, for example with .float()."
    ),
    r"could not infer output dtype|not implemented for 'Long'|converted to type int64_t|"
    r"Expected a floating point .* Got Long|desired output type Long|Integers to negative": (
        r"the tensor holds integers, and this needs real numbers. Convert it with .float()."
    ),
    r"Expected target size|Expected input batch_size|For 1D input|target with class prob": (
        r"cross_entropy takes logits (N, V) and targets (N,). Flatten (B, T) to N in both."
    ),
    r"-100 is out of bounds|Class values must be non-negative": (
        r"a target of -100 stands for no word. Leave it out before you look up its probability; "
        r"F.cross_entropy does so by itself, unless ignore_index is changed."
    ),
    r"index out of range in self": (
        r"an id is negative or too large: ids go from 0 to the number of rows - 1."
    ),
    r"Can't call numpy\(\) on Tensor that requires grad": (
        r"NumPy computes no gradients. Use functions of torch."
    ),
    r"needed for gradient computation has been modified by an inplace operation": (
        r"a tensor that the gradient needs is changed in place, by x += y, x[...] = y or a method "
        r"that ends in _. Write x = x + y, torch.where or masked_fill instead."
    ),
    r"has no attribute 'backward'|does not require grad|grad can be implicitly created": (
        r"loss has to return one number as a tensor; .item() and .detach() cut its gradient."
    ),
    r"MemoryError|allocate memory": r"this needs more memory than there is.",
    r"^NotImplementedError:$": r"delete this line: the function is to end with `return`.",
    r"'function' object has no attribute": (
        r"this is a function, not its result. Call it, as in norm1(x)."
    ),
    r"NoneType": (
        r"something is None: an argument that is not given, or the result of a function without "
        r"`return`."
    ),
}


class TimeUp(BaseException):
    """The code takes too long. Not an Exception, which a student's code may catch."""


def explain(error, path, seconds=20):
    """Return a sentence on an error, with the line of the student's file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"line {error.lineno} is not valid Python: {error.msg}"
    if name := unwritten(error):
        return f"{name} is not begun"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f"line {frames[-1].lineno} (`{frames[-1].line}`): " if frames else ""
    if isinstance(error, TimeUp):
        return f"{where}not finished after {seconds} seconds. Does a loop never end?"
    if isinstance(error, SystemExit):
        return f"{where}ends the program. A function should return a value instead."
    original = " ".join(f"{type(error).__name__}: {error}".split())
    for pattern, sentence in PLAIN.items():
        if match := re.search(pattern, original):
            return f"{where}{match.expand(sentence)} ({shorten(original, 120, placeholder=' ...')})"
    return where + original[:200]


def unwritten(error):
    """Return the name of the stub that raises NotImplementedError, or ""."""
    if not isinstance(error, NotImplementedError) or str(error):  # torch's have a text
        return ""
    code = list(traceback.walk_tb(error.__traceback__))[-1][0].f_code
    return code.co_name if code.co_names == ("NotImplementedError",) else ""


def called(name, task, args):
    """Return how a function was called in a case, as text; "" where a watcher makes the inputs."""
    if len(args) < len(task["arguments"]):
        return ""
    words = (f"{argument} {described(value)}" for argument, value in zip(task["arguments"], args))
    return f"{name} was called with {', '.join(words)}"


def described(value):
    """Return an argument in words: the shape of a tensor, and how many of its entries are -100."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(described, value))}]"
    if not isinstance(value, torch.Tensor):
        return str(value)
    ignored = (value == -100).sum().item()
    return str(tuple(value.shape)) + f" with {ignored} of {value.numel()} -100" * (ignored > 0)
