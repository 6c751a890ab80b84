"""Ending this process while its main thread may wait for ever: the stacks of all threads, one line, an exit code.

The heartbeat and the commands leave by it.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import typing
from collections.abc import Callable, Sequence

from configs.common.errors import PROCESS_LOST

_STDERR = 2
_LONGEST_OUTPUT = 5
"""Seconds that a process which ends may need for its last lines."""

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
_leaving = threading.Lock()
_installed: list[typing.Any] = []  # the handler that C calls, which must stay


def dump(reason: str, ops: Sequence[str]) -> None:
    """Writes the stacks of all Python threads and the last ops dispatched to standard error, the process's log."""
    _write(f"{reason}; the stacks of all threads of this process:\n")
    with contextlib.suppress(OSError, RuntimeError):
        faulthandler.dump_traceback(_STDERR, all_threads=True)
    _write(f"last ops dispatched: {'; '.join(ops) or 'none'}\n")


def leave(line: str, ops: Sequence[str]) -> typing.NoReturn:
    """Ends this process by `PROCESS_LOST` from any thread; `line` is the last line that it prints."""
    if not _leaving.acquire(blocking=False):  # another thread is doing so
        time.sleep(float("inf"))
    try:
        _bound_output(PROCESS_LOST)
        _flush(sys.stdout)
        dump("the run ends", ops)
        _write(f"error: {line}\n")
    finally:
        os._exit(PROCESS_LOST)


def leave_at_once(code: int) -> typing.NoReturn:
    """Ends this process by an exit code: no registered exit function runs, but output is flushed."""
    try:
        _bound_output(code)
        _flush(sys.stdout)
        _flush(sys.stderr)
    finally:
        os._exit(code)


def _bound_output(code: int) -> None:
    """Lets this process end although it is still writing after some seconds: nobody may read it."""
    # The second bound, as faulthandler writes while it holds the interpreter: then no thread can run.
    signal.alarm(2 * _LONGEST_OUTPUT)
    timer = threading.Timer(_LONGEST_OUTPUT, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _flush(stream: typing.TextIO | None) -> None:
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed
            stream.flush()


def call_on_abort(callback: Callable[[], None]) -> None:
    """Calls a function instead of the last one when this process aborts (SIGABRT), before it ends by the signal.

    jax aborts a process whose connection to process 0 breaks, from a thread of its own, and calls no Python code that
    could end it otherwise. A handler of the signal module would come too late: abort() never returns to the
    interpreter. So the handler is one of C; it runs in the thread that aborts, which does not hold the interpreter.
    """
    if _installed:
        _installed[1] = callback
        return

    def handle(number: int) -> None:
        _installed[1]()
        if previous not in (None, int(signal.SIG_IGN)):  # the faulthandler module's handler, for example
            _Handler(previous)(number)

    handler = _Handler(handle)
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    previous = libc.signal(int(signal.SIGABRT), handler)
    _installed.extend((handler, callback))


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # closed, or nobody reads it
        os.write(_STDERR, text.encode(errors="replace"))
