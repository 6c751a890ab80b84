"""Registered schedules: found by name, checked before anything runs, and simulated beside the built-in ones."""

import dataclasses

import pytest

from configs.architectures import BackboneConfig, ModelConfig
from configs.common.errors import UserError
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.interleaved_1f1b import interleaved_in_flight
from sharding.schedules.named import registry
from sharding.schedules.named.build import build_schedule
from sharding.schedules.one_f_one_b import gpipe, gpipe_in_flight, one_f_one_b, one_f_one_b_in_flight
from sharding.schedules.ops import OpGraph, Schedule, ScheduleError
from sharding.schedules.zero_bubble import zero_bubble, zero_bubble_in_flight
from sharding.specs.modules import module_graph

GRAPH = module_graph(ModelConfig((), BackboneConfig(), ()))
STAGES = frozenset([("backbone", 0), ("backbone", 1)])
PLAN = Plan((UnitPlan("backbone", ("backbone",), (0, 1), layers=(2, 2), recompute=("none",) * 2),), 4, "mine")


@pytest.fixture(autouse=True)
def without_registrations(monkeypatch):
    """Undoes what a test registers."""
    monkeypatch.setattr(registry, "_schedules", dict(registry.BUILT_IN_SCHEDULES))


def backwards(op_graph: OpGraph, _) -> Schedule:
    return Schedule(op_graph, gpipe(op_graph).ops[::-1])


def without_last_op(op_graph: OpGraph, _) -> Schedule:
    return Schedule(op_graph, gpipe(op_graph).ops[:-1])


def with_an_op_twice(op_graph: OpGraph, _) -> Schedule:
    ops = gpipe(op_graph).ops
    return Schedule(op_graph, (*ops[:5], ops[4], *ops[5:]))


def half_a_step(op_graph: OpGraph, _) -> Schedule:
    return gpipe(dataclasses.replace(op_graph, microbatches=2))


def test_a_plan_names_a_registered_schedule_in_its_file():
    registry.register_schedule("mine", gpipe, gpipe_in_flight)
    schedule = build_schedule(ResolvedPlan(Plan.from_json(PLAN.to_json()), GRAPH), STAGES)
    assert schedule.ops == build_schedule(ResolvedPlan(dataclasses.replace(PLAN, schedule="gpipe"), GRAPH), STAGES).ops
    registry.register_schedule("mine", one_f_one_b, one_f_one_b_in_flight)  # a notebook's cell that is run again
    assert build_schedule(ResolvedPlan(PLAN, GRAPH), STAGES).ops != schedule.ops


def test_a_registered_schedule_may_split_backwards():
    registry.register_schedule("mine", zero_bubble, zero_bubble_in_flight, splits_backward=True)
    schedule = build_schedule(ResolvedPlan(PLAN, GRAPH), STAGES)
    assert schedule.ops == build_schedule(ResolvedPlan(dataclasses.replace(PLAN, schedule="zb-h1"), GRAPH), STAGES).ops
    assert sum(op.kind == "wgrad" for op in schedule.ops) == PLAN.microbatches * len(schedule.op_graph.split_stages) > 0
    registry.register_schedule("mine", zero_bubble, zero_bubble_in_flight)
    assert not any(op.kind == "wgrad" for op in build_schedule(ResolvedPlan(PLAN, GRAPH), STAGES).ops)


@pytest.mark.parametrize(
    ("order", "max_in_flight", "message"),
    [
        (backwards, gpipe_in_flight, r"schedule 'mine': update backbone 1 is scheduled before global_norm"),
        (without_last_op, gpipe_in_flight, "schedule 'mine': update backbone 1 is missing, and 0 more"),
        (with_an_op_twice, gpipe_in_flight, "schedule 'mine': .* is scheduled twice"),
        (
            lambda op_graph, _: gpipe(op_graph),
            interleaved_in_flight,
            "schedule 'mine': forward backbone 1 .* then holds 2, not 1 at most",
        ),
        (half_a_step, gpipe_in_flight, "schedule 'mine': it returns Schedule; return a Schedule of the op graph"),
        (lambda op_graph, _: list(gpipe(op_graph).ops), gpipe_in_flight, "schedule 'mine': it returns list"),
        (gpipe, lambda op_graph: {("backbone", 0): 4}, r"have none for stage \('backbone', 1\)"),
    ],
)
def test_an_order_that_cannot_run_is_refused_by_name_and_op(order, max_in_flight, message):
    registry.register_schedule("mine", order, max_in_flight)
    with pytest.raises(ScheduleError, match=message) as refusal:
        build_schedule(ResolvedPlan(PLAN, GRAPH), STAGES)
    assert isinstance(refusal.value, UserError) and "\n" not in str(refusal.value)


def test_unknown_names_and_those_of_built_in_schedules_are_refused():
    with pytest.raises(PlanError, match="'mine'; choose from gpipe, 1f1b, interleaved, zb-h1, colocated, or import"):
        build_schedule(ResolvedPlan(PLAN, GRAPH), STAGES)
    with pytest.raises(UserError, match="the schedule '1f1b' is built in; register yours under another name"):
        registry.register_schedule("1f1b", gpipe, gpipe_in_flight)
