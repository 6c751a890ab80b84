"""Faults of the host while a sample is read: they are told from faults of its content, and the read is tried again.

Which samples form a step must not depend on the host. So only faults of the content make a bad sample; memory or
descriptors that run out, permissions, I/O errors and time-outs are tried again, and then end the run.
"""

import errno
import logging
import os
import time
import zlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from data.errors import BadSampleError, HostError

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")

PAUSES = (0.1, 1.0, 10.0)
"""Seconds of the pauses before each further attempt."""

MOST_MEMORY = 4 << 30
"""Bytes within which a thread decodes the largest sample that is read."""

# Errors of a path: a missing file, no regular file, or a position that the file does not have.
_OF_CONTENT = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.ENODEV),
    *(errno.EINVAL, errno.ESPIPE, errno.EOVERFLOW, errno.EFBIG, errno.EILSEQ, errno.EDOM, errno.ERANGE),
)
_DESCRIBED = tuple(
    os.strerror(number)
    for number in (errno.EIO, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.ENOMEM, errno.ETIMEDOUT)
)


def host_fault(where: str | os.PathLike[str], error: Exception) -> HostError | None:
    """The error that ends a run where an exception tells of the host, and None where it tells of the content."""
    if isinstance(error, HostError):
        return error
    if _is_out_of_memory(error):
        return HostError(where, "out of memory", memory=True)
    if not isinstance(error, OSError):
        return None
    by_type = isinstance(error, PermissionError | TimeoutError | ConnectionError | BlockingIOError)
    if by_type or (error.errno is not None and error.errno > 0 and error.errno not in _OF_CONTENT):
        named = error.filename if isinstance(error.filename, str) else where
        return HostError(named, error.strerror or str(error) or type(error).__name__)
    return None


def described_fault(where: str, error: Exception) -> HostError | None:
    """As `host_fault`, for an exception of a library that keeps only the system's text of the error, not its number."""
    said = next((words for words in _DESCRIBED if words in str(error)), None)
    return host_fault(where, error) or (HostError(where, said) if said else None)


def bad_sample(where: str | os.PathLike[str], error: Exception, reason: str = "") -> BadSampleError | HostError:
    """The exception to raise for an exception of a library that read a sample.

    Args:
        where: Name of the sample or its file.
        error: The library's exception.
        reason: Fault of the content, where the exception tells of it; the exception's text by default.
    """
    return host_fault(where, error) or BadSampleError(where, reason or f"{type(error).__name__}: {error}")


def retried(call: Callable[[], _Result], where: str) -> _Result:
    """Returns the result of a call that reads a sample; after a fault of the host it is called again, after `PAUSES`.

    If memory runs out every time although `MOST_MEMORY` is free, the sample is to blame: its header asks for more.

    Args:
        call: Reads the sample.
        where: Name of the sample, for an exception that names no file.

    Raises:
        BadSampleError: The sample is to blame.
        HostError: The host fails every time.
    """
    for pause in (*PAUSES, None):
        try:
            return call()
        except Exception as error:
            fault = host_fault(where, error)
            if fault is None:
                raise
        has_memory = fault.memory and _has_memory()
        if pause is None:
            raise BadSampleError(fault.where, "it asks for more memory than any valid one") if has_memory else fault
        if not has_memory:
            _LOG.warning("%s: %s; tried again in %g s", fault.where, fault.reason, pause)
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an exception says so; Pillow and zlib do in words of their own."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM or (error.errno is None and "out of memory" in str(error))
    return isinstance(error, zlib.error) and str(error).startswith("Error -4 ")


def _has_memory() -> bool:
    """Whether there is memory to decode the largest sample now; the memory that is allocated to see is not touched."""
    try:
        np.empty(MOST_MEMORY, np.uint8)
    except MemoryError:
        return False
    return True
