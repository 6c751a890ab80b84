"""Bundles in time: two ops in one program, of which one computes while the other waits for collectives.

`node_spans.py` computes the nodes of bundles by `bundle_shares`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class _OpOfPart(NamedTuple):
    """Seconds of an op in each part of a bundle.

    Attributes:
        compute: Seconds in which its slowest replica computes.
        waits: Further seconds, of collectives.
    """

    compute: Float[np.ndarray, " c"]
    waits: Float[np.ndarray, " c"]


def bundle_shares(
    parts: Sequence[Int[np.ndarray, " _"]],
    seconds: Sequence[Float[np.ndarray, " _"]],
    communication: Sequence[Float[np.ndarray, " _"]],
    part_count: int,
) -> list[Float[np.ndarray, " c"]]:
    """The seconds of both ops in each part of a bundle, which hide as much of each other's collectives as they compute.

        A + B - min(a, B - b) - min(b, A - a)

    A and B are the seconds of the ops on the slowest replicas of a part, a and b the seconds among them in which
    devices only wait for collectives.

    Args:
        parts: For each op, the part that each of its replicas is in.
        seconds: Seconds of each op on each of its replicas, if it ran alone.
        communication: The seconds among them in which devices only wait; all of a gather or a reduction.
        part_count: Number of parts.
    """
    first, second = (_of_parts(*op_values, part_count) for op_values in zip(parts, seconds, communication, strict=True))
    exposed = [
        np.maximum(op_seconds.waits - other.compute, 0.0) for op_seconds, other in ((first, second), (second, first))
    ]
    return [op_seconds.compute + waits for op_seconds, waits in zip((first, second), exposed, strict=True)]


def _of_parts(
    part: Int[np.ndarray, " i"], seconds: Float[np.ndarray, " i"], waits: Float[np.ndarray, " i"], count: int
) -> _OpOfPart:
    total, compute = np.zeros(count), np.zeros(count)
    np.maximum.at(total, part, seconds)
    np.maximum.at(compute, part, seconds - waits)
    return _OpOfPart(compute, total - compute)
