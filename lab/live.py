"""One line on a terminal that is rewritten in place, and plain lines beside it."""

import contextlib
import os
import shutil
import sys
import time

from data.files import printable

SECONDS = 0.2  # between two texts


class LiveLine:
    """A progress line on stderr. If stderr is not a terminal, nothing is shown."""

    shown, on_screen = 0.0, False  # on_screen: of the class, since all lines share a terminal

    def is_due(self):
        """Return whether there is a terminal, and SECONDS have passed since the last text."""
        return sys.stderr.isatty() and time.perf_counter() - self.shown >= SECONDS

    def show(self, text):
        """Show a text in place of the last one, if it is due."""
        if self.is_due():
            self.shown, LiveLine.on_screen = time.perf_counter(), True
            write_stderr(f"\r{text[: width()]:<{width()}}")

    def clear(self):
        """Remove the line from the screen."""
        if self.on_screen:
            write_stderr("\r" + " " * width() + "\r")
            LiveLine.on_screen = False

    def say(self, text):
        """Print a plain line on stdout. If stdout cannot be written, continue without it."""
        self.clear()
        try:
            print(printable(text), flush=True)
        except OSError:  # `| head` has ended, the terminal was closed, or the disk is full
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            write_stderr("note: the output can no longer be written; continuing without it\n")


def width():
    """Return how many characters fit into a row of the terminal: after a text that continues in
    the next row, a carriage return would go back to that row only."""
    return shutil.get_terminal_size().columns - 1


def write_stderr(text):
    """Write to stderr. If the terminal was closed, do nothing."""
    with contextlib.suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


def clock(seconds):
    """Return seconds as 1:02:03 or 2:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
