"""What a stage's programs save for their backward, and all that it holds, is what the planner counts."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from benchmarks.memory.compiled_stages import abstract_stage_programs, compiled_bytes
from configs.architectures import LatentAttentionConfig, ModelConfig
from configs.clusters import CLUSTERS
from configs.modules.experts import ExpertsConfig, RouterConfig
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.stages.plan_costs import plan_costs
from sharding.costs.step_costs import StageCosts
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.layers.layer import RECOMPUTE_POLICIES, RecomputePolicy
from sharding.specs.modules import module_graph
from tests.tiers import first_in_default
from tests.tiny_model import BACKBONE, tiny_batch
from tests.unit_plans import module_unit

CONFIG = ModelConfig((), dataclasses.replace(BACKBONE, width=256, heads=16, kv_heads=8, ffn=384, depth=6), ())


def counted(config: ModelConfig, plan: Plan, batch) -> StageCosts:
    """What the planner counts of a plan's first stage, for rows that are full."""
    rows, tokens = batch["backbone"]["tokens"].shape
    graph, costs = module_graph(config), AnalyticCostModel(CLUSTERS["h100"], element_bytes=4)
    loads = {"backbone": np.array([[tokens, tokens**2, 1.0, 0.0]] * rows)}
    return plan_costs(
        ResolvedPlan(plan, graph, trained_parts(graph, ("all",))), BatchCosts(graph, costs, loads)
    ).stages["b", 0]


@pytest.mark.parametrize(
    "recompute",
    first_in_default([policy for policy in RECOMPUTE_POLICIES if policy != "none"] + ["1 full, 2 selective"]),
)
@pytest.mark.parametrize("tp", [1, 2])
def test_residuals_are_what_the_planner_counts(recompute, tp):
    """`none` is left out: what attention saves differs between CPUs' implementations and cuDNN's."""
    unit = module_unit(
        "backbone",
        range(2 * tp),
        layers=(3, 3),
        name="b",
        recompute=(recompute, "none"),
        tp=tp,
        collectives="sequence_parallel" if tp > 1 else "all_reduce",
    )
    assert_residuals_are_counted(CONFIG, Plan((unit,)))


@pytest.mark.parametrize(("recompute", "ep"), first_in_default([("selective", 2), ("selective", 4), ("offload", 4)]))
def test_residuals_of_experts_are_room_for_the_pairs_of_all_ranks(recompute, ep):
    assert_residuals_of_experts(ExpertsConfig(count=4, top_k=2, ffn=192, shared_ffn=128), recompute, ep)


@pytest.mark.parametrize("weighted", ["outputs", "inputs"])
def test_residuals_of_experts_with_biases_beside_dense_layers(weighted):
    router = RouterConfig(scores="sigmoid", weighted=weighted)
    experts = ExpertsConfig(
        count=4, top_k=2, ffn=192, router=router, biases=True, shared_ffn=128, shared_gate=False, dense_layers=1
    )
    assert_residuals_of_experts(experts, "selective", 2)


def assert_residuals_of_experts(experts: ExpertsConfig, recompute: RecomputePolicy, ep: int) -> None:
    config = dataclasses.replace(CONFIG, backbone=dataclasses.replace(CONFIG.backbone, experts=experts))
    devices = tuple(range(2 * ep))
    unit = module_unit("backbone", devices, layers=(3, 3), name="b", recompute=(recompute, "none"), dp=ep, ep=ep)
    assert_residuals_are_counted(config, Plan((unit,)))


def test_residuals_of_latent_attention():
    latent = LatentAttentionConfig(query_rank=96, kv_rank=128, nope_width=16, rope_width=8, value_width=12)
    backbone = dataclasses.replace(CONFIG.backbone, kv_heads=16, latent_attention=latent)
    unit = module_unit("backbone", (0, 1), layers=(3, 3), name="b", recompute=("selective", "none"), tp=1)
    assert_residuals_are_counted(dataclasses.replace(CONFIG, backbone=backbone), Plan((unit,)))


def assert_residuals_are_counted(config: ModelConfig, plan: Plan) -> None:
    """On the device to within a tenth, since small arrays are not counted, and in host memory exactly."""
    batch = tiny_batch(config)
    programs = abstract_stage_programs(config, plan, batch, jax.devices(), "dense")["b", 0]
    _, kept, _ = jax.eval_shape(programs.forward, *programs.operand_shapes, jax.eval_shape(programs.zero_losses))
    saved = {"device": 0, "pinned_host": 0}
    for leaf, sharding in zip(kept, programs.residual_shardings, strict=True):
        size = math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        saved[sharding.memory_kind or "device"] += size
    counted_bytes = counted(config, plan, batch)
    assert saved["device"] == pytest.approx(counted_bytes.saved_bytes.max(), rel=0.1)
    assert saved["pinned_host"] == counted_bytes.offloaded_bytes.max()


@pytest.mark.parametrize(("recompute", "tp"), first_in_default([("none", 1), ("selective", 2), ("full", 1)]))
def test_a_stage_holds_what_the_planner_counts(recompute, tp):
    """Weights, gradients, optimizer state, a microbatch's saved activations and workspace, against XLA's allocation.

    The temporaries of a CPU's backward are larger than a GPU's, by the same bytes however many layers the stage has:
    they are those of the one layer that the loop is in. Its matmuls take transposed operands as copies, and results of
    elementwise functions between them stay in memory, where a GPU's matmuls read either layout and XLA fuses the rest.
    Measured as a multiple of what one layer saves under `none`: 1.3 under `full`, 0.8 under `selective` with two tensor
    ranks. Under `none` CPUs' attention saves more than cuDNN's in every layer.
    """
    counts, totals = {}, {}
    for depth in (6, 24):
        config = dataclasses.replace(CONFIG, backbone=dataclasses.replace(CONFIG.backbone, depth=depth))
        collectives = "sequence_parallel" if tp > 1 else "all_reduce"
        devices = tuple(range(tp))
        unit = module_unit(
            "backbone", devices, layers=(depth,), name="b", recompute=(recompute,), tp=tp, collectives=collectives
        )
        plan, batch = Plan((unit,)), tiny_batch(config, rows=32)
        counted_bytes, programs = (
            counted(config, plan, batch),
            abstract_stage_programs(config, plan, batch, jax.devices(), "dense"),
        )
        counts[depth] = counted_bytes.static_bytes + float(counted_bytes.saved_bytes.max())
        totals[depth] = compiled_bytes(programs["b", 0], "dense", 1).total
    assert counts[24] == pytest.approx(totals[24], rel=0.1)
    layer_bytes = totals[24] - totals[6]
    assert counts[24] - counts[6] == pytest.approx(layer_bytes, rel=0.02 if recompute == "none" else 1e-3)
