"""Errors of data and its configuration: of the whole run, of one sample, and of the host."""

import functools
import os
from typing import Any

from configs.common.errors import STORAGE_FAILED, UserError
from configs.common.shown_text import shortened, shortened_lines


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
        reason: Why it cannot be used; shortened.
    """

    def __init__(self, where: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"{os.fspath(where)} cannot be read ({reason}); replace or remove it")
        self.where = shortened(os.fspath(where))
        self.reason = shortened(reason)

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.where, self.reason)  # worker processes send errors back by pickle


class HostError(DataError):
    """This machine failed while a sample was read, whose content is not to blame: the run ends, and may be resumed.

    Attributes:
        where: Name of the sample or file that was read; shortened.
        reason: Description of the failure; shortened.
        memory: Whether memory ran out, which a damaged header may cause too.
    """

    exit_code = STORAGE_FAILED

    def __init__(self, where: str | os.PathLike[str], reason: str, *, memory: bool = False) -> None:
        super().__init__(
            f"{os.fspath(where)}: {reason}; this machine or its storage failed, not the sample; mend it and continue"
        )
        self.where, self.reason, self.memory = shortened(os.fspath(where)), shortened(reason), memory

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), memory=self.memory), (self.where, self.reason)
