"""Values that are expensive to make, of which only the last ones that were used are kept."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class RecentlyUsed(Generic[V]):
    """The values of the last keys that were asked for; None is no value.

    Args:
        limit: Number of values that are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[Hashable, V] = {}  # the one that was used last at the end

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key, made if it is not among the last ones."""
        value = self._values.pop(key, None)
        if value is None:
            value = make()
        self._values[key] = value
        if len(self._values) > self._limit:
            del self._values[next(iter(self._values))]
        return value
