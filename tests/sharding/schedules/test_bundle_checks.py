"""Bundles run when both their ops can; those that cannot run, and orders that make processes wait, are refused."""

import re

import pytest

from sharding.schedules.checks import check_schedule
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_in_flight
from sharding.schedules.one_f_one_b import gpipe_in_flight
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule, ScheduleError
from sharding.schedules.pass_seconds import bundle_seconds, pass_seconds, pass_times
from tests.sharding.colocated_steps import Backbone, Encoder, colocated_op_graph
from tests.sharding.schedules.cyclic_waits import check_no_cyclic_waits

ENCODER, BACKBONE = "encoder0", "backbone"


def step(communication: float = 0.0, microbatches: int = 2) -> OpGraph:
    """An encoder with a pipeline replica on each of a backbone's two ranks;

    pipeline replica 1 takes the odd microbatches.
    """
    backbone = Backbone(ranks=2, forward=2.0, backward=4.0, forward_communication=communication)
    pipeline_replicas = tuple(number % 2 for number in range(microbatches))
    return colocated_op_graph(backbone, (Encoder(1, 1, pipeline_replicas, 1.0, 1.0),))


def op(kind: str, unit: str, stage: int = 0, microbatch: int = -1) -> PipelineOp:
    return PipelineOp(kind, unit, stage, microbatch)


def moved_behind(schedule: Schedule, moved: PipelineOp, before: PipelineOp) -> Schedule:
    """The schedule in which an op is bundled with another, right behind it."""
    ops = [candidate for candidate in schedule.ops if candidate != moved]
    position = ops.index(before) + 1
    return Schedule(schedule.op_graph, (*ops[:position], moved, *ops[position:]), frozenset([moved]))


def test_a_bundle_is_accepted_where_both_its_ops_can_run():
    op_graph = step(microbatches=4)
    moved, before = op("forward", ENCODER, 0, 3), op("forward", BACKBONE, 1, 0)
    ops = [
        candidate
        for candidate in interleaved(op_graph).ops
        if candidate[1:4] != moved[1:4] or candidate.kind not in ("forward", "hop")
    ]
    position = ops.index(before) + 1
    ops[position:position] = [moved, *op_graph.forward_hops(moved.stage_id, 3)]
    schedule = Schedule(op_graph, tuple(ops), frozenset([moved]))
    check_schedule(schedule, gpipe_in_flight(op_graph))
    assert schedule.restricted_to([1]).bundled and not schedule.restricted_to([0]).bundled


@pytest.mark.parametrize(
    ("moved", "before", "message"),
    [
        (
            op("backward", ENCODER, 0, 1),
            op("backward", BACKBONE, 0, 1),
            "backward encoder0 0 of microbatch 1 is scheduled before gradient_hop",
        ),
        (
            op("forward", ENCODER, 0, 1),
            op("forward", ENCODER, 0, 0),
            "bundled with forward encoder0 0 of microbatch 0; bundle a forward or backward with another unit's op",
        ),
        (
            op("backward", ENCODER, 0, 0),
            op("backward", BACKBONE, 0, 0),
            "backward encoder0 0 of microbatch 0 is scheduled before gradient_hop backbone 0 -> encoder0 0 "
            "of microbatch 0",
        ),
        (
            op("forward", ENCODER, 0, 1),
            op("forward", BACKBONE, 1, 1),
            "hop encoder0 0 -> backbone 0 of microbatch 1 is scheduled before forward encoder0 0 of microbatch 1",
        ),
        (
            op("forward", ENCODER, 0, 1),
            op("gather", ENCODER),
            "bundle a forward or backward with another unit's op",
        ),
    ],
)
def test_a_bundle_that_cannot_run_is_refused_with_both_names(moved, before, message):
    op_graph = step()
    schedule = moved_behind(interleaved(op_graph), moved, before)
    with pytest.raises(ScheduleError, match=re.escape(message)):
        check_schedule(schedule, gpipe_in_flight(op_graph))


@pytest.mark.parametrize(
    ("late", "needed_by"), [(("hop", BACKBONE, 0, 0), "the backbone's"), (("hop", ENCODER, 0, 1), "the encoder's")]
)
def test_a_cycle_through_a_bundle_is_found(late, needed_by):
    """A process that sends what one op of a bundle needs only after the bundle waits for itself."""
    op_graph = colocated_op_graph(Backbone(ranks=2), (Encoder(1, 2, (0, 0), 1.0, 1.0),))
    schedule = interleaved(op_graph)
    forward, before = op("forward", ENCODER, 1, 1), op("forward", BACKBONE, 1, 0)
    ops = [candidate for candidate in schedule.ops if candidate not in (forward, before)]
    position = ops.index(op("hop", ENCODER, 1, 1)._replace(target_unit=BACKBONE, target_stage=0))
    ops[position:position] = [before, forward]
    queues = [Schedule(op_graph, tuple(ops), frozenset([forward])).restricted_to([device]) for device in (0, 1)]
    check_no_cyclic_waits(queues)
    hop = next(candidate for candidate in queues[1].ops if candidate[:4] == late and candidate.target_stage == 1)
    mine = [candidate for candidate in queues[1].ops if candidate != hop]
    mine.insert(mine.index(forward) + 1, hop)
    message = f"wait for each other: .*{before} with {forward} before {hop}|{hop} before {before} with {forward}"
    with pytest.raises(ScheduleError, match=message):
        check_no_cyclic_waits([queues[0], Schedule(op_graph, tuple(mine), queues[1].bundled)])


def test_processes_must_agree_on_bundles():
    op_graph = colocated_op_graph(Backbone(ranks=2), (Encoder(1, 1, (0, 0), 1.0, 1.0),))
    schedule = interleaved(op_graph)
    one, other = (schedule.restricted_to([device]) for device in (0, 1))
    forward = op("forward", ENCODER, 0, 1)
    before = one.ops[one.ops.index(forward) - 1]
    with pytest.raises(
        ScheduleError, match=re.escape(f"disagree on what {forward} is bundled with: {before} or nothing")
    ):
        check_no_cyclic_waits([Schedule(op_graph, one.ops, frozenset([forward])), other])


@pytest.mark.parametrize(
    ("communication", "seconds"),
    [(0.0, 3.0), (0.5, 2.5), (1.0, 2.0), (2.0, 2.0)],
)
def test_a_bundle_hides_what_one_op_computes_beside_collectives_of_the_other(communication, seconds):
    op_graph = step(communication)
    one, other = op("forward", BACKBONE, 1, 0), op("forward", ENCODER, 0, 1)
    assert bundle_seconds(op_graph, one, other) == bundle_seconds(op_graph, other, one) == seconds


def test_both_ops_of_a_bundle_start_and_end_with_it():
    op_graph = step(0.5, microbatches=4)
    one, other = op("forward", BACKBONE, 1, 0), op("forward", ENCODER, 0, 3)
    schedule = moved_behind(interleaved(op_graph), other, one)
    times = pass_times(op_graph, schedule.ops, schedule.bundled)
    assert times[one] == times[other]
    assert times[one][1] - times[one][0] == 2.5
    assert times[op("forward", BACKBONE, 0, 3)][0] >= times[other][1]
    assert pass_seconds(schedule) == max(end for _, end in times.values())


def test_a_hand_edited_order_cannot_start_an_encoders_backward_before_its_gradient():
    op_graph = step()
    schedule = interleaved(op_graph)
    ops = list(schedule.ops)
    backward = op("backward", ENCODER, 0, 1)
    ops.remove(backward)
    ops.insert(ops.index(op("forward", BACKBONE, 1, 1)), backward)
    message = (
        "backward encoder0 0 of microbatch 1 is scheduled before gradient_hop backbone 0 -> encoder0 0 of microbatch 1"
    )
    with pytest.raises(ScheduleError, match=re.escape(message)):
        check_schedule(Schedule(op_graph, tuple(ops)), interleaved_in_flight(op_graph))
