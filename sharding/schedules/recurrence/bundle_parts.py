"""Which replicas of two ops in one program start and end together."""

import numpy as np
from jaxtyping import Int


def joined_parts(
    first: Int[np.ndarray, "_ _"], second: Int[np.ndarray, "_ _"]
) -> tuple[Int[np.ndarray, " i"], Int[np.ndarray, " j"]]:
    """For every replica of two ops on the same devices, its part: the fewest whole replicas of both that share devices.

    Args:
        first: The groups of devices of each replica of one op, [replicas, groups].
        second: The groups of devices of each replica of the other op.
    """
    part = np.arange(1 + max(int(first.max()), int(second.max())))
    while True:
        before = part.copy()
        for table in (first, second):
            np.minimum.at(part, table, part[table].min(axis=1)[:, None])
        if (part == before).all():
            break
    _, numbers = np.unique(np.concatenate([part[first[:, 0]], part[second[:, 0]]]), return_inverse=True)
    return numbers[: len(first)], numbers[len(first) :]
