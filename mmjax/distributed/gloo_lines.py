"""Keeps what Gloo prints for every group of processes off standard output, where it would break a progress bar.

Gloo, by which jax lets the CPU devices of several processes communicate, prints there from C++, and nothing turns it
off. Standard error, where errors go, is left alone.
"""

import atexit
import contextlib
import io
import os
import sys
import threading

_BEGINNING = b"[Gloo] Rank "
_BLOCK = 65536
_LAST_LINES = 1.0  # seconds for lines that are under way at exit; children may hold the pipe for longer


def hide_gloo_lines() -> None:
    """From now on drops lines that Gloo prints; other output of native code is passed on line by line.

    Python's own output goes to standard output as before, past the filter.
    """
    sys.stdout.flush()
    shown = os.dup(1)
    read_end, write_end = os.pipe()
    os.dup2(write_end, 1)
    os.close(write_end)
    sys.stdout = io.TextIOWrapper(
        open(shown, "wb", closefd=False),  # noqa: SIM115  (it lives as long as the process)
        encoding=sys.stdout.encoding,
        errors=sys.stdout.errors,
        line_buffering=bool(sys.stdout.line_buffering),
    )
    reader = threading.Thread(target=_pass_on, args=(read_end, shown), name="gloo lines", daemon=True)
    reader.start()

    def end() -> None:
        os.dup2(shown, 1)  # for what native code prints when no thread runs any more
        reader.join(_LAST_LINES)

    atexit.register(end)


def _pass_on(read_end: int, shown: int) -> None:
    """Copies lines but Gloo's from one file to another, until nobody writes any more."""
    rest = b""
    while block := os.read(read_end, _BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        _write(shown, b"".join(line + b"\n" for line in lines if not line.startswith(_BEGINNING)))
    _write(shown, rest)


def _write(shown: int, text: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads standard output; what writes there must not wait for this thread
        while text:
            text = text[os.write(shown, text) :]
