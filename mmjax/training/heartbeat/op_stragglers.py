"""Ops that take longer on a device than in an earlier step of the run: a device that throttles, a link that fails."""

import dataclasses

import numpy as np
from jaxtyping import Float

from sharding.schedules.ops import NORM, PipelineOp
from sharding.simulation.measured import replicas_that_finish
from sharding.simulation.timeline import Timeline

FACTOR = 1.5
"""An op is slow if it takes so many times what it took before,"""

SHARE = 0.05
"""and longer by this share of the step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlowOp:
    """An op of a stage that has become slower.

    Attributes:
        op: The op, of all microbatches together.
        devices: Numbers of the devices of the replica that takes so long.
        before, after: Seconds of the op in the earlier step and in the later one.
    """

    op: PipelineOp
    devices: tuple[int, ...]
    before: float
    after: float


def find_slow_op(earlier: Timeline, later: Timeline) -> SlowOp | None:
    """The op that has lost the most time from one measured step to another of the same plan; None if none is slow.

    The norm of the gradients is left out: it ends when the slowest device does.
    """
    before, after = _seconds(earlier), _seconds(later)
    slow = [
        SlowOp(
            op=op,
            devices=tuple(replicas_that_finish(later.devices, op)[replica]),
            before=float(before[op][replica]),
            after=float(seconds),
        )
        for op in after
        for replica, seconds in enumerate(after[op])
        if seconds > FACTOR * before[op][replica] and seconds > before[op][replica] + SHARE * later.step
    ]
    return max(slow, key=lambda found: found.after - found.before, default=None)


def _seconds(timeline: Timeline) -> dict[PipelineOp, Float[np.ndarray, " i"]]:
    """Seconds of each op of each replica, summed over microbatches."""
    totals: dict[PipelineOp, Float[np.ndarray, " i"]] = {}
    for span in timeline.spans:
        if span.op != NORM:
            op = span.op._replace(microbatch=NORM.microbatch)
            totals[op] = totals.get(op, 0.0) + np.nan_to_num(span.seconds)
    return totals
