"""Stable argsort of non-negative integers by a radix sort, faster than `np.argsort` of 64-bit integers."""

import numpy as np
from jaxtyping import Int

_DIGIT_BITS = 16
"""Bits of a digit of the radix sort; NumPy's stable sort of 16-bit integers is itself a radix sort."""


def stable_order(keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Returns the stable sorting order of keys of at least 0, as `np.argsort(keys, kind="stable")` does.

    Sorts by one digit after the other, the least significant first.
    """
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in range(_DIGIT_BITS, int(keys.max(initial=0)).bit_length(), _DIGIT_BITS):
        digits = (keys[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order
