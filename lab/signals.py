"""End training early when a signal arrives."""

import contextlib
import signal
import threading

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C, and a scheduler that stops a job


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
