"""Errors of data and its configuration."""

import os

from configs.errors import UserError
from configs.shown_text import shortened, shortened_lines


class DataError(UserError):
    """Data or its configuration cannot be used; the message names the cause and what would help.

    It quotes values of any length, so its lines are shortened.
    """

    def __str__(self) -> str:
        return shortened_lines(super().__str__())


class BadSampleError(DataError):
    """One sample is unreadable; the pipeline refuses it, lists it in the quarantine and continues.

    Attributes:
        where: Name of the sample: a file, a member of a tar, a row; shortened.
        reason: What is wrong with it; shortened.
    """

    def __init__(self, where: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"{os.fspath(where)} cannot be read ({reason}); replace or remove it")
        self.where = shortened(os.fspath(where))
        self.reason = shortened(reason)

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.where, self.reason)  # worker processes send errors back by pickle
