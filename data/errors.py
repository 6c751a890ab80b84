"""What goes wrong with data."""

import os

from configs.errors import UserError


class DataError(UserError):
    """Data or its configuration cannot be used as it is; the message names the culprit and the mend."""


class BadSampleError(DataError):
    """One sample cannot be used; the pipeline puts it into quarantine and goes on.

    Attributes:
        where: Names it: a file, a member of a tar, a row.
        reason: What is wrong with it.
    """

    def __init__(self, where: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"{os.fspath(where)} cannot be read ({reason}); replace or remove it")
        self.where = os.fspath(where)
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.where, self.reason)  # a worker process sends it back
