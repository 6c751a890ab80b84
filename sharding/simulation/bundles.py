"""Bundles in time: two ops in one program, of which one computes while the other waits for collectives."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sharding.schedules.ops import OpKind, PipelineOp
from sharding.simulation.spans import Span

COLLECTIVES: tuple[OpKind, ...] = ("gather", "reduce")
"""Kinds of ops of which a bundle may consist that compute nothing."""


class BundledOp(NamedTuple):
    """One of the two ops of a bundle.

    Attributes:
        op: The op.
        part: For each of its replicas, the part of the bundle that it is in.
    """

    op: PipelineOp
    part: Int[np.ndarray, " i"]


BundleClock = Callable[[tuple[BundledOp, BundledOp], Float[np.ndarray, " c"]], tuple[Span, Span]]
"""Called with the two ops and the moment at which each part of the bundle could start; gives the spans of both."""


def joined_parts(
    first: Int[np.ndarray, "_ _"], second: Int[np.ndarray, "_ _"]
) -> tuple[Int[np.ndarray, " i"], Int[np.ndarray, " j"]]:
    """For every replica of two ops on the same devices, its part: the fewest whole replicas of both that share devices.

    Args:
        first: The groups of devices of each replica of one op, [replicas, groups].
        second: Those of the other.
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


class _OpOfPart(NamedTuple):
    """What an op takes in each part of a bundle.

    Attributes:
        compute: Seconds in which its slowest replica computes.
        waits: Seconds beyond them, of collectives.
    """

    compute: Float[np.ndarray, " c"]
    waits: Float[np.ndarray, " c"]


def bundle_spans(
    ops: tuple[BundledOp, BundledOp],
    start: Float[np.ndarray, " c"],
    seconds: Sequence[Float[np.ndarray, " _"]],
    communication: Sequence[Float[np.ndarray, " _"]],
) -> tuple[Span, Span]:
    """The spans of a bundle whose ops hide as much of each other's collectives as they compute.

        A + B - min(a, B - b) - min(b, A - a)

    A and B are the seconds of the ops on the slowest replicas of a part, a and b those among them in which devices only
    wait for collectives.

    Args:
        ops: The ops.
        start: When each part starts.
        seconds: Of each op on each of its replicas, if it ran alone.
        communication: Those among them in which devices only wait; all of a gather or a reduction.
    """
    of_parts = [
        _of_parts(of.part, of_op, waits, len(start))
        for of, of_op, waits in zip(ops, seconds, communication, strict=True)
    ]
    exposed = [np.maximum(own.waits - other.compute, 0.0) for own, other in (of_parts, of_parts[::-1])]
    shares = [own.compute + waits for own, waits in zip(of_parts, exposed, strict=True)]
    end = start + shares[0] + shares[1]
    spans = []
    for number, (op, part) in enumerate(ops):
        computes = seconds[number] - communication[number]
        waits = np.zeros(len(part)) if op.kind in COLLECTIVES else shares[number][part] - computes
        spans.append(Span(op, start[part], end[part], waits, shares[1 - number][part]))
    return spans[0], spans[1]


def _of_parts(
    part: Int[np.ndarray, " i"], seconds: Float[np.ndarray, " i"], waits: Float[np.ndarray, " i"], count: int
) -> _OpOfPart:
    total, compute = np.zeros(count), np.zeros(count)
    np.maximum.at(total, part, seconds)
    np.maximum.at(compute, part, seconds - waits)
    return _OpOfPart(compute, total - compute)
