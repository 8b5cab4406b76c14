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
        r"\2 numbers do not fit into the shape \1."
    ),
    r"view size is not compatible": (
        r"view needs the numbers in the order of memory, unlike after transpose. Use reshape."
    ),
    r"Boolean value of Tensor with more than one value": (
        r"`if`, `and`, `or` and `not` need one True or False, and this tensor has several. Use "
        r"torch.where, &, | or ~."
    ),
    r"only integer tensors of a single element": (
        r"one whole number is expected here, not a tensor of several or of real numbers."
    ),
    r"only one element tensors|cannot be converted to Scalar": (
        r"a single number is expected here, not a tensor of several. Use the functions of torch, "
        r"not those of math; torch.stack, not torch.tensor."
    ),
    r"(\w+)\(\): argument 'input' \(position 1\) must be Tensor, not (int|float)": (
        r"torch.\1 takes a tensor, and this is a number (\2). Give it torch.tensor(number)."
    ),
    r"expected scalar type (\w+) but found (\w+)|to have the same dtype, but got: (.+) != (.+)": (
        r"one tensor is \1\3, the other \2\4. Convert one of them, for example with .float()."
    ),
    r"could not infer output dtype|not implemented for 'Long'": (
        r"the tensor holds integers, and this needs real numbers. Convert it with .float()."
    ),
    r"stack expects each tensor to be equal size, but got (\[.*\]) at entry 0 and (\[.*\])": (
        r"torch.stack needs equal shapes, and these are \1 and \2. Pad them first."
    ),
    r"Expected target size|Expected input batch_size": (
        r"cross_entropy takes logits (N, V) and targets (N,). Flatten (B, T) to N in both."
    ),
    r"index out of range in self": (
        r"an id is negative or too large: ids go from 0 to the number of rows - 1."
    ),
    r"Can't call numpy\(\) on Tensor that requires grad": (
        r"NumPy computes no gradients. Use functions of torch."
    ),
    r"needed for gradient computation has been modified by an inplace operation": (
        r"a tensor that the gradient needs is changed in place. Write x = x + y, not x += y."
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
    message = " ".join(str(error).split())
    original = f"{type(error).__name__}: {message}"
    for pattern, sentence in PLAIN.items():
        if match := re.search(pattern, message):
            return f"{where}{match.expand(sentence)} ({shorten(original, 120, placeholder=' ...')})"
    return where + original[:200]


def unwritten(error):
    """Return the name of the function that raises NotImplementedError as a stub does, or ""."""
    if not isinstance(error, NotImplementedError) or str(error):  # torch's have a text
        return ""
    return traceback.extract_tb(error.__traceback__)[-1].name


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
