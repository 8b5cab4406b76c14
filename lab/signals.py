"""End a training early: at a signal, or at a loss that is NaN or infinite."""

import contextlib
import math
import signal
import threading

import torch

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C, and a scheduler that stops a job
LOOK_EVERY = 100  # steps between looks at losses on a GPU, since each look waits for the GPU


class Interrupted(KeyboardInterrupt):
    """A signal ended the script; `number` is the signal's, `remedy` says how to resume."""

    def __init__(self, number, remedy):
        super().__init__(remedy)
        self.number, self.remedy = number, remedy


def set_handlers(handlers):
    """Set {signal number: handler}; do nothing in other threads, where Python forbids it."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def own_signals():
    """Restore the signal handlers at the end of the context."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        set_handlers(before)


class Signals:
    """Handler of SIGINT and SIGTERM that raises Interrupted with the text of `remedy()`.

    While `waiting`, the first signal is only noted in `asked`, and a second one raises.
    """

    def __init__(self, remedy):
        self.remedy, self.waiting, self.asked = remedy, False, 0
        set_handlers({number: self.receive for number in SIGNALS})

    def receive(self, number, frame):
        if self.asked or not self.waiting:
            raise Interrupted(number, self.remedy())
        self.asked = number


class Losses:
    """Losses that have not been checked yet. On the CPU each is checked at once, on a GPU many at
    a time."""

    def __init__(self):
        self.unseen = []

    def add(self, step, lr, loss):
        """Add a loss, a scalar tensor; return whether it is time to check."""
        self.unseen.append((step, lr, loss))
        return loss.device.type == "cpu" or len(self.unseen) == LOOK_EVERY

    def first_wrong(self):
        """Return (step, learning rate, loss) of the first loss that is NaN or infinite, or None."""
        unseen, self.unseen = self.unseen, []
        values = torch.stack([loss for *_, loss in unseen]).tolist() if unseen else []
        for (step, lr, _), value in zip(unseen, values):
            if not math.isfinite(value):
                return step, lr, value
        return None
