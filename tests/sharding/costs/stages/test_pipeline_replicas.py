"""Copies of a pipeline: each takes microbatches like any, and all share weights, gradients and optimizer state."""

import dataclasses

import numpy as np
import pytest

from configs.clusters import CLUSTERS
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.stages.plan_costs import plan_costs, unit_costs
from sharding.costs.stages.plan_work import plan_work
from sharding.costs.step_costs import PER_MICROBATCH
from sharding.planners.layouts.schedule_fields import with_stage_seconds
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.unit_plan import UnitPlan
from tests.sharding.costs.stages.test_plan_costs import ALL, BATCH, GRAPH, ROWS
from tests.sharding.planners.problems import problem
from tests.unit_plans import changed_unit, module_unit

MICROBATCHES = 4
VISION, BACKBONE = ("vision", 0), ("backbone", 0)
ENCODER = module_unit("vision", range(4), layers=(2, 1), tp=2)


def colocated(encoder: UnitPlan) -> Plan:
    others = (module_unit("backbone", (0,), layers=(4,)), module_unit("generator", (1,)))
    return Plan((encoder, *others), MICROBATCHES)


def replicated(count: int, first: int = 0, **fields) -> UnitPlan:
    devices = tuple(range(first, first + 4 * count))
    return changed_unit(ENCODER, devices=devices, pipeline_replicas=count, **fields)


def test_a_copy_takes_a_microbatch_like_the_only_pipeline():
    one, two = (plan_costs(ResolvedPlan(colocated(replicated(count)), BATCH.graph, ALL), BATCH) for count in (1, 2))
    for stage in one.stages:
        for field in PER_MICROBATCH:
            np.testing.assert_array_equal(getattr(two.stages[stage], field), getattr(one.stages[stage], field))
    assert two.flops == one.flops and two.recomputed == one.recomputed


@pytest.mark.parametrize("fsdp", [1, 2])
def test_weights_gradients_and_state_are_shared_as_by_so_many_replicas(fsdp):
    """Copies whose devices lie like those of more replicas; none of these costs depends on the rows."""
    unit = module_unit("vision", range(8), layers=(3,), dp=2, pipeline_replicas=4, fsdp=fsdp)
    pipeline_replicas, replicas = (
        plan_costs(ResolvedPlan(colocated(vision_unit), BATCH.graph, ALL), BATCH).stages[VISION]
        for vision_unit in (unit, unit.with_parallelism(dp=8, pipeline_replicas=1))
    )
    for field in ("static_bytes", "gather", "reduce", "update"):
        assert getattr(pipeline_replicas, field) == getattr(replicas, field) > 0
    parameters = GRAPH["vision"].parameter_count
    if fsdp == 1:
        assert pipeline_replicas.static_bytes == pytest.approx(parameters * (2 + 4 + 2 + (4 + 8) / 8))


def test_a_microbatch_hops_to_the_copy_that_takes_it():
    """The second pipeline replica, on devices 4 to 7, is on another node of four than the backbone."""
    batch = BatchCosts(GRAPH, AnalyticCostModel(dataclasses.replace(CLUSTERS["a100"], devices_per_node=4)), ROWS)
    taken = (0, 1, 1, 0)
    both = plan_costs(ResolvedPlan(colocated(replicated(2, replica_of_microbatch=taken)), batch.graph, ALL), batch)
    alone = [plan_costs(ResolvedPlan(colocated(replicated(1, first)), batch.graph, ALL), batch) for first in (0, 4)]
    edge = (("vision", 1), BACKBONE)
    for hops in ("hops", "gradient_hops"):
        mixed, near, far = (getattr(costs, hops)[edge] for costs in (both, *alone))
        assert (near < far).all()
        expected = np.where(np.array(taken)[:, None] == 0, near, far)
        np.testing.assert_array_equal(mixed, expected)
        least = getattr(
            plan_work(ResolvedPlan(colocated(replicated(2, replica_of_microbatch=taken)), batch.graph, ALL), batch),
            hops,
        )[edge]
        assert 0 < least <= mixed.min()


def test_the_work_of_each_copy_is_that_of_its_microbatches():
    taken = np.array([1, 0, 0, 0])
    plan = colocated(replicated(2, replica_of_microbatch=tuple(taken.tolist())))
    costs, work = (
        plan_costs(ResolvedPlan(plan, BATCH.graph, ALL), BATCH),
        plan_work(ResolvedPlan(plan, BATCH.graph, ALL), BATCH),
    )
    for stage in (("vision", 0), ("vision", 1)):
        for kind in ("forward", "backward"):
            seconds = getattr(costs.stages[stage], kind)
            expected = np.concatenate([seconds[taken == pipeline_replica].sum(axis=0) for pipeline_replica in (0, 1)])
            np.testing.assert_allclose(getattr(work.stages[stage], kind), expected)


def test_fewer_microbatches_than_copies_have_the_costs_of_one_but_the_weights_of_all():
    divided, one = (unit_costs(replicated(count), 1, BATCH, ALL) for count in (4, 1))
    for divided_stage, whole_stage in zip(divided, one, strict=True):
        np.testing.assert_array_equal(divided_stage.forward, whole_stage.forward)
        assert divided_stage.reduce > whole_stage.reduce == 0


def test_stages_get_the_seconds_of_a_microbatch_and_of_its_collectives():
    case = problem(rows=8, devices=4)
    unit = module_unit("vision", (0, 1, 2, 3), layers=(3,), tp=2, pipeline_replicas=2)
    others = [
        module_unit("backbone", (0, 1, 2, 3), layers=(4,), dp=2, tp=2),
        module_unit("generator", (0,)),
    ]
    plan = Plan((unit, *others), 4)
    mean = case.mean_microbatch_costs(plan)
    plain, full = with_stage_seconds(case, plan), with_stage_seconds(case, plan, communication=True)
    for without, unit in zip(plain.units, full.units, strict=True):
        costs = mean[unit.name, 0]
        assert costs.forward.shape == (1, unit.parallelism.dp)
        for kind in ("forward", "backward"):
            seconds, waits = (
                getattr(unit.schedule_hints, f"{kind}_seconds"),
                getattr(unit.schedule_hints, f"{kind}_communication"),
            )
            assert seconds == getattr(without.schedule_hints, f"{kind}_seconds")
            assert seconds == pytest.approx([getattr(costs, kind).mean()], rel=5e-3)
            assert waits == pytest.approx([getattr(costs, f"{kind}_communication").mean()], rel=5e-3)
            assert not getattr(without.schedule_hints, f"{kind}_communication")
    assert full.units[0].schedule_hints.forward_communication[0] > 0
