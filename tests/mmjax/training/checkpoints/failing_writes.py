"""Makes the writes of this process fail, as those of a full disk and of a folder that it may not write to do."""

import contextlib
import os
import pathlib
import resource
from collections.abc import Iterator

NOBODY = 65534
"""A user who owns nothing."""


@contextlib.contextmanager
def small_files(most: int = 40_000) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes: a larger write fails with an error of the system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def read_only(folder: pathlib.Path) -> Iterator[None]:
    """This process may not write to a folder; as root it becomes another user."""
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)
