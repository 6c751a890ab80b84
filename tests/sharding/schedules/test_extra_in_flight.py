"""Schedules within limits that a plan raises: valid, no more than the limits, and in slots never slower."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.schedules.checks import check_schedule
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_in_flight
from sharding.schedules.named.build import build_schedule
from sharding.schedules.one_f_one_b import gpipe, gpipe_in_flight, one_f_one_b, one_f_one_b_in_flight
from sharding.schedules.ops import ScheduleError
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph
from tests.sharding.schedules.slots import op_slots
from tests.sharding.stage_graphs import build_op_graph, chain, fan, recipes, training
from tests.unit_plans import module_unit

POLICIES = [(gpipe, gpipe_in_flight), (one_f_one_b, one_f_one_b_in_flight), (interleaved, interleaved_in_flight)]
GRAPH = ModuleGraph((ModuleSpec("vision", 2), ModuleSpec("backbone", 4, ("vision",))))


def most_held(schedule, stage_ids) -> int:
    steps = {"forward": 1, "backward": -1}
    return max(itertools.accumulate(steps.get(op.kind, 0) for op in schedule.ops if op.stage_id in stage_ids))


@pytest.mark.parametrize(("policy", "bounds"), POLICIES)
@given(recipe=recipes(), extra=st.lists(st.integers(0, 4), min_size=5, max_size=5))
@settings(max_examples=25, deadline=None)
def test_every_order_is_valid_within_raised_limits(policy, bounds, recipe, extra):
    op_graph = build_op_graph(recipe)
    more = dict(zip(("near", "far", "backbone", "paint", "draw"), extra, strict=True))
    limits = {rank: limit + more[rank[0]] for rank, limit in bounds(op_graph).items()}
    check_schedule(policy(op_graph, limits), limits)


@pytest.mark.parametrize("microbatches", [1, 3, 12])
@pytest.mark.parametrize("extra", [0, 1, 2, 5])
def test_a_chain_holds_what_it_runs_until_its_first_backward(extra, microbatches):
    length = 4
    op_graph = training(chain(length), microbatches)
    limits = {rank: limit + extra for rank, limit in one_f_one_b_in_flight(op_graph).items()}
    schedule = one_f_one_b(op_graph, limits)
    assert 1 + max(op_slots(schedule).values()) == 2 * (microbatches + length - 1)
    for stage in range(length):
        # The gradient comes back after 2 (p - i) - 1 slots, so a stage never holds more (eager 1F1B).
        most = min(microbatches, length - stage + extra, 2 * (length - stage) - 1)
        assert most_held(schedule, [("unit", stage)]) == most


@pytest.mark.parametrize(("near", "far", "backbone"), [(1, 1, 1), (1, 4, 2), (3, 2, 3)])
def test_in_slots_a_fan_takes_no_longer_with_more_in_flight(near, far, backbone):
    op_graph = training(fan(near, far, backbone), 8)
    limits = {rank: limit + 2 for rank, limit in one_f_one_b_in_flight(op_graph).items()}
    slots = [1 + max(op_slots(one_f_one_b(op_graph, bound)).values()) for bound in (None, limits)]
    assert slots[1] <= slots[0]


def plan(extra: int, microbatches: int = 8) -> Plan:
    backbone = module_unit("backbone", (1, 2), layers=(2, 2), extra_microbatches=extra)
    vision = module_unit("vision", (0,), layers=(2,), extra_microbatches=extra)
    return Plan((vision, backbone), microbatches)


def test_a_plans_field_raises_the_limits_of_its_units():
    stages = frozenset(ResolvedPlan(plan(0), GRAPH).stages.stages)
    textbook, more = (build_schedule(ResolvedPlan(plan(extra), GRAPH), stages) for extra in (0, 1))
    stage = [("backbone", 0)]
    assert (most_held(textbook, stage), most_held(more, stage)) == (2, 3)
    with pytest.raises(ScheduleError, match="its stage then holds 3, not 2 at most"):
        check_schedule(more, one_f_one_b_in_flight(more.op_graph))
    assert build_schedule(ResolvedPlan(Plan.from_json(plan(1).to_json()), GRAPH), stages).ops == more.ops
