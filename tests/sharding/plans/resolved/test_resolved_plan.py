"""A plan laid out for a model: its stages' layers and devices, what trains, and that refusals come first."""

import re

import numpy as np
import pytest

from configs.architectures import ModelConfig
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan, resolve_plan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.plans.unit_layers import LayerRun
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph

GRAPH = module_graph(ModelConfig())
CHAIN = UnitPlan(
    "trunk",
    ("vision", "backbone"),
    tuple(range(8)),
    layers=(1, 5),
    parallelism=Parallelism(dp=2, tp=2),
    recompute=("none",),
)
GENERATOR = UnitPlan("hand", ("generator",), (8,))
PLAN = Plan((CHAIN, GENERATOR), microbatches=2)


def test_layers_devices_and_edges_of_every_stage():
    resolved = resolve_plan(PLAN, GRAPH, devices=9, rows=4)
    vision, backbone = GRAPH["vision"].layer_count, GRAPH["backbone"].layer_count
    assert resolved.layers == {
        ("trunk", 0): (LayerRun("vision", 0, 1),),
        ("trunk", 1): (LayerRun("vision", 1, vision), LayerRun("backbone", 0, backbone)),
        ("hand", 0): (LayerRun("generator", 0, 1),),
    }
    assert set(resolved.stages.edges) == {(("trunk", 0), ("trunk", 1)), (("trunk", 1), ("hand", 0))}
    np.testing.assert_array_equal(resolved.devices["trunk", 1], [[4, 5], [6, 7]])


@pytest.mark.parametrize(
    ("trainable", "stages"),
    [
        (("all",), {("trunk", 0), ("trunk", 1), ("hand", 0)}),
        (("backbone",), {("trunk", 1)}),
        (("vision",), {("trunk", 0), ("trunk", 1)}),
        ((), set()),
    ],
)
def test_stages_that_hold_a_layer_of_a_part_that_trains(trainable, stages):
    assert ResolvedPlan(PLAN, GRAPH, trained_parts(GRAPH, trainable)).trained_stages == stages


@pytest.mark.parametrize(
    ("plan", "devices", "rows", "message"),
    [
        (PLAN, 8, None, "unit hand needs device 8"),
        (PLAN, 9, 6, "6 rows of the global batch are not divisible by 2 microbatches x dp 2"),
        (Plan((CHAIN,)), 9, None, "module generator is in no unit"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_while_it_is_resolved(plan, devices, rows, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        resolve_plan(plan, GRAPH, devices, rows)
