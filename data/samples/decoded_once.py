"""A file from which several items are cut, such as the tiles of an image, decoded once for all of them."""

from collections.abc import Callable
from typing import Generic, TypeVar

_Decoded = TypeVar("_Decoded")


class DecodedOnce(Generic[_Decoded]):
    """Decodes on the first call and releases the result after a given number of calls."""

    def __init__(self, load: Callable[[], _Decoded], calls: int) -> None:
        """Decodes nothing yet.

        Args:
            load: Decodes the file.
            calls: Number of calls after which the result is released; the next one decodes again.
        """
        self._load, self._calls = load, calls
        self._loaded: _Decoded | None = None
        self._calls_left = calls

    def __call__(self) -> _Decoded:
        """The decoded value."""
        if self._loaded is None:
            self._loaded, self._calls_left = self._load(), self._calls
        loaded = self._loaded
        self._calls_left -= 1
        if not self._calls_left:
            self._loaded = None
        return loaded
