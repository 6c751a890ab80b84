"""Encoders in the bubbles of a backbone: valid orders, never longer than interleaved 1F1B, the same everywhere."""

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.schedules.checks import check_schedule
from sharding.schedules.colocation.backbone_timeline import with_late_warm_up
from sharding.schedules.colocation.bubble_use import bubble_use
from sharding.schedules.colocation.colocated import (
    coarse_colocated,
    colocated,
    colocated_in_flight,
    most_in_flight,
)
from sharding.schedules.colocation.colocated_step import colocated_step
from sharding.schedules.colocation.colocated_units import ColocatedUnits
from sharding.schedules.hop_order import order_hops
from sharding.schedules.in_flight import InFlightMicrobatches
from sharding.schedules.interleaved_1f1b import interleaved
from sharding.schedules.named.build import build_schedule
from sharding.schedules.ops import COMPUTE_KINDS, OpGraph, Schedule
from sharding.schedules.pass_seconds import pass_seconds
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph
from tests.sharding.colocated_steps import Backbone, Encoder, colocated_op_graph, colocated_recipes
from tests.sharding.hash_seeds import outputs_by_hash_seed
from tests.sharding.schedules.cyclic_waits import check_restricted_orders
from tests.sharding.schedules.test_order_by_seconds import SECONDS, with_seconds
from tests.sharding.stage_graphs import build_op_graph, fan, recipes, training
from tests.unit_plans import module_unit

ROUNDING = 1 + 1e-9


def seconds_with_hops(schedule: Schedule) -> float:
    """Seconds of all passes and hops, which occupy both their ends."""
    programs = [tuple(op for op in program if op.kind in COMPUTE_KINDS) for program in schedule.by_program]
    return order_hops(schedule.op_graph, [program for program in programs if program]).seconds


def optimus_step(microbatches: int = 32, **backbone_fields) -> OpGraph:
    """A backbone of 8 ranks, and a pipeline replica of an encoder of 6 slices on each, with 8% of all work."""
    pipeline_replicas = tuple(number % 8 for number in range(microbatches))
    return colocated_op_graph(
        Backbone(ranks=8, **backbone_fields), (Encoder(6, 1, pipeline_replicas, 0.73 / 6, 1.46 / 6),)
    )


@given(recipe=colocated_recipes())
@settings(max_examples=60, deadline=None)
def test_every_order_is_valid_and_none_is_longer_than_interleaved(recipe):
    op_graph = colocated_op_graph(*recipe)
    schedule, coarse = colocated(op_graph), coarse_colocated(op_graph)
    check_schedule(schedule, colocated_in_flight(op_graph))
    check_schedule(coarse, most_in_flight(coarse))
    check_restricted_orders(schedule)
    assert seconds_with_hops(schedule) <= seconds_with_hops(interleaved(op_graph)) * ROUNDING
    assert seconds_with_hops(schedule) <= seconds_with_hops(coarse) * ROUNDING


@given(recipe=recipes(), seconds=SECONDS | st.none())
@settings(max_examples=30, deadline=None)
def test_orders_on_any_devices_are_valid(recipe, seconds):
    """Units share devices at random, and each may be frozen in part; without seconds all ops take one slot."""
    op_graph = build_op_graph(recipe)
    op_graph = with_seconds(op_graph, seconds) if seconds else op_graph
    check_schedule(colocated(op_graph), colocated_in_flight(op_graph))


@given(recipe=colocated_recipes(), extra=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_orders_with_more_in_flight_are_valid_and_no_longer(recipe, extra):
    op_graph = colocated_op_graph(*recipe)
    limits = {rank: limit + extra for rank, limit in colocated_in_flight(op_graph).items()}
    schedule = colocated(op_graph, limits)
    check_schedule(schedule, limits)
    if colocated_step(op_graph) is not None:  # else it is interleaved 1F1B, in which more in flight may take longer
        assert seconds_with_hops(schedule) <= seconds_with_hops(colocated(op_graph)) * ROUNDING


@pytest.mark.parametrize(
    ("microbatches", "fine", "coarse"), [(32, 119.19, 125.76), (24, 95.19, 99.57), (16, 71.19, 73.38)]
)
def test_all_encoder_work_but_one_microbatch_hides_in_the_bubbles(microbatches, fine, coarse):
    """The first microbatch's forward and the last one's backward cannot: 0.73 + 1.46 s on top of the backbone's."""
    op_graph = optimus_step(microbatches)
    use = bubble_use(colocated(op_graph))
    assert use.step == pytest.approx(fine) == pytest.approx(use.backbone_alone + 0.73 + 1.46)
    assert use.backbone_alone == pytest.approx(3 * (microbatches + 7))
    assert use.in_bubbles == pytest.approx(1 - 1 / microbatches)
    assert use.efficiency == pytest.approx(1 - (0.73 + 1.46) * 8 / (2.19 * microbatches))
    coarse_use = bubble_use(coarse_colocated(op_graph))
    assert coarse_use.step == pytest.approx(coarse)
    assert coarse_use.in_bubbles < 0.8
    assert use.step + 5 < pass_seconds(interleaved(op_graph)) < 1.2 * use.step


def test_without_shared_devices_it_is_interleaved():
    op_graph = training(fan(1, 2, 2, chunks=(1, 1, 2)), 4)
    assert colocated(op_graph).ops == interleaved(op_graph).ops
    assert colocated_step(op_graph) is None and bubble_use(colocated(op_graph)) is None


def test_generators_and_units_that_follow_the_backbone_stay_with_it():
    pipeline_replicas = (0, 1, 0, 1)
    op_graph = colocated_op_graph(
        Backbone(ranks=2, chunks=2), (Encoder(1, 1, pipeline_replicas, 0.25, 0.5),) * 2, ((1, 0.5, 0.5), (2, 0.5, 0.5))
    )
    step = colocated_step(op_graph)
    assert step.units == ColocatedUnits("backbone", ("encoder0", "encoder1"))
    assert {op.unit for op in step.timeline.times} == {"backbone", "generator0", "generator1"}
    check_schedule(colocated(op_graph), colocated_in_flight(op_graph))


def test_frozen_encoders_only_run_forwards_before_the_backbone_needs_them():
    pipeline_replicas = tuple(number % 4 for number in range(8))
    op_graph = colocated_op_graph(Backbone(ranks=4), (Encoder(2, 1, pipeline_replicas, 0.5, 0.0, trains=False),))
    use = bubble_use(colocated(op_graph))
    assert use.step == pytest.approx(use.backbone_alone + 1.0)
    assert not [op for op in colocated(op_graph).ops if op.kind == "backward" and op.unit == "encoder0"]


FROZEN = Backbone(ranks=1, forward=1 / 16, backward=1 / 16, trains=False)


@given(recipe=colocated_recipes())
@example((FROZEN, tuple(Encoder(1, 1, (0, 0, 0), 0.0, backward, trains=backward > 0) for backward in (0.0, 0.125)), ()))
@settings(max_examples=40, deadline=None)
def test_a_late_warm_up_moves_forwards_only_later_and_ends_no_later(recipe):
    step = colocated_step(colocated_op_graph(*recipe))
    if step is None:
        return
    before, after = step.timeline, with_late_warm_up(step.timeline)
    assert after.end == pytest.approx(before.end, rel=1e-9)
    for op, (start, end) in after.times.items():
        assert start >= before.times[op][0] - 1e-9
        assert op.kind == "forward" or (start, end) == before.times[op]
    for busy in after.busy():
        assert all(first[1] <= second[0] + 1e-9 for first, second in zip(busy[:-1], busy[1:], strict=True))


def test_a_late_warm_up_frees_time_before_the_first_backwards():
    """Figure 12: with 2 chunks and 8 microbatches, the backbone needs the last four later."""
    step = colocated_step(colocated_op_graph(Backbone(ranks=4, chunks=2), (Encoder(1, 1, (0, 1, 2, 3) * 2, 0.1, 0.1),)))
    first = ("encoder0", 0)
    moved = [
        with_late_warm_up(step.timeline).needed_at(first, number) - step.timeline.needed_at(first, number)
        for number in range(8)
    ]
    assert moved[:4] == [0.0] * 4 and min(moved[4:6]) > 0


def test_encoder_forwards_hold_no_more_than_they_must():
    """A microbatch is in flight from shortly before the backbone takes it, not from the start of the step."""
    op_graph = optimus_step(16)
    held = InFlightMicrobatches(op_graph)
    most = 0
    for op in colocated(op_graph).ops:
        held.record(op)
        most = max(most, held["encoder0", 0])
    assert most == colocated_in_flight(op_graph)["encoder0", 0] == 2 * 6


def test_slices_run_beside_exposed_collectives_where_that_is_shorter():
    """Small slices fit beside the collectives of a tensor-parallel backbone without bubbles of its own."""
    pipeline_replicas = tuple(number % 2 for number in range(8))
    encoder = Encoder(4, 1, pipeline_replicas, 0.2, 0.4)
    without = colocated_op_graph(Backbone(ranks=2, chunks=4), (encoder,))
    with_collectives = colocated_op_graph(
        Backbone(ranks=2, chunks=4, forward_communication=0.5, backward_communication=1.0), (encoder,)
    )
    schedule = colocated(with_collectives)
    check_schedule(schedule, colocated_in_flight(with_collectives))
    assert not colocated(without).bundled and schedule.bundled
    assert seconds_with_hops(schedule) < seconds_with_hops(colocated(without))
    unbundled = Schedule(with_collectives, schedule.ops)
    assert pass_seconds(schedule) < pass_seconds(unbundled)


def test_slices_run_beside_reductions_of_the_backbone():
    op_graph = optimus_step(16, chunks=2, forward_communication=0.1)
    schedule = colocated(op_graph)
    check_schedule(schedule, colocated_in_flight(op_graph))
    hosts = [before for before, op in zip(schedule.ops, schedule.ops[1:], strict=False) if op in schedule.bundled]
    assert {op.unit for op in hosts} == {"backbone"}
    assert sum(op.kind == "reduce" for op in hosts) > 8
    for number, op in enumerate(schedule.ops):  # no other devices wait for devices that reduce
        if op.kind == "reduce" and schedule.ops[number + 1] in schedule.bundled:
            held = op_graph.devices_of(op)
            hops = [hop for hop in schedule.ops[number:] if hop.kind == "gradient_hop"]
            assert all(op_graph.devices_of(hop) == held or held.isdisjoint(op_graph.devices_of(hop)) for hop in hops)
    assert not colocated(optimus_step(16, chunks=2)).bundled


GRAPH = ModuleGraph((ModuleSpec("vision", 2), ModuleSpec("backbone", 4, ("vision",))))


def colocated_plan(extra: int) -> Plan:
    vision = module_unit(
        "vision",
        (0, 1),
        layers=(1, 1),
        chunks=2,
        pipeline_replicas=2,
        replica_of_microbatch=(0, 1, 1, 0),
        forward_seconds=(0.25, 0.25),
        backward_seconds=(0.5, 0.5),
    )
    backbone = module_unit(
        "backbone",
        (0, 1),
        layers=(2, 2),
        extra_microbatches=extra,
        forward_seconds=(1.0, 1.0),
        backward_seconds=(2.0, 2.0),
    )
    return Plan((vision, backbone), 4, "colocated")


@pytest.mark.parametrize("extra", [0, 1])
def test_a_plan_names_the_schedule(extra):
    plan = Plan.from_json(colocated_plan(extra).to_json())
    stages = frozenset(ResolvedPlan(plan, GRAPH).stages.stages)
    schedule = build_schedule(ResolvedPlan(plan, GRAPH), stages)
    assert pass_seconds(schedule) == pytest.approx(3 * (4 + 1) + 1.5)
    devices = {
        op.microbatch: schedule.op_graph.devices_of(op)
        for op in schedule.ops
        if op.kind == "forward" and op.unit == "vision"
    }
    assert devices == {0: {0}, 1: {1}, 2: {1}, 3: {0}}


PROGRAM = """
import hashlib
from sharding.schedules.colocation.colocated import colocated
from tests.sharding.schedules.colocation.test_colocated import optimus_step
schedule = colocated(optimus_step(16, chunks=2, forward_communication=0.1))
print(hashlib.sha256(repr((schedule.ops, sorted(schedule.bundled))).encode()).hexdigest())
"""


@pytest.mark.processes
def test_every_process_makes_the_same_order():
    assert len(outputs_by_hash_seed(PROGRAM)) == 1
    without_seconds = dataclasses.replace(optimus_step(8), seconds={})
    assert colocated(without_seconds).op_graph is without_seconds
