"""Candidates that their bounds exclude are not simulated, and the choice is that of simulating all."""

import dataclasses

import pytest
from hypothesis import given, settings

from configs.architectures import ModelConfig
from sharding.planners import schedule_orders
from sharding.planners.policies.auto import PLANNING_POLICIES
from sharding.planners.policies.best_plan import best_simulated, most_economical
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.named.build import build_schedule
from tests.sharding.planners.problems import BACKBONE, VISION, build_problem, problem, recipes


class CountingProblem(PlanningProblem):
    """Counts the plans that it simulates."""

    simulated = 0

    def simulate(self, plan, rendezvous=None, rows=None):
        CountingProblem.simulated += 1
        return super().simulate(plan, rendezvous, rows)


def counting(case):
    CountingProblem.simulated = 0
    return CountingProblem(**{field.name: getattr(case, field.name) for field in dataclasses.fields(case)})


@given(recipes())
@settings(max_examples=10, deadline=None)
def test_the_choice_is_that_of_simulating_all_candidates(recipe):
    case = build_problem(recipe)
    for policy in PLANNING_POLICIES.values():
        try:
            plans = policy(case)
        except PlanError:
            continue
        simulated = [SimulatedPlan(plan, case.simulate(plan)) for plan in plans]
        fitting = [result for result in simulated if case.memory_fraction(result.timeline) <= 1]
        if not fitting:
            with pytest.raises(PlanError, match="with the rows that were drawn"):
                best_simulated(case, plans)
            continue
        best, shortest = best_simulated(case, plans), min(result.timeline.step for result in fitting)
        expected = most_economical(fitting)
        assert best.timeline.step * best.plan.device_count == expected.timeline.step * expected.plan.device_count
        assert best.timeline.step <= shortest * (1 + STEP_SLACK)
        for result in fitting:
            if result.plan.device_count * result.timeline.step < best.plan.device_count * best.timeline.step:
                assert result.timeline.step > shortest * (1 + STEP_SLACK)


def test_spare_plans_follow_in_their_order_where_none_fits():
    case = problem(devices=4)
    plans = [plan for name in ("rigid", "disaggregated") for plan in PLANNING_POLICIES[name](case)]
    fractions = [case.memory_fraction(case.simulate(plan)) for plan in plans]
    order = sorted(range(len(plans)), key=fractions.__getitem__)
    fullest, others = plans[order[-1]], [plans[index] for index in reversed(order[:-1])]
    memory = case.cluster.usable_memory * (fractions[order[0]] + fractions[order[-1]]) / 2
    tight = dataclasses.replace(
        case, cluster=dataclasses.replace(case.cluster, memory=memory / case.cluster.allocator_share)
    )
    with pytest.raises(PlanError, match="with the rows that were drawn"):
        best_simulated(tight, [fullest])
    plan = best_simulated(tight, [fullest], lambda _: others).plan
    assert plan == next(
        plan
        for plan in others
        if case.memory_fraction(case.simulate(plan)) * case.cluster.usable_memory <= tight.cluster.usable_memory
    )
    assert best_simulated(case, [fullest], lambda _: others).plan == fullest


def test_fewer_plans_are_simulated_than_there_are():
    case = counting(problem(devices=14, rows=24))
    plans = [plan for policy in PLANNING_POLICIES.values() for plan in policy(case)]
    CountingProblem.simulated = 0  # without what policies simulate themselves
    best_simulated(case, plans)
    assert CountingProblem.simulated < len(plans) / 2


def test_plans_that_differ_in_how_replicas_divide_work_and_weights_share_an_order(monkeypatch):
    case = problem(ModelConfig((VISION,), BACKBONE, ()), devices=4, rows=8)
    built = []
    monkeypatch.setattr(schedule_orders, "build_schedule", lambda *given: built.append(given) or build_schedule(*given))
    plain = UnitPlan(
        "all", case.graph.names, (0, 1, 2, 3), layers=(3, 4), recompute=("none",) * 2, parallelism=Parallelism(dp=2)
    )
    for unit in (
        plain,
        plain.with_parallelism(fsdp=2),
        plain.with_parallelism(dp=1, tp=2, module_tp=(1, 2), collectives="sequence_parallel"),
    ):
        case.simulate(Plan((unit,), microbatches=4))
    assert len(built) == 1
