"""Ops that take longer on a device than in an earlier step of the run: a device that throttles, a link that fails.

`StepRecordings` compares every recorded step of a run with the first.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from sharding.plans.resolved.device_groups import replicas_of_microbatch
from sharding.schedules.ops import GLOBAL_NORM, TRANSFERS, PipelineOp
from sharding.simulation.measured.measured_timeline import replica_count, replicas_that_finish
from sharding.simulation.timeline import Timeline

FACTOR = 1.5
"""An op is slow if it takes this many times its earlier seconds,"""

SHARE = 0.05
"""and longer by this share of the step."""


@dataclasses.dataclass(frozen=True, eq=False)
class RecordedStep:
    """A step that was recorded.

    Attributes:
        step: Its number.
        timeline: Measured timeline of the step's ops.
        capacities: `PlacedBatch.capacities`, on which the work and bytes of the ops of a microbatch depend.
    """

    step: int
    timeline: Timeline
    capacities: Mapping[str, tuple[int | None, ...]]

    def capacities_of(self, op: PipelineOp) -> tuple[int | None, ...]:
        """Returns the capacities with which the op's unit, or the units at its ends, ran it; empty for one size."""
        if op.microbatch == GLOBAL_NORM.microbatch:
            return ()
        return tuple(
            self.capacities[unit][op.microbatch] for unit in (op.unit, op.target_unit) if unit in self.capacities
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlowOp:
    """An op of a stage that has become slower.

    Attributes:
        op: The op, of all compared microbatches together.
        devices: Numbers of the devices of the slow replica.
        before, after: Seconds of the op in the earlier step and in the later one.
    """

    op: PipelineOp
    devices: tuple[int, ...]
    before: float
    after: float


def find_slow_op(earlier: RecordedStep, later: RecordedStep) -> SlowOp | None:
    """The op that has lost the most time from one recorded step to another of the same plan; None if none is slow.

    Only microbatches that ran with the same capacity in both are compared. global_norm is left out: it ends when the
    slowest device does.
    """
    compared = frozenset(
        span.op
        for span in later.timeline.spans
        if span.op != GLOBAL_NORM
        and None not in later.capacities_of(span.op)
        and earlier.capacities_of(span.op) == later.capacities_of(span.op)
    )
    before, after = _seconds(earlier.timeline, compared), _seconds(later.timeline, compared)
    slow = [
        SlowOp(
            op=op,
            devices=tuple(replicas_that_finish(later.timeline.devices, op)[replica]),
            before=float(before[op][replica]),
            after=float(seconds),
        )
        for op in after
        for replica, seconds in enumerate(after[op])
        if seconds > FACTOR * before[op][replica] and seconds > before[op][replica] + SHARE * later.timeline.step
    ]
    return max(slow, key=lambda straggler: straggler.after - straggler.before, default=None)


def _seconds(timeline: Timeline, compared: frozenset[PipelineOp]) -> dict[PipelineOp, Float[np.ndarray, " i"]]:
    """Seconds of each compared op of each replica of all pipeline replicas of its unit, summed over microbatches."""
    totals: dict[PipelineOp, Float[np.ndarray, " i"]] = {}
    pipeline_replicas = timeline.op_graph.stage_graph.pipeline_replicas
    for span in timeline.spans:
        if span.op in compared:
            op = span.op._replace(microbatch=GLOBAL_NORM.microbatch)
            if op not in totals:
                totals[op] = np.zeros(replica_count(timeline.devices, op))
            unit = op.target_unit if op.kind in TRANSFERS else op.unit
            replica_seconds = replicas_of_microbatch(pipeline_replicas, unit, span.op.microbatch, totals[op])
            replica_seconds += np.nan_to_num(span.own_seconds)
    return totals
