"""The search by single changes: it mends what was made worse, and ends where no change helps."""

import dataclasses

import pytest
from hypothesis import given, settings

from sharding.planners.moves import local_search
from sharding.planners.moves.change import Change, UnitChange, changed_plan
from sharding.planners.moves.devices import microbatch_changes
from sharding.planners.moves.local_search import CHANGE_KINDS, LEAST_GAIN, improve_plan, improve_plans
from sharding.planners.policies.auto import LOCAL_SEARCH, PolicyResult, is_trainable, run_local_search, run_policy
from sharding.planners.problem import STEP_SLACK
from sharding.planners.simulated_plan import ImprovedPlan, SimulatedPlan
from sharding.plans.plan_error import PlanError
from sharding.schedules.named import registry
from sharding.schedules.one_f_one_b import one_f_one_b, one_f_one_b_in_flight
from sharding.schedules.ops import ScheduleError
from tests.sharding.planners.problems import build_problem, problem, recipes

PROBLEM = problem(devices=12)
START = run_policy(PROBLEM, "disaggregated")


def improved(case, plan):
    return improve_plan(case, plan, case.simulate(plan))


def is_better(case, plan, best):
    """Whether the search would have taken a plan."""
    timeline = case.simulate(plan)
    step, limit = timeline.step, best.timeline.step
    economical = plan.device_count * step <= best.plan.device_count * limit
    shorter = step < limit * (1 - LEAST_GAIN) if economical else step < limit * (1 - STEP_SLACK)
    return shorter and case.memory_fraction(timeline) <= 1


def test_a_plan_that_was_made_worse_is_mended():
    worse = changed_plan(
        PROBLEM,
        START.plan,
        Change(
            "",
            {
                unit.name: UnitChange(policies=("full",) * sum(unit.layers), extra_microbatches=0)
                for unit in START.plan.units
            },
        ),
    )
    assert PROBLEM.simulate(worse).step > START.timeline.step * 1.05
    best = improved(PROBLEM, worse)
    assert best.timeline.step <= improved(PROBLEM, START.plan).timeline.step * 1.02
    assert any("none" in words for words in best.changes)


@settings(max_examples=6)
@given(recipes())
def test_no_change_is_left_that_would_be_taken(recipe):
    case = build_problem(recipe)
    start = run_policy(case, "disaggregated")
    if not start.simulated or not is_trainable(case, start.plan):
        return
    best = improved(case, start.plan)
    assert best.timeline.step <= start.timeline.step and is_trainable(case, best.plan)
    assert case.simulate(best.plan).step == best.timeline.step
    assert case.memory_fraction(best.timeline) <= 1
    assert bool(best.changes) == (best.plan != start.plan)
    for kind in CHANGE_KINDS:
        for change in kind(case, best.plan):
            try:
                plan = changed_plan(case, best.plan, change)
            except PlanError:
                continue
            assert not is_better(case, plan, best), change.words


def test_the_search_ends_with_its_ops(monkeypatch):
    monkeypatch.setattr(local_search, "MOST_OPS", 1)
    simulated = []
    counted = dataclasses.replace(PROBLEM)
    simulate = type(PROBLEM).simulate
    monkeypatch.setattr(type(PROBLEM), "simulate", lambda *given: simulated.append(given) or simulate(*given))
    improve_plan(counted, START.plan, START.timeline)
    assert len(simulated) == 1


def test_plans_that_are_far_from_the_shortest_are_not_changed():
    start = ImprovedPlan(START.plan, START.timeline)
    rigid = run_policy(PROBLEM, "rigid_first_stage")
    far = ImprovedPlan(rigid.plan, rigid.timeline)
    alone, (near, other) = improve_plans(PROBLEM, [far])[0], improve_plans(PROBLEM, [start, far])
    assert near.timeline.step == improve_plans(PROBLEM, [start])[0].timeline.step
    assert near.timeline.step * (1 + local_search._FAR) < far.timeline.step
    assert alone.changes and not other.changes


def test_plans_that_a_registered_schedule_refuses_are_left_out(monkeypatch):
    """Every change of the microbatches is refused; without another kind of changes none is left."""
    microbatches = []

    def order(op_graph, limits):
        if op_graph.microbatches not in microbatches:
            raise ScheduleError("the schedule takes another number of microbatches")
        return one_f_one_b(op_graph, limits)

    monkeypatch.setattr(registry, "_schedules", dict(registry.BUILT_IN_SCHEDULES))
    registry.register_schedule("picky", order, one_f_one_b_in_flight)
    monkeypatch.setattr(local_search, "CHANGE_KINDS", (microbatch_changes,))
    case = problem(devices=8)
    start = run_policy(case, "disaggregated").plan
    slow = [dataclasses.replace(unit, recompute=("full",) * unit.stage_count) for unit in start.units]
    plan = dataclasses.replace(start, units=tuple(slow))
    microbatches.append(plan.microbatches)
    assert not improved(case, dataclasses.replace(plan, schedule="picky")).changes


def test_the_result_names_the_start_and_the_changes():
    found = run_local_search(PROBLEM, [START, run_policy(PROBLEM, "balanced"), run_policy(PROBLEM, "rigid")])
    assert found.policy == LOCAL_SEARCH and found.start in ("disaggregated", "balanced") and found.changes
    assert found.plan.made_for == PROBLEM.purpose
    again = run_local_search(PROBLEM, [PolicyResult("mine", SimulatedPlan(found.plan, found.timeline))])
    assert again.simulated is None or again.timeline.step < found.timeline.step
    if again.simulated is None:
        assert "no change of a plan shortens its step by 0.2%" in again.reason


def test_without_a_plan_that_can_be_trained_there_is_no_result():
    rigid = run_policy(PROBLEM, "rigid")
    assert not is_trainable(PROBLEM, rigid.plan)
    assert run_local_search(PROBLEM, [rigid]).simulated is None
    with pytest.raises(AssertionError, match="no policy has a plan that can be trained"):
        _ = run_local_search(PROBLEM, [rigid]).plan
