"""Multiple-choice knapsacks over groups of equal layers, exactly, by their Pareto fronts (Nemhauser and Ullmann 1969).

Each layer takes one of k options (bytes, seconds). Of n equal layers only the numbers of layers by option matter. A
selection is on the front if none with as few bytes takes fewer seconds; what a front of n layers has comes from the
front of n - 1, because otherwise its n - 1 layers could be chosen better. `recomputation.py` chooses the recomputation
of layers by these fronts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class OptionFront(NamedTuple):
    """Selections of options of which none beats another in both bytes and seconds.

    Attributes:
        size: Bytes, ascending.
        seconds: Seconds, descending.
        counts: How many layers of each group have each option, the groups' columns side by side.
    """

    size: Float[np.ndarray, " p"]
    seconds: Float[np.ndarray, " p"]
    counts: Int[np.ndarray, "p c"]


EMPTY = OptionFront(np.zeros(1), np.zeros(1), np.zeros((1, 0), int))
"""The front of no layer."""


class GroupFronts:
    """The fronts of any number of equal layers.

    Args:
        size: Bytes of a layer under each option.
        seconds: Seconds of a layer under each option.
        allowed: Options that may be taken, at least one.
    """

    def __init__(
        self, size: Float[np.ndarray, " k"], seconds: Float[np.ndarray, " k"], allowed: Bool[np.ndarray, " k"]
    ) -> None:
        self._size, self._seconds = size, seconds
        self._one_more = np.eye(len(size), dtype=int)[allowed]
        self._fronts = [OptionFront(np.zeros(1), np.zeros(1), np.zeros((1, len(size)), int))]

    def of_layers(self, layers: int) -> OptionFront:
        """Returns the front of so many of these layers."""
        while len(self._fronts) <= layers:
            counts = (self._fronts[-1].counts[:, None] + self._one_more).reshape(-1, len(self._size))
            self._fronts.append(_pareto(counts @ self._size, counts @ self._seconds, counts))
        return self._fronts[layers]


def best_within(fronts: Sequence[OptionFront], room: float) -> tuple[float, Int[np.ndarray, " c"]] | None:
    """The fewest seconds that fit into `room` bytes, and the counts, the groups in the order given; None if none fit.

    Args:
        fronts: The front of each group.
        room: Bytes.
    """
    order = sorted(range(len(fronts)), key=lambda number: len(fronts[number].size))
    total = EMPTY
    for number in order[:-1]:
        total = _combine(total, fronts[number], room)
    last = fronts[order[-1]]
    nearest = np.searchsorted(last.size, room - total.size, side="right") - 1
    seconds = np.where(nearest >= 0, total.seconds + last.seconds[nearest], np.inf)
    if not len(seconds) or not np.isfinite(seconds.min()):
        return None
    best = int(seconds.argmin())
    counts = np.concatenate([total.counts[best], last.counts[nearest[best]]])
    widths = np.cumsum([fronts[number].counts.shape[1] for number in order])[:-1]
    by_group = dict(zip(order, np.split(counts, widths), strict=True))
    return float(seconds[best]), np.concatenate([by_group[number] for number in range(len(fronts))])


def _combine(first: OptionFront, second: OptionFront, room: float) -> OptionFront:
    """The front of two fronts' layers together, without what exceeds `room` bytes."""
    size = first.size[:, None] + second.size
    left, right = np.nonzero(size <= room)
    counts = np.concatenate([first.counts[left], second.counts[right]], axis=1)
    return _pareto(size[left, right], first.seconds[left] + second.seconds[right], counts)


def _pareto(
    size: Float[np.ndarray, " n"], seconds: Float[np.ndarray, " n"], counts: Int[np.ndarray, "n c"]
) -> OptionFront:
    order = np.lexsort((seconds, size))
    ordered = seconds[order]
    shortest = np.minimum.accumulate(np.append(np.inf, ordered))[:-1]  # with no more bytes
    kept = order[ordered < shortest]
    return OptionFront(size[kept], seconds[kept], counts[kept])
