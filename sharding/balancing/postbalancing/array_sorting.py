"""Stable sorting orders of whole numbers, found faster than by `np.argsort` of the numbers."""

import numpy as np
from jaxtyping import Int

_DIGIT_BITS = 16
"""Bits of a digit; NumPy sorts numbers of at most so many by counting, in a quarter of the time of larger ones."""


def stable_order(keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Returns the stable sorting order of keys of at least 0, as `np.argsort(keys, kind="stable")` does.

    The keys are sorted by one digit after the other, the lowest first.
    """
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in range(_DIGIT_BITS, int(keys.max(initial=0)).bit_length(), _DIGIT_BITS):
        digits = (keys[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order
