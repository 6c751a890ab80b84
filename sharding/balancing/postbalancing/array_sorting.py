"""Stable sorting orders of whole numbers, found faster than by `np.argsort`."""

import numpy as np
from jaxtyping import Int

_RADIX_LIMIT = 1 << 16
"""Below it NumPy's stable sort is a radix sort."""
_PACKED_LIMIT = 1 << 63


def stable_order(keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Returns the stable sorting order of keys of at least 0, as `np.argsort(keys, kind="stable")` does.

    Where key and position fit into one number, such numbers are sorted: sorting values takes a third of the time of
    sorting an order.
    """
    largest, count = int(keys.max(initial=0)), len(keys)
    if largest < _RADIX_LIMIT:
        return np.argsort(keys.astype(np.uint16), kind="stable")
    position_bits = count.bit_length()
    if largest >= _PACKED_LIMIT >> position_bits:
        return np.argsort(keys, kind="stable")
    packed = (keys.astype(np.int64) << position_bits) | np.arange(count)
    packed.sort()
    return packed & ((1 << position_bits) - 1)
