"""Answers to Ctrl-C at once, also while compiled code runs.

Python runs signal handlers between bytecodes only, and compiling one program may take minutes. A thread reads the
signals too, says that they have come, and ends the process at the second Ctrl-C.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from configs.common.errors import INTERRUPTED

_SHOW_CURSOR = "\x1b[?25h"


@contextlib.contextmanager
def answered_interrupts(
    answer: str, patience: float = 0.0, is_ours: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """While it is entered, the first Ctrl-C is answered, and the second ends the process with `INTERRUPTED`.

    Outside the main thread, which alone may watch for signals, nothing is done.

    Args:
        answer: Text that is printed on standard error.
        patience: Seconds before it is printed; nothing is printed if the process ends before.
        is_ours: Whether a Ctrl-C is to be answered, asked when it comes: not where another handler answers it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    reader = threading.Thread(target=_answer, args=(read_end, answer, patience, is_ours), name="answers", daemon=True)
    reader.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.close(write_end)  # the thread reads the end of the pipe, and closes the other end


def _answer(read_end: int, answer: str, patience: float, is_ours: Callable[[], bool]) -> None:
    """Answers the signals that are read from a pipe; returns when the pipe is closed."""
    with open(read_end, "rb", buffering=0) as pipe:
        interrupts = 0
        while numbers := pipe.read(1):
            if numbers[0] != signal.SIGINT or not is_ours():
                continue
            interrupts += 1
            if interrupts > 1:
                os.write(sys.stderr.fileno(), f"{_SHOW_CURSOR * sys.stderr.isatty()}\nleft at once\n".encode())
                os._exit(INTERRUPTED)
            if not select.select([pipe], [], [], patience)[0]:
                os.write(sys.stderr.fileno(), f"\n{answer}\n".encode())
