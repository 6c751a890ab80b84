"""Bytes that rows save for their backward: how many hardly ever need more, and how many fit.

Module tables hold these bytes for every candidate.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

DEVIATIONS = 4  # of a microbatch's bytes above the mean; simulating a plan checks what its devices really hold


class RowBytes(NamedTuple):
    """Bytes that a row saves for its backward.

    Attributes:
        mean: The mean over rows.
        deviation: The standard deviation over rows.
        maximum: The maximum over rows.
    """

    mean: Float[np.ndarray, "..."]
    deviation: Float[np.ndarray, "..."]
    maximum: Float[np.ndarray, "..."]

    def select(self, candidates: Int[np.ndarray, " n"]) -> "RowBytes":
        """The bytes of some candidates."""
        return RowBytes(*(array[candidates] for array in self))

    def upper_bound(self, rows: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Bytes that `rows` rows hardly ever exceed: DEVIATIONS standard deviations above their mean."""
        return np.minimum(self.mean * rows + DEVIATIONS * self.deviation * np.sqrt(rows), self.maximum * rows)

    def max_rows(self, room: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """How many rows fit into `room` bytes, the inverse of `upper_bound`; negative where `room` is."""
        nonnegative = np.maximum(room, 0.0)
        deviation = DEVIATIONS * self.deviation
        with np.errstate(divide="ignore", invalid="ignore"):
            root = (np.sqrt(deviation**2 + 4 * self.mean * nonnegative) - deviation) / (2 * self.mean)
            rows = np.where(self.maximum > 0, np.maximum(root**2, nonnegative / self.maximum), np.inf)
        return np.where(room >= 0, rows, -1.0)
