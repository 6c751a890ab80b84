"""What the planner's benchmark measures, on a problem of a size for tests."""

import numpy as np

from benchmarks.planner.disttrain_models import simulate_reordered
from benchmarks.planner.speed import every_candidate
from sharding.planners.layouts.relaxation import solve_relaxations
from sharding.planners.policies import disaggregated
from sharding.planners.policies.best_plan import best_simulated
from tests.sharding.planners.problems import MODEL, data, problem


def test_every_size_is_a_candidate():
    relaxations = solve_relaxations(every_candidate(MODEL, data(), 64, 1920))
    assert len(relaxations.dp) == 4**3 * 32
    assert len({tuple(sizes) for sizes in relaxations.tp.tolist()}) == 4**3


def test_reordering_moves_rows_and_shortens_a_skewed_step():
    planning_problem = problem(devices=8, rows=24, spread=0.9)
    best = best_simulated(planning_problem, disaggregated.plans(planning_problem))
    timeline = simulate_reordered(planning_problem, best.plan)
    assert timeline.costs.tokens == best.timeline.costs.tokens
    np.testing.assert_allclose(timeline.costs.flops, best.timeline.costs.flops)
    assert timeline.step < best.timeline.step
