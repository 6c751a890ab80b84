"""Limits of this process, under which reads and writes fail as on a full disk or without permission."""

import contextlib
import os
import pathlib
import resource
from collections.abc import Iterator

NOBODY = 65534
"""A user who owns nothing."""


@contextlib.contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    """A resource of this process, such as `resource.RLIMIT_NOFILE`, has a limit."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def small_files(most: int = 40_000) -> contextlib.AbstractContextManager[None]:
    """No file of this process can grow beyond so many bytes: a larger write fails with an error of the system."""
    return limited(resource.RLIMIT_FSIZE, most)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """As root, this process is another user, who owns nothing."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@contextlib.contextmanager
def read_only(folder: pathlib.Path) -> Iterator[None]:
    """This process may not write to a folder; as root it becomes another user."""
    folder.chmod(0o555)
    try:
        with as_nobody():
            yield
    finally:
        folder.chmod(0o755)
