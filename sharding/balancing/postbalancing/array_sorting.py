"""Stable sorting orders of whole numbers, found faster than by `np.argsort`."""

import numpy as np
from jaxtyping import Int

_PACKED_TYPES = (np.uint32, np.int64)
"""Types into which key and position are packed; sorting the first takes half the time."""


def stable_order(keys: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Returns the stable sorting order of keys of at least 0, as `np.argsort(keys, kind="stable")` does.

    Where key and position fit into one number, such numbers are sorted: sorting values takes a third of the time of
    sorting an order.
    """
    key_bits, position_bits = int(keys.max(initial=0)).bit_length(), len(keys).bit_length()
    for packed_type in _PACKED_TYPES:
        if key_bits + position_bits <= np.iinfo(packed_type).max.bit_length():
            packed = keys.astype(packed_type) << packed_type(position_bits)
            packed |= np.arange(len(keys), dtype=packed_type)
            packed.sort()
            packed &= packed_type((1 << position_bits) - 1)
            return packed.astype(np.int64)
    return np.argsort(keys, kind="stable")
