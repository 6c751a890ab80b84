"""What is said of a choice: true where a shorter plan cannot be trained, and where fewer devices won."""

import dataclasses
import io

import pytest
from rich.console import Console

from configs.clusters import CLUSTERS
from mmjax.planning.choice import explain_choice, tied_with_choice
from mmjax.planning.report import plan_document, print_comparison
from sharding.costs.analytic import AnalyticCostModel
from sharding.planners.policies.auto import PolicyResult, best_result
from sharding.planners.policies.policy_comparison import PolicyComparison, compare_policies
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.planners.work_bound import least_work_seconds
from sharding.plans.plan import single_device_plan
from sharding.simulation.pages.html_tables import in_words, range_in_figures, range_in_words
from tests.sharding.planners.problems import problem

PROBLEM = problem(devices=12)


def compared(*results):
    return PolicyComparison(problem=PROBLEM, results=results, choice=best_result(PROBLEM, results), bound=1.0)


def result(name, plan):
    return PolicyResult(name, SimulatedPlan(plan, PROBLEM.simulate(plan)))


@pytest.fixture(scope="module")
def every_policy():
    return compare_policies(PROBLEM)


def test_the_best_of_all_policies_is_the_shortest_step(every_policy):
    said = explain_choice(every_policy)
    assert said.startswith(f"Choice: {every_policy.choice.policy}, ") and "times as long on" in said


def test_a_shorter_plan_that_cannot_be_trained_is_named_with_the_reason(every_policy):
    (rigid,) = [policy_result for policy_result in every_policy.results if policy_result.policy == "rigid"]
    said = explain_choice(compared(rigid, result("mine", single_device_plan(PROBLEM.graph))))
    ratio = rigid.timeline.step / PROBLEM.simulate(single_device_plan(PROBLEM.graph)).step
    assert said.startswith("Choice: mine, the shortest simulated step of the plans that can be trained. rigid takes ")
    assert f"rigid takes {ratio:.2f} times as long" in said and ratio < 1
    assert "but cannot be trained: unit vision: 8 rows of the global batch are not divisible by" in said
    assert "The next best" not in said


def test_a_choice_that_cannot_be_trained_says_so(every_policy):
    (rigid,) = [policy_result for policy_result in every_policy.results if policy_result.policy == "rigid"]
    said = explain_choice(compared(rigid))
    assert "Choice: rigid, the shortest simulated step. " in said and "but not trained: unit vision: 8 rows" in said


def test_the_distance_from_the_bound_is_said_of_every_plan(every_policy):
    assert every_policy.bound == least_work_seconds(PROBLEM)
    for policy_result in every_policy.results:
        if policy_result.simulated:
            above = every_policy.above_bound(policy_result)
            assert above == policy_result.timeline.step / every_policy.bound - 1 > 0
            assert f" {above:.0%} above the bound, {every_policy.bound:.3g} s" in explain_choice(
                dataclasses.replace(every_policy, choice=policy_result)
            )
    assert every_policy.above_bound(PolicyResult("mine", None, "no plan")) is None
    entries = plan_document(every_policy)["policies"]
    assert [entry.get("above_bound") for entry in entries] == [
        every_policy.above_bound(policy_result) for policy_result in every_policy.results
    ]


def test_plans_that_published_runs_cannot_tell_apart_are_a_tie():
    known = CLUSTERS["h100"]
    case = dataclasses.replace(problem(devices=12, rows=24), cluster=known, costs=AnalyticCostModel(known))
    comparison = compare_policies(case)
    tied, chosen = tied_with_choice(comparison), comparison.timeline.step_range
    assert tied is not None and tied.plan != comparison.plan and chosen is not None
    assert chosen.overlaps(tied.timeline.step_range)
    said = explain_choice(comparison)
    assert f"expected to take {range_in_words(chosen)}. The range of {tied.policy} overlaps it: a tie." in said
    assert plan_document(comparison)["tied_with_choice"] == tied.policy
    assert range_in_words(chosen) in in_words(comparison.timeline)
    alone = dataclasses.replace(comparison, results=(comparison.choice,))
    assert tied_with_choice(alone) is None and "a tie" not in explain_choice(alone)
    unknown = compare_policies(problem(devices=12, rows=24))  # no published run is of such devices
    assert tied_with_choice(unknown) is None and "published runs" not in explain_choice(unknown)


def test_tables_have_a_range_beside_every_simulated_step_where_published_runs_give_one():
    known = CLUSTERS["h100"]
    case = dataclasses.replace(problem(devices=12, rows=24), cluster=known, costs=AnalyticCostModel(known))
    comparison = compare_policies(case)
    simulated = [policy_result for policy_result in comparison.results if policy_result.simulated]
    ranges = [range_in_figures(policy_result.timeline.step_range) for policy_result in simulated]
    fewer = [range_in_figures(plan.timeline.step_range) for plan in comparison.on_fewer_devices]
    printed, html = shown(comparison), comparison._repr_html_()
    policies, _, others = printed.partition("The choice, and plans on fewer devices, simulated")
    assert all(simulated_range in policies and f">{simulated_range}</td>" in html for simulated_range in ranges)
    assert fewer and all(simulated_range in others for simulated_range in fewer)
    assert "Simulated steps of 24 rows" in policies and "ranges by published runs" in " ".join(policies.split())
    frame = comparison.to_frame()
    assert [*zip(frame["step_least"], frame["step_most"], strict=True)] == [
        policy_result.timeline.step_range[:2] for policy_result in simulated
    ]
    assert range_in_figures(comparison.timeline.step_range) in repr(comparison)
    unknown = compare_policies(problem(devices=12, rows=24))
    assert "range" not in shown(unknown) + repr(unknown) and ">range<" not in unknown._repr_html_()
    assert unknown.to_frame()["step_least"].isna().all()


def shown(comparison) -> str:
    """What the command prints in a terminal of 120 columns."""
    console = Console(width=120, file=io.StringIO())
    print_comparison(comparison, console)
    return console.file.getvalue()


def test_a_step_that_is_longer_between_processes_is_said():
    planning_problem = problem(devices=12, rows=24, spread=0.6)
    comparison = compare_policies(planning_problem, "disaggregated")
    ratio = planning_problem.simulate(comparison.plan, rendezvous=True).step / comparison.timeline.step
    assert ratio > 1.02 and f"the step takes {ratio:.2f} times as long; --hops=rendezvous" in explain_choice(comparison)
    between = compare_policies(dataclasses.replace(planning_problem, hops="rendezvous"), "disaggregated")
    assert "--hops" not in explain_choice(between)
    assert between.timeline.step == planning_problem.simulate(between.plan, rendezvous=True).step
    assert between.timeline.step <= ratio * comparison.timeline.step * (1 + 1e-12)
