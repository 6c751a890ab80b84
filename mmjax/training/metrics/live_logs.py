"""Logs while a live display is on the terminal: they appear above it, as printed text does."""

import logging
import sys


def log_to_current_stderr() -> None:
    """Redirects log handlers of standard error to the file that `sys.stderr` is when a message is written.

    A live display of rich puts an object of its own there, which prints above the display. A log handler keeps the file
    that it was made with, and would write into the display, which is then drawn twice.
    """
    for handler in logging.root.handlers:
        if type(handler) is logging.StreamHandler and handler.stream in (sys.stderr, sys.__stderr__):
            handler.setStream(_CurrentStderr())


class _CurrentStderr:
    """A file that writes to the current `sys.stderr`."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()
