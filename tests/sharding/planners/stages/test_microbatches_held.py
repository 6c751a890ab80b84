"""Ranks hold no more microbatches than is said, in the order of the real schedules."""

import numpy as np
import pytest

from sharding.planners.stages.microbatches_held import microbatches_held
from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_in_flight
from sharding.schedules.one_f_one_b import one_f_one_b, one_f_one_b_in_flight
from sharding.schedules.ops import OpGraph


@pytest.mark.parametrize("extra", [0, 2])
@pytest.mark.parametrize("microbatches", [1, 6, 8, 9, 24])
@pytest.mark.parametrize(("pp", "chunks"), [(1, 1), (4, 1), (3, 2), (2, 4), (4, 3)])
def test_no_stage_holds_more(pp, chunks, microbatches, extra):
    held = most_held(pp, chunks, microbatches, extra)
    bound = microbatches_held(pp, chunks, microbatches, extra)
    assert (held <= bound).all()
    if not extra and microbatches % pp == 0:
        assert (held == bound).all()


def most_held(pp, chunks, microbatches, extra):
    """By replaying the schedule."""
    stages = [("chain", number) for number in range(pp * chunks)]
    graph = StageGraph(
        {stage: frozenset({stage[1] % pp}) for stage in stages},
        tuple(zip(stages, stages[1:], strict=False)),
        {"chain": pp} if chunks > 1 else {},
    )
    backward = frozenset(stages)
    op_graph = OpGraph(stage_graph=graph, microbatches=microbatches, backward_stages=backward, trained_stages=backward)
    order, limits = (interleaved, interleaved_in_flight) if chunks > 1 else (one_f_one_b, one_f_one_b_in_flight)
    schedule = order(op_graph, {rank: limit + extra for rank, limit in limits(op_graph).items()})
    now, most = np.zeros(len(stages), int), np.zeros(len(stages), int)
    for op in schedule.ops:
        if op.kind in ("forward", "backward"):
            now[op.stage] += 1 if op.kind == "forward" else -1
            most = np.maximum(most, now)
    return most
