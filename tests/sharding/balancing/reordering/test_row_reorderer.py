"""Every policy permutes rows; the search never lengthens a step; replicas get equal work in equal numbers."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.reordering.row_reorderer import REORDERING_POLICIES, RowReorderer
from sharding.planners.problem import PlanningProblem
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.unit_plan import UnitPlan
from tests.sharding.planners.problems import problem
from tests.unit_plans import module_unit

ROWS = 48
APART = Plan(
    (
        module_unit("vision", (0, 1), layers=(3,), dp=2),
        module_unit("backbone", range(2, 10), layers=(2, 2), dp=4),
        module_unit("generator", (10, 11, 12, 13), dp=4),
    ),
    microbatches=6,
)
INTERLEAVED = Plan(
    (
        module_unit("vision", (0, 1), layers=(3,), dp=2),
        module_unit("backbone", (2, 3, 4, 5), layers=(1,) * 4, recompute=("none",) * 4, dp=2, chunks=2),
        module_unit("generator", (6,)),
    ),
    microbatches=8,
    schedule="interleaved",
)
TOGETHER = Plan(
    (
        module_unit("vision", (0, 1), layers=(3,), dp=2),
        UnitPlan("language", ("backbone", "generator"), (0, 1), layers=(5,), parallelism=Parallelism(dp=2)),
    ),
    microbatches=12,
)
COLOCATED = Plan(
    (
        module_unit(
            "vision", (0, 1, 2, 3), layers=(3,), dp=2, pipeline_replicas=2, replica_of_microbatch=(0, 1, 1, 0, 0, 1)
        ),
        module_unit("backbone", (0, 1, 2, 3), layers=(2, 2), dp=2),
        module_unit("generator", (4, 5), pipeline_replicas=2),
    ),
    microbatches=6,
)
ONE = Plan((UnitPlan("all", ("vision", "backbone", "generator"), (0,), layers=(8,)),))
PLANS = {"apart": APART, "interleaved": INTERLEAVED, "together": TOGETHER, "colocated": COLOCATED, "one": ONE}


@pytest.fixture(scope="module")
def skewed() -> PlanningProblem:
    return problem(rows=ROWS, spread=0.9)


def row_order(case: PlanningProblem, plan: Plan, policy: str, evaluations: int = 512) -> np.ndarray:
    return RowReorderer(case.resolve(plan), case.costs, policy, evaluations).row_order(case.sampled_rows)


def step(case: PlanningProblem, plan: Plan, order: np.ndarray) -> float:
    return case.simulate(plan, rows={name: loads[order] for name, loads in case.sampled_rows.items()}).step


@given(st.sampled_from(sorted(REORDERING_POLICIES)), st.sampled_from(sorted(PLANS)), st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_rows_are_permuted_and_the_search_makes_no_step_longer(skewed, policy, plan, seed):
    case, plan = dataclasses.replace(skewed, seed=seed), PLANS[plan]
    order = row_order(case, plan, policy)
    assert sorted(order.tolist()) == list(range(ROWS))
    np.testing.assert_array_equal(order, row_order(case, plan, policy))
    if policy == "search":
        assert step(case, plan, order) <= case.simulate(plan).step * (1 + 1e-12)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_replay_takes_the_simulators_seconds(skewed, plan):
    reorderer = RowReorderer(ResolvedPlan(plan, skewed.graph, skewed.trained_parts), skewed.costs)
    replay, _, pipeline_microbatch_seconds = reorderer.replay_with_costs(skewed.sampled_rows)
    given_order = np.arange(replay.pipelines * replay.microbatches).reshape(replay.pipelines, -1)
    slowest = replay.step_seconds(pipeline_microbatch_seconds, given_order).max()
    assert slowest == pytest.approx(skewed.simulate(plan).step, rel=1e-12)


@pytest.mark.parametrize("plan", ["apart", "interleaved", "together"])
def test_the_search_beats_the_other_policies(skewed, plan):
    steps = {
        policy: step(skewed, PLANS[plan], row_order(skewed, PLANS[plan], policy, 2048))
        for policy in REORDERING_POLICIES
    }
    assert steps["none"] == skewed.simulate(PLANS[plan]).step
    assert steps["search"] < min(steps[policy] for policy in REORDERING_POLICIES if policy != "search")


def test_replicas_get_equal_numbers_of_rows_and_equal_work(skewed):
    order = row_order(skewed, APART, "intra_microbatch")
    work = sum(
        module.forward_flops(skewed.sampled_rows[module.name]) / len(APART.unit_of(module.name).devices)
        for module in skewed.graph.modules
    )
    given_sums, sums = (work_in_order.reshape(6, 4, 2).sum(axis=(0, 2)) for work_in_order in (work, work[order]))
    assert sums.max() <= 1.001 * sums.mean() < given_sums.max()


def test_replicas_without_a_row_in_every_microbatch_are_no_pipelines(skewed):
    plan = dataclasses.replace(APART, microbatches=24)  # two rows a microbatch, on four instances
    assert sorted(row_order(skewed, plan, "search").tolist()) == list(range(ROWS))
    assert sorted(row_order(skewed, plan, "both").tolist()) == list(range(ROWS))


def test_unknown_policies_and_indivisible_batches_are_refused(skewed):
    with pytest.raises(
        ValueError, match="no policy 'best'; choose from none, intra_microbatch, inter_microbatch, both, search"
    ):
        RowReorderer(ResolvedPlan(APART, skewed.graph, skewed.trained_parts), skewed.costs, "best")
    with pytest.raises(PlanError, match="48 rows of the global batch are not divisible by 7 microbatches"):
        row_order(skewed, dataclasses.replace(APART, microbatches=7), "search")
