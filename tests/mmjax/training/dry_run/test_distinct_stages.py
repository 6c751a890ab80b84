"""Which stages of a plan have the same programs; the stages are on CPUs."""

import dataclasses

import jax
import pytest

from configs.optimizer import OptimizerConfig
from mmjax.training.dry_run.abstract_stages import abstract_step
from mmjax.training.dry_run.distinct_bundles import distinct_bundles
from mmjax.training.dry_run.distinct_stages import distinct_stages
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.modules import module_graph
from tests.tiny_model import tiny_batch, tiny_model
from tests.unit_plans import changed_unit, module_unit

MODEL = tiny_model(depth=6)
PLAN = Plan(
    (
        module_unit("vision", (0,), layers=(2,)),
        module_unit("backbone", range(6), layers=(1,) * 6),
        module_unit("generator", (7,)),
    ),
    microbatches=4,
)


def groups(plan: Plan, trainable: str = "all"):
    """Distinct stages of the backbone, by number."""
    graph = module_graph(MODEL)
    resolved = ResolvedPlan(plan, graph, trained_parts(graph, (trainable,)))
    step = abstract_step(MODEL, resolved, tiny_batch(MODEL), jax.devices(), 8, OptimizerConfig())
    distinct = distinct_stages(step.stages)
    assert sorted(stage for group in distinct.values() for stage in group) == sorted(step.stages)
    return {first[1]: [number for _, number in group] for first, group in distinct.items() if first[0] == "backbone"}


def test_stages_in_the_middle_of_a_pipeline_are_alike():
    assert groups(PLAN) == {0: [0], 1: [1, 2, 3, 4], 5: [5]}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"layers": (1, 1, 2, 1, 1), "devices": range(5), "recompute": ("none",) * 5},
            {0: [0], 1: [1, 3], 2: [2], 4: [4]},
        ),
        ({"recompute": ("none", "none", "full", "full", "none", "none")}, {0: [0], 1: [1, 4], 2: [2, 3], 5: [5]}),
    ],
)
def test_layers_and_recomputation_tell_stages_apart(fields, expected):
    vision, backbone, generator = PLAN.units
    changed = dataclasses.replace(PLAN, units=(vision, changed_unit(backbone, **fields), generator))
    assert groups(changed) == expected


def test_the_devices_of_a_mesh_tell_stages_apart_by_their_order_alone():
    vision, backbone, generator = PLAN.units
    for devices, expected in ((range(8), {0: [0], 1: [1, 2], 3: [3]}), ((0, 1, 2, 3, 5, 4, 6, 7), None)):
        pairs = changed_unit(backbone, devices=devices, layers=(1, 2, 2, 1), tp=2, recompute=("none",) * 4)
        plan = dataclasses.replace(PLAN, units=(vision, pairs, generator))
        assert groups(plan) == (expected or {number: [number] for number in range(4)})


def test_a_plan_without_bundles_has_none():
    graph = module_graph(MODEL)
    resolved = ResolvedPlan(PLAN, graph, trained_parts(graph, ("all",)))
    step = abstract_step(MODEL, resolved, tiny_batch(MODEL), jax.devices(), 8, OptimizerConfig())
    assert distinct_bundles(step, {stage: stage for stage in step.stages}) == []
