"""Edits are tried until enough are valid, and a plan that can be improved by hand is found to be."""

import dataclasses
import random

import pytest

from benchmarks.planner.edits.drafts import draft_of
from benchmarks.planner.edits.draws import DrawnEdit
from benchmarks.planner.edits.measure import edits_row
from benchmarks.planner.edits.problems import PROBLEMS
from benchmarks.planner.edits.table import print_edits
from benchmarks.planner.edits.trials import MOST_DRAWS, EditTrials, try_edits
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.plans.resolved.resolved_plan import resolve_plan
from tests.benchmarks.planner.edits.plans import POLICIES, planned, small_problem


@pytest.mark.parametrize("policy", POLICIES)
def test_valid_edits_are_plans_that_can_run_and_their_steps_are_simulated(policy):
    problem, chosen = small_problem(), planned(policy)
    trials = try_edits(problem, chosen, 25, seed=1)
    plans = [tried.plan for tried in trials.valid]
    assert len(plans) == 25 == len(set(plans))
    assert dataclasses.replace(chosen.plan, made_for=None) not in plans
    for tried in trials.valid:
        resolve_plan(tried.plan, problem.graph, problem.devices)
        timeline = problem.simulate(tried.plan)
        if tried.step > chosen.timeline.step:
            assert timeline.step >= tried.step * (1 - 1e-9)
        else:
            assert timeline.step == tried.step and problem.memory_fraction(timeline) <= 1


def with_full_recomputation() -> SimulatedPlan:
    plan = planned("disaggregated").plan
    units = tuple(dataclasses.replace(unit, recompute=("full",) * unit.stage_count) for unit in plan.units)
    bad = dataclasses.replace(plan, units=units)
    return SimulatedPlan(bad, small_problem().simulate(bad))


def test_a_plan_that_recomputes_for_nothing_is_found_to_be_improvable():
    trials = try_edits(small_problem(), with_full_recomputation(), 60)
    assert trials.best is not None and trials.shorter_by(trials.best) > 0.005
    assert any(field.startswith("recompute") for field in trials.best_by_field)
    row = edits_row("bad", "by hand", trials)
    assert row["met"] is False and row["best"] == trials.best.edit.words
    assert row["value"] == max(row["fields"].values())


def test_refused_edits_are_counted_by_their_reason():
    problem, chosen = small_problem(), planned("disaggregated")

    def too_many_devices(problem, plan, choice) -> DrawnEdit:
        draft = draft_of(plan)
        draft.units[0]["dp"] = draft.units[0].phase_rows = problem.devices + 1
        return DrawnEdit("dp", draft, f"vision: dp {choice.random()}")

    def stages_without_layers(problem, plan, choice) -> DrawnEdit:
        draft = draft_of(plan)
        draft.units[0].layers[0] = 0
        draft.units[0].policies = draft.units[0].policies[: sum(draft.units[0].layers)]
        return DrawnEdit("layers", draft, f"vision: layers {choice.random()}")

    for draw, reason in ((too_many_devices, "devices"), (stages_without_layers, "fields")):
        trials = try_edits(problem, chosen, 1, draw=draw)
        assert trials.refused == {reason: MOST_DRAWS} and not trials.valid and trials.best is None
        assert draw(problem, chosen.plan, random.Random(0)).words in trials.examples[reason]  # the first one's


def test_edits_that_overfill_the_memory_are_refused():
    chosen = planned("disaggregated")
    full = dataclasses.replace(
        small_problem().cluster,
        memory=small_problem().cluster.memory * small_problem().memory_fraction(chosen.timeline),
    )
    tight = dataclasses.replace(small_problem(), cluster=full)
    trials = try_edits(tight, chosen, 40)
    assert trials.refused["memory"] > 0
    assert trials.refused["memory"] > try_edits(small_problem(), chosen, 40).refused["memory"]


def test_the_same_plan_counts_once():
    edits = iter(range(10_000))

    def deeper(problem, plan, choice) -> DrawnEdit:
        draft = draft_of(plan)
        draft.units[0].extra_microbatches = extra = 1 + next(edits) % 2
        return DrawnEdit("extra_microbatches", draft, f"vision: extra_microbatches -> {extra}")

    trials = try_edits(small_problem(), planned("rigid_first_stage"), 5, draw=deeper)
    assert len(trials.valid) + trials.refused.total() == 2 and trials.draws == 5 * MOST_DRAWS


def test_the_table_names_the_best_edit_and_the_plans_beyond_the_goal(capsys):
    good = edits_row("good", "disaggregated", EditTrials(planned("disaggregated")))
    bad = edits_row("bad", "by hand", try_edits(small_problem(), with_full_recomputation(), 40))
    print_edits([good])
    assert "No edit shortens a step by more than 0.5%." in capsys.readouterr().out
    print_edits([good, bad])
    printed = capsys.readouterr().out
    assert "On bad an edit shortens the step by more than 0.5%." in printed
    assert bad["best"] in printed and f"{bad['value']:.2%}" in printed


def test_the_problems_are_of_five_models_on_four_clusters():
    sizes = PROBLEMS.values()
    assert len(sizes) == 12
    assert len({size.model for size in sizes}) == 5 and len({size.cluster for size in sizes}) == 4
