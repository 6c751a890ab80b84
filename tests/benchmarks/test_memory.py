"""What a stage's programs save for their backward is what the planner counts, by recomputation policy."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from benchmarks.memory.compiled_stages import abstract_stage_programs
from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.plan_costs import plan_costs
from sharding.plans.plan import Plan
from sharding.plans.trained_parts import trained_parts
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layer import RECOMPUTE_POLICIES
from sharding.specs.modules import module_graph
from tests.tiny_model import BACKBONE, tiny_batch

CONFIG = ModelConfig((), dataclasses.replace(BACKBONE, width=256, heads=16, kv_heads=8, ffn=384, depth=6), ())


@pytest.mark.parametrize(
    "recompute", [policy for policy in RECOMPUTE_POLICIES if policy != "none"] + ["1 full, 2 selective"]
)
@pytest.mark.parametrize("tp", [1, 2])
def test_residuals_are_what_the_planner_counts(recompute, tp):
    """`none` is left out: what attention saves differs between CPUs' implementations and cuDNN's."""
    unit = UnitPlan(
        "b",
        ("backbone",),
        tuple(range(2 * tp)),
        tp=tp,
        layers=(3, 3),
        recompute=(recompute, "none"),
        collectives="gather" if tp > 1 else "reduce",
    )
    plan, batch, graph = Plan((unit,)), tiny_batch(CONFIG), module_graph(CONFIG)
    programs = abstract_stage_programs(CONFIG, plan, batch, jax.devices(), "dense")["b", 0]
    _, kept, _ = jax.eval_shape(programs.forward, *programs.operand_shapes, jax.eval_shape(programs.zero_losses))
    saved = {"device": 0, "pinned_host": 0}
    for leaf, sharding in zip(kept, programs.residual_shardings, strict=True):
        size = math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        saved[sharding.memory_kind or "device"] += size
    rows, tokens = batch["backbone"]["tokens"].shape
    costs = AnalyticCostModel(CLUSTERS["h100"], element_bytes=4)
    loads = {"backbone": np.array([[tokens, tokens**2, 1.0]] * rows)}
    of = plan_costs(plan, BatchCosts(graph, costs, loads), trained_parts(graph, ("all",))).stages["b", 0]
    assert saved["device"] == pytest.approx(of.saved_bytes.max(), rel=0.1)
    assert saved["pinned_host"] == of.offloaded_bytes.max()
