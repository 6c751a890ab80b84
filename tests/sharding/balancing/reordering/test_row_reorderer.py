"""Every policy permutes rows and lengthens no step; replicas, or microbatches of dealt items, get equal work."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.reordering import row_reorderer
from sharding.balancing.reordering.row_reorderer import REORDERING_POLICIES, RowReorderer
from sharding.costs.batch_costs import replica_loads
from sharding.costs.own_rows import fullest_row
from sharding.planners.problem import HopTiming, PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.schedules.ops import ScheduleError
from tests.sharding.balancing.reordering.plans import APART, DEALT, DEALT_IN_CHUNKS, LOCKSTEP, ORDERED, ROWS
from tests.sharding.planners.problems import problem

ROUNDING = 1 + 1e-12
HOPS: dict[bool, HopTiming] = {False: "asynchronous", True: "rendezvous"}


@pytest.fixture(scope="module")
def skewed() -> PlanningProblem:
    return problem(rows=ROWS, spread=0.9)


def row_order(case: PlanningProblem, plan: Plan, policy: str, evaluations: int = 512) -> np.ndarray:
    reorderer = RowReorderer(case.resolve(plan), case.costs, policy, evaluations, case.rendezvous)
    return reorderer.row_order(case.sampled_rows)


def step(case: PlanningProblem, plan: Plan, order: np.ndarray) -> float:
    return case.simulate(plan, rows={name: loads[order] for name, loads in case.sampled_rows.items()}).step


@given(
    st.sampled_from(sorted(REORDERING_POLICIES)), st.sampled_from(sorted(ORDERED)), st.integers(0, 9999), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_rows_are_permuted_and_no_step_is_longer(skewed, policy, plan, seed, rendezvous):
    case, plan = dataclasses.replace(skewed, seed=seed, hops=HOPS[rendezvous]), ORDERED[plan]
    order = row_order(case, plan, policy)
    assert sorted(order.tolist()) == list(range(ROWS))
    np.testing.assert_array_equal(order, row_order(case, plan, policy))
    assert step(case, plan, order) <= case.simulate(plan).step * ROUNDING


@pytest.mark.parametrize("policy", ["intra_microbatch", "inter_microbatch", "both", "search"])
@pytest.mark.parametrize("plan", ["apart", "interleaved", "colocated", "dealt", "dealt, in chunks"])
def test_a_good_order_is_not_made_worse(skewed, policy, plan):
    searched = row_order(skewed, ORDERED[plan], "search", 2048)
    rows = {name: loads[searched] for name, loads in skewed.sampled_rows.items()}
    order = RowReorderer(skewed.resolve(ORDERED[plan]), skewed.costs, policy, evaluations=0).row_order(rows)
    assert step(skewed, ORDERED[plan], searched[order]) <= step(skewed, ORDERED[plan], searched) * ROUNDING


@given(st.sampled_from(sorted(LOCKSTEP)), st.integers(0, 9999), st.booleans())
@settings(max_examples=20, deadline=None)
def test_work_within_microbatches_that_run_in_lockstep_lengthens_no_step(skewed, plan, seed, rendezvous):
    case, plan = dataclasses.replace(skewed, seed=seed, hops=HOPS[rendezvous]), LOCKSTEP[plan]
    order = row_order(case, plan, "intra_microbatch")
    assert sorted(order.tolist()) == list(range(ROWS))
    assert step(case, plan, order) <= case.simulate(plan).step * ROUNDING


@pytest.mark.parametrize("plan", LOCKSTEP.values(), ids=LOCKSTEP)
@pytest.mark.parametrize("policy", ["inter_microbatch", "both", "search"])
def test_microbatches_that_run_in_lockstep_have_no_order(skewed, policy, plan):
    with pytest.raises(ScheduleError, match="only the reorderings none and intra_microbatch|none and intra_microbatch"):
        row_order(skewed, plan, policy)


@pytest.mark.parametrize("plan", ORDERED.values(), ids=ORDERED)
def test_the_replay_takes_the_simulators_seconds(skewed, plan):
    reorderer = RowReorderer(ResolvedPlan(plan, skewed.graph, skewed.trained_parts), skewed.costs)
    given_order = reorderer.given(skewed.sampled_rows)
    simulated = skewed.simulate(plan).step
    assert reorderer.step_seconds(given_order) == pytest.approx(simulated, rel=1e-12)
    bound = reorderer.replays(given_order).bound
    table = bound.pipeline_microbatch_seconds(given_order.costs)
    assert bound.step_seconds(table, bound.given_orders).max() >= simulated * (1 - 1e-12)


@pytest.mark.parametrize("plan", ["apart", "interleaved", "together", "dealt"])
def test_the_search_beats_the_other_policies(skewed, plan):
    steps = {
        policy: step(skewed, ORDERED[plan], row_order(skewed, ORDERED[plan], policy, 2048))
        for policy in REORDERING_POLICIES
    }
    assert steps["none"] == skewed.simulate(ORDERED[plan]).step
    assert steps["search"] < min(steps[policy] for policy in REORDERING_POLICIES if policy != "search")


@pytest.mark.parametrize("policy", ["intra_microbatch", "inter_microbatch", "both", "search"])
def test_every_policy_shortens_a_step_of_dealt_items(skewed, policy):
    assert step(skewed, DEALT, row_order(skewed, DEALT, policy)) < skewed.simulate(DEALT).step


def test_microbatches_of_dealt_items_get_equal_work_or_change_places_as_wholes(skewed):
    given = np.arange(ROWS).reshape(DEALT.microbatches, -1)
    moved = row_order(skewed, DEALT, "inter_microbatch").reshape(given.shape)
    assert not np.array_equal(moved, given)
    np.testing.assert_array_equal(moved[np.argsort(moved[:, 0])], given)
    work = sum(
        module.forward_flops(skewed.sampled_rows[module.name]) / len(DEALT.unit_of(module.name).devices)
        for module in skewed.graph.modules
    )
    sums = work[row_order(skewed, DEALT, "intra_microbatch")].reshape(given.shape).sum(axis=1)
    assert sums.max() <= 1.01 * sums.mean() < work[given].sum(axis=1).max()


@pytest.mark.parametrize("policy", ["intra_microbatch", "both", "search"])
def test_rows_whose_items_do_not_fit_are_not_regrouped(skewed, policy):
    reorderer = RowReorderer(skewed.resolve(DEALT), skewed.costs, policy)
    given = np.arange(ROWS).reshape(DEALT.microbatches, -1)
    kept = reorderer.row_order(skewed.sampled_rows, lambda order: False).reshape(given.shape)
    np.testing.assert_array_equal(kept[np.argsort(kept[:, 0])], given)


@given(st.integers(0, 9999), st.sampled_from(["intra_microbatch", "both", "search"]))
@settings(max_examples=15, deadline=None)
def test_by_their_loads_rows_fit_as_in_the_given_order(skewed, seed, policy):
    case = dataclasses.replace(skewed, seed=seed)

    def fullest(order):
        return [
            fullest_row(
                replica_loads(case.sampled_rows[unit.name][order], DEALT.microbatches, 1)[:, 0],
                unit.phase_rows,
                case.graph[unit.name],
            ).max()
            for unit in DEALT.units
            if unit.phase_rows
        ]

    tight = dataclasses.replace(
        DEALT,
        units=tuple(
            dataclasses.replace(unit, capacities=(int(np.ceil(most)),)) if unit.phase_rows else unit
            for unit, most in zip(DEALT.units, np.insert(fullest(np.arange(ROWS)), 1, 0), strict=True)
        ),
    )
    for unit, most in zip((DEALT.units[0], DEALT.units[2]), fullest(row_order(case, tight, policy)), strict=True):
        assert most <= tight.unit_of(unit.name).capacities[-1]


@pytest.mark.parametrize("bound", ["NODE_EVALUATIONS", "NODE_EVALUATIONS_PER_PIPELINE"])
def test_the_time_of_a_search_is_bounded_by_the_nodes_of_a_pipeline(skewed, monkeypatch, bound):
    counted = []
    monkeypatch.setattr(
        row_reorderer, "search_orders", lambda replay, table, orders, evaluations: counted.append(evaluations) or orders
    )
    monkeypatch.setattr(row_reorderer, bound, 1 << 17)
    row_order(skewed, DEALT, "search", 1 << 40)
    reorderer = RowReorderer(skewed.resolve(DEALT), skewed.costs)
    nodes = reorderer.replays(reorderer.given(skewed.sampled_rows)).bound.nodes.graph.count
    assert counted == [(1 << 17) // nodes - 4]  # two orders of each of two divisions


def test_replicas_get_equal_numbers_of_rows_and_equal_work(skewed):
    reorderer = RowReorderer(skewed.resolve(APART), skewed.costs)
    order = reorderer.divisions(reorderer.given(skewed.sampled_rows), skewed.sampled_rows, lambda order: True)[1].order
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


def test_one_row_a_microbatch_leaves_nothing_to_divide(skewed):
    reorderer = RowReorderer(skewed.resolve(dataclasses.replace(DEALT_IN_CHUNKS, microbatches=ROWS)), skewed.costs)
    (only,) = reorderer.divisions(reorderer.given(skewed.sampled_rows), skewed.sampled_rows, lambda order: True)
    np.testing.assert_array_equal(only.order, np.arange(ROWS))


def test_unknown_policies_and_indivisible_batches_are_refused(skewed):
    with pytest.raises(
        ValueError, match="no policy 'best'; choose from none, intra_microbatch, inter_microbatch, both, search"
    ):
        RowReorderer(ResolvedPlan(APART, skewed.graph, skewed.trained_parts), skewed.costs, "best")
    with pytest.raises(PlanError, match="48 rows of the global batch are not divisible by 7 microbatches"):
        row_order(skewed, dataclasses.replace(APART, microbatches=7), "search")
