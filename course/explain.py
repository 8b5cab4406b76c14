"""Say in plain words how a function was called, and why it fails."""

import traceback

import torch


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
    return f"{where}{type(error).__name__}: {message[:200]}"


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
