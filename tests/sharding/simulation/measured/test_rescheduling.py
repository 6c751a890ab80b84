"""The order of a step computed anew: the plan's order for the measured seconds, and only where it is shorter."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import BackboneConfig, ModelConfig, UNetConfig, VisionConfig
from sharding.plans.plan import Plan
from sharding.plans.resolved.device_groups import replica_devices
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.named import registry
from sharding.schedules.named.build import build_schedule
from sharding.schedules.one_f_one_b import gpipe_in_flight, one_f_one_b, one_f_one_b_in_flight
from sharding.schedules.ops import OpGraph, Schedule
from sharding.schedules.pass_seconds import pass_seconds
from sharding.simulation.measured.measured_seconds import mean_seconds, pass_of_timeline
from sharding.simulation.measured.rescheduling import (
    LEAST_GAIN,
    Reconsidered,
    expected_seconds,
    reconsider_order,
    with_measured_seconds,
)
from sharding.simulation.simulator import simulate_on_devices
from sharding.specs.modules import module_graph
from tests.sharding.schedules.one_by_one import one_by_one
from tests.sharding.steps import stage_costs, step_costs
from tests.unit_plans import module_unit

GRAPH = module_graph(ModelConfig((VisionConfig(depth=1),), BackboneConfig(depth=4), (UNetConfig(),)))
PLAN = Plan(
    (
        module_unit("vision", (0,)),
        module_unit("backbone", (1, 2), layers=(1,) * 4, recompute=("none",) * 4, chunks=2),
        module_unit("generator", (3,)),
    ),
    microbatches=6,
    schedule="interleaved",
)
STAGES = tuple((unit.name, stage) for unit in PLAN.units for stage in range(unit.stage_count))
SECONDS = st.lists(
    st.tuples(*[st.integers(1, 64).map(lambda n: n / 16)] * 2), min_size=len(STAGES), max_size=len(STAGES)
)


def with_seconds(plan: Plan, seconds) -> Plan:
    """The plan with (forward, backward) seconds of every stage, in the order of `STAGES`."""
    seconds_by_stage = dict(zip(STAGES, seconds, strict=True))

    def with_stage_seconds(unit: UnitPlan) -> UnitPlan:
        pairs = [seconds_by_stage[unit.name, stage] for stage in range(unit.stage_count)]
        forward, backward = (tuple(column) for column in zip(*pairs, strict=True))
        return unit.with_hints(forward_seconds=forward, backward_seconds=backward)

    return dataclasses.replace(plan, units=tuple(map(with_stage_seconds, plan.units)))


def planned(plan: Plan) -> Schedule:
    return build_schedule(ResolvedPlan(plan, GRAPH), frozenset(STAGES))


def run(plan: Plan, schedule: Schedule, seconds):
    """The timeline of a step in some order, whose ops take these seconds."""
    op_graph, shape = schedule.op_graph, (plan.microbatches, 1)
    costs = {
        stage: stage_costs(np.full(shape, forward), np.full(shape, backward))
        for stage, (forward, backward) in zip(STAGES, seconds, strict=True)
    }
    devices = replica_devices(plan, op_graph.stage_graph.stages)
    return simulate_on_devices(devices, schedule, step_costs(op_graph, costs))


@settings(max_examples=40, deadline=None)
@given(supposed=SECONDS, true=SECONDS)
def test_the_new_order_is_that_of_a_plan_with_the_measured_seconds_and_shorter(supposed, true):
    plan = with_seconds(PLAN, supposed)
    schedule, best = planned(plan), planned(with_seconds(PLAN, true))
    timeline = run(plan, schedule, true)
    reconsidered = reconsider_order(ResolvedPlan(plan, GRAPH), schedule, timeline, None, 0.0)
    before, after = timeline.step, pass_seconds(best)
    if after > (1 - LEAST_GAIN) * before:
        assert reconsidered == Reconsidered(before)
        return
    new = reconsidered.new_order
    assert new
    assert new.schedule.ops == best.ops and new.same_sums
    assert (new.before, new.after) == (before, after) and reconsidered.expected == pytest.approx(after, rel=1e-12)
    # It stays: the step then takes what was predicted, and what is computed from it is the same order.
    again = run(plan, new.schedule, true)
    assert reconsider_order(
        ResolvedPlan(plan, GRAPH), new.schedule, again, reconsidered.expected, 1e-9
    ) == Reconsidered(reconsidered.expected)
    assert reconsider_order(ResolvedPlan(plan, GRAPH), new.schedule, again, None, 0.0) == Reconsidered(after)


@settings(max_examples=20, deadline=None)
@given(seconds=SECONDS, slower=st.integers(1, 16).map(lambda n: n / 8))
def test_a_step_that_takes_what_was_predicted_keeps_its_order(seconds, slower):
    plan = with_seconds(PLAN, seconds)
    schedule = planned(plan)
    expected = expected_seconds(schedule)
    timeline = run(plan, schedule, seconds)
    assert expected == pass_of_timeline(timeline)
    assert reconsider_order(ResolvedPlan(plan, GRAPH), schedule, timeline, expected, 0.0) == Reconsidered(expected)
    # All ops that are slower by one factor leave nothing to gain, but it is noted what the step takes now.
    timeline = run(plan, schedule, [(slower * forward, slower * backward) for forward, backward in seconds])
    within = reconsider_order(ResolvedPlan(plan, GRAPH), schedule, timeline, expected, abs(slower - 1))
    assert within == Reconsidered(expected)
    if slower != 1:
        beyond = reconsider_order(ResolvedPlan(plan, GRAPH), schedule, timeline, expected, abs(slower - 1) * 0.99)
        assert beyond == Reconsidered(slower * expected)


def test_a_plan_without_seconds_predicts_nothing():
    assert expected_seconds(planned(PLAN)) is None


def test_a_step_in_which_a_unit_had_nothing_to_do_changes_nothing():
    plan = with_seconds(PLAN, [(1.0, 1.0)] * len(STAGES))
    seconds = [(0.0, 0.0) if unit == "vision" else (5.0, 1.0) for unit, _ in STAGES]
    schedule = planned(plan)
    reconsidered = reconsider_order(ResolvedPlan(plan, GRAPH), schedule, run(plan, schedule, seconds), 12.0, 0.0)
    assert reconsidered == Reconsidered(12.0)


@settings(max_examples=20, deadline=None)
@given(supposed=SECONDS, true=SECONDS, share=st.integers(0, 16).map(lambda n: n / 16))
def test_the_share_of_communication_stays_that_of_the_plan(supposed, true, share):
    plan = with_seconds(PLAN, supposed)
    units = [
        unit.with_hints(forward_communication=tuple(share * seconds for seconds in unit.schedule_hints.forward_seconds))
        for unit in plan.units
    ]
    plan = dataclasses.replace(plan, units=tuple(units))
    schedule = planned(plan)
    means = mean_seconds(run(plan, schedule, true))
    measured = with_measured_seconds(plan, schedule.op_graph.stage_graph, means)
    expected = with_seconds(PLAN, true)
    for unit, true_unit in zip(measured.units, expected.units, strict=True):
        np.testing.assert_allclose(unit.schedule_hints.forward_seconds, true_unit.schedule_hints.forward_seconds)
        np.testing.assert_allclose(unit.schedule_hints.backward_seconds, true_unit.schedule_hints.backward_seconds)
        np.testing.assert_allclose(
            unit.schedule_hints.forward_communication, share * np.array(unit.schedule_hints.forward_seconds), atol=1e-12
        )
        assert unit.schedule_hints.backward_communication == ()


def test_an_order_that_takes_microbatches_in_another_sequence_changes_sums(monkeypatch):
    def one_by_one_until_measured(op_graph: OpGraph, _) -> Schedule:
        if not op_graph.seconds:
            return one_by_one(op_graph)
        last = op_graph.microbatches - 1
        ops = one_f_one_b(op_graph, one_f_one_b_in_flight(op_graph)).ops
        return Schedule(
            op_graph, tuple(op._replace(microbatch=last - op.microbatch) if op.microbatch >= 0 else op for op in ops)
        )

    monkeypatch.setattr(registry, "_schedules", dict(registry.BUILT_IN_SCHEDULES))
    registry.register_schedule("mine", one_by_one_until_measured, gpipe_in_flight)
    plan = dataclasses.replace(PLAN, schedule="mine")
    schedule = planned(plan)
    reconsidered = reconsider_order(
        ResolvedPlan(plan, GRAPH), schedule, run(plan, schedule, [(1.0, 2.0)] * len(STAGES)), None, 0.0
    )
    assert reconsidered.new_order and not reconsidered.new_order.same_sums


def test_an_order_that_holds_more_microbatches_than_the_plan_allows_is_not_taken(monkeypatch):
    def order(op_graph: OpGraph, limits) -> Schedule:
        return one_f_one_b(op_graph, limits) if op_graph.seconds else one_by_one(op_graph)

    def in_flight(op_graph: OpGraph):
        limits = one_f_one_b_in_flight(op_graph)
        return limits if op_graph.seconds else dict.fromkeys(limits, 1)

    plan = dataclasses.replace(PLAN, schedule="mine")
    for max_in_flight, taken in ((one_f_one_b_in_flight, True), (in_flight, False)):
        monkeypatch.setattr(registry, "_schedules", {"mine": registry.SchedulePolicy(order, max_in_flight)})
        schedule = planned(plan)
        timeline = run(plan, schedule, [(1.0, 2.0)] * len(STAGES))
        reconsidered = reconsider_order(ResolvedPlan(plan, GRAPH), schedule, timeline, None, 0.0)
        assert (reconsidered.new_order is not None) == taken
        assert taken or reconsidered == Reconsidered(timeline.step)
