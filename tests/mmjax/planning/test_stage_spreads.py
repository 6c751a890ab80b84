"""How unequal a chain's ranks are is said of every plan of one unit, whatever its policy chose from."""

import dataclasses

import pytest

from configs.architectures import ModelConfig
from mmjax.planning.stage_spreads import stage_spreads
from sharding.planners.chain_problem import ChainProblem
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan, single_device_plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from tests.sharding.planners.problems import AUDIO, BACKBONE, problem

PROBLEM = problem(ModelConfig((AUDIO,), BACKBONE, ()), devices=2, rows=4)


def two_stages(problem: PlanningProblem, recompute: str) -> Plan:
    """All modules on two pipeline ranks."""
    total = sum(module.layer_count for module in problem.graph.modules)
    layers = (total // 2, total - total // 2)
    unit = UnitPlan("all", problem.graph.names, (0, 1), layers=layers, recompute=(recompute,) * 2)
    return Plan((unit,), microbatches=4)


def test_a_plan_of_one_rank_or_of_several_units_has_none():
    assert stage_spreads(PROBLEM, single_device_plan(PROBLEM.graph)) is None


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_spread_is_that_of_the_seconds_of_the_ranks(recompute):
    plan = two_stages(PROBLEM, recompute)
    spreads = stage_spreads(PROBLEM, plan)
    assert spreads is not None and set(spreads.others) >= {"layers"}
    seconds = [
        float((stage_costs.forward + stage_costs.backward).mean())
        for stage_costs in PROBLEM.step_costs(plan).stages.values()
    ]
    assert spreads.chosen == pytest.approx(max(seconds) / (sum(seconds) / 2))


def test_a_policy_that_the_problem_leaves_out_is_counted():
    plan = two_stages(PROBLEM, "full")
    without = dataclasses.replace(PROBLEM, recompute_choices=("none",))
    spreads, with_full = stage_spreads(without, plan), stage_spreads(PROBLEM, plan)
    assert spreads is not None and with_full is not None
    assert spreads.chosen == with_full.chosen


def test_a_plan_that_balanced_could_not_make_has_a_spread():
    """`balanced` needs a tensor-parallel size that all modules can have; another policy may not."""
    ranked = problem(ModelConfig((AUDIO,), BACKBONE, ()), devices=2, rows=4, ranks=(("backbone", 2, 1),))
    with pytest.raises(PlanError, match="modules of one unit have one cp"):
        ChainProblem(ranked)
    assert stage_spreads(ranked, two_stages(ranked, "none")) == stage_spreads(PROBLEM, two_stages(PROBLEM, "none"))
