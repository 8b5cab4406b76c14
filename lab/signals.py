"""When a training ends before its last step: someone asked it to by a signal, or its loss is no number any more."""

import contextlib
import math
import signal
import threading

import torch

SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
)  # Ctrl-C, and a machine or a queue that wants its place back
LOOK_EVERY = (
    100  # steps between looks at losses that are not on the CPU, since each makes the device wait
)


class Interrupted(KeyboardInterrupt):
    """A signal, by its number, ended the script; `remedy` says how to go on."""

    def __init__(self, number, remedy):
        super().__init__(remedy)
        self.number, self.remedy = number, remedy


def handle(handlers):
    """Set {number: handler}; in a thread beside the main one, where Python allows none, nothing is done."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def own_signals():
    """A context after which signals do what they did before, whatever `Signals` were made in it."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        handle(before)


class Signals:
    """What SIGINT and SIGTERM do from now on: raise Interrupted, with what `remedy()` returns.

    While `waiting`, the first one is only noted in `asked`, its number; the second raises.
    """

    def __init__(self, remedy):
        self.remedy, self.waiting, self.asked = remedy, False, 0
        handle({number: self.came for number in SIGNALS})

    def came(self, number, frame):
        if self.asked or not self.waiting:
            raise Interrupted(number, self.remedy())
        self.asked = number

    def wait_in(self, steps):
        """The steps of a loop that looks at `asked`; after the last one, what was asked for is done at once."""
        self.waiting = True
        try:
            yield from steps
        finally:
            self.waiting = False
        if self.asked:
            raise Interrupted(self.asked, self.remedy())


class Losses:
    """Losses (scalar tensors) that nobody has looked at yet:
    on the CPU each is looked at when it comes, elsewhere many at once."""

    def __init__(self):
        self.unseen = []

    def add(self, step, lr, loss):
        """Whether it is time to look."""
        self.unseen.append((step, lr, loss.detach()))
        return loss.device.type == "cpu" or len(self.unseen) == LOOK_EVERY

    def first_wrong(self):
        """(step, learning rate, loss) of the first one that is NaN or infinite, None if there is none; all are seen then."""
        unseen, self.unseen = self.unseen, []
        values = torch.stack([loss for *_, loss in unseen]).tolist() if unseen else []
        return next(
            (
                (step, lr, value)
                for (step, lr, _), value in zip(unseen, values)
                if not math.isfinite(value)
            ),
            None,
        )
