"""What goes wrong with data."""

import os

from configs.errors import UserError


class DataError(UserError):
    """Data or its configuration cannot be used as it is; the message names the culprit and the mend."""


class CorruptImageError(DataError):
    """An image file cannot be read.

    Attributes:
        path: The file.
        reason: What the decoder said.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"image {os.fspath(path)} cannot be read ({reason}); replace or remove it")
        self.path = os.fspath(path)
        self.reason = reason
