"""Whole steps with experts on plans against plain differentiation on one device: expert, tensor, data, pipeline."""

import dataclasses

import jax
import numpy as np
import pytest

from configs.architectures import ExpertsConfig, LatentAttentionConfig, ModelConfig, RouterConfig
from mmjax.models.layers.experts import LOAD_GRADIENT_SCALE
from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.engine.stage_layouts import trees_by_module
from mmjax.training.verification.layouts.default_layouts import default_layouts
from mmjax.training.verification.layouts.layout_table import EXPERT_LAYOUT_KINDS, LAYOUT_KINDS
from sharding.expert_transfer import Routing, cheaper_transfer
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.specs.modules import module_graph
from tests.mmjax.training.engines import (
    assert_step_of_one_device,
    noisy_parameters,
    noisy_state,
    reference,
    shared_engine,
)
from tests.mmjax.training.verification.layouts.test_default_layouts import ROWS
from tests.tiers import first_in_default
from tests.tiny_model import BACKBONE, tiny_batch, tiny_model
from tests.unit_plans import module_unit

EXPERTS = ExpertsConfig(count=4, top_k=2, ffn=16, shared_ffn=8, balance_weight=0.5)
ROUTING = Routing(EXPERTS.count, EXPERTS.top_k)
CONFIG = ModelConfig((), dataclasses.replace(BACKBONE, experts=EXPERTS), ())
LATENT = LatentAttentionConfig(query_rank=6, kv_rank=8, nope_width=4, rope_width=2, value_width=3)
PLANS = {
    "pipeline of expert and tensor ranks": Plan(
        (
            module_unit(
                "backbone", range(8), layers=(1, 2), name="mind", recompute=("selective", "full"), dp=2, tp=2, ep=2
            ),
        ),
        microbatches=2,
    ),
    "expert ranks that are some of the instances": Plan(
        (module_unit("backbone", (7, 6, 5, 4), layers=(3,), name="mind", dp=4, tp=1, ep=2),)
    ),
    "an all-to-all among half of the ranks that divide all weights": Plan(
        (
            module_unit(
                "backbone", range(8), layers=(3,), name="mind", recompute=("2 full, 1 none",), dp=8, ep=4, fsdp=8
            ),
        )
    ),
}
TRANSFERS = ("gather", "gather", "all_to_all")
GROUPS = RouterConfig(scores="sigmoid", bias=True, selection_bias=True, groups=2, top_groups=1, weight_factor=1.5)
OPTIONS = dataclasses.replace(EXPERTS, router=GROUPS, biases=True, limit=1.0, up_offset=1.0, shared_gate=False)


@pytest.mark.parametrize("name", first_in_default(PLANS))
def test_losses_and_gradients_are_those_of_one_device(name):
    assert cheaper_transfer(ROUTING, PLANS[name].units[0].parallelism.ep, nodes=1) == TRANSFERS[list(PLANS).index(name)]
    _, losses = assert_step_of_one_device(shared_engine(PLANS[name], CONFIG))
    assert set(losses) == {"backbone", "backbone/balance"}  # of both stages together, each apart
    assert losses["backbone/balance"] > 0.5  # even routing costs balance * top


@pytest.mark.layouts
@pytest.mark.parametrize(
    ("cut", "latent", "dense", "interval"),
    [((1, 2), None, 1, 1), ((2, 1), LATENT, 0, 2)],
    ids=["a dense first layer", "dense layers around, latent attention"],
)
def test_routing_in_groups_with_biases_and_dense_layers_are_those_of_one_device(cut, latent, dense, interval):
    experts = dataclasses.replace(OPTIONS, dense_layers=dense, interval=interval)
    backbone = dataclasses.replace(CONFIG.backbone, kv_heads=4, latent_attention=latent, experts=experts)
    config = dataclasses.replace(CONFIG, backbone=backbone)
    unit = module_unit("backbone", range(8), layers=cut, name="mind", recompute=("selective", "none"), dp=2, tp=2, ep=2)
    engine = shared_engine(Plan((unit,), microbatches=2), config)
    plan_gradients, _ = assert_step_of_one_device(engine)
    batch = tiny_batch(config)
    _, gradients = reference(config)(noisy_parameters(config), batch)
    blocks = gradients["backbone"]["blocks"]["000"]["mlp"]
    assert all(np.any(blocks[f"{name}_bias"]) for name in ("router", "down"))
    layers = len(backbone.layers_with_experts)
    loads = np.asarray(blocks["selection_bias"]) * layers / LOAD_GRADIENT_SCALE  # shares of the tokens
    tokens = np.sum(batch["backbone"]["segments"] > 0)
    counts = (loads + experts.top_k / experts.count) * tokens
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-3)
    assert round(counts.sum()) == experts.top_k * tokens and np.ptp(counts) > 1
    bias_gradient = plan_gradients["backbone"]["blocks"]["000"]["mlp"]["selection_bias"]
    np.testing.assert_allclose(bias_gradient, blocks["selection_bias"], atol=1e-12)
    assert set(gradients["backbone"]) - {"embed", "head"} == {run.name for run in backbone.block_runs()}


@pytest.mark.layouts
def test_every_rank_holds_its_experts_alone_and_a_share_of_their_masters():
    engine = shared_engine(PLANS["expert ranks that are some of the instances"], CONFIG)
    state = noisy_state(engine)
    master = state.master_weights["mind", 0]["backbone/blocks"]["001"]["mlp"]["gate"]
    count, width, ffn = master.shape
    assert {shard.data.shape for shard in master.addressable_shards} == {(count // 2, width // 2, ffn)}
    weights = engine.executor.compute_weights(state)["mind", 0]["backbone/blocks"]["mlp"]["gate"]
    held = {shard.device.id: shard.index[1] for shard in weights.addressable_shards}
    assert [held[device].start for device in (7, 6, 5, 4)] == [0, 2, 0, 2]  # data rank = data * ep + expert
    gradients = engine.executor.stages["mind", 0].programs.zero_gradients()["backbone/blocks"]
    assert gradients["mlp"]["gate"].shape[0] == 2 and gradients["mlp"]["router"].shape[0] == 4


@pytest.mark.layouts
def test_a_checkpoint_of_one_plan_is_restored_on_expert_ranks_of_another(tmp_path):
    before, after, _ = (shared_engine(PLANS[name], CONFIG) for name in PLANS)
    checkpoints = CheckpointManager(tmp_path, CONFIG)
    checkpoints.save(1, before, noisy_state(before), {})
    checkpoints.wait()
    state, _, step = checkpoints.restore(after)
    checkpoints.close()
    assert step == 1
    jax.tree.map(np.testing.assert_array_equal, trees_by_module(state.master_weights), noisy_parameters(CONFIG))


def test_verify_tries_layouts_of_experts_where_there_are_some():
    deep = tiny_model(depth=4)
    graph = module_graph(dataclasses.replace(deep, backbone=dataclasses.replace(deep.backbone, experts=EXPERTS)))
    layouts, refused = default_layouts(graph, ROWS, devices=8)
    assert (len(layouts), refused) == (len(LAYOUT_KINDS) + len(EXPERT_LAYOUT_KINDS), {})
    for layout in layouts:
        resolve_plan(layout.plan, graph, 8, 12)
    units = [layout.plan.unit_of("backbone") for layout in layouts[-len(EXPERT_LAYOUT_KINDS) :]]
    assert {(unit.parallelism.ep, unit.parallelism.ep < unit.parallelism.dp) for unit in units} >= {
        (4, False),
        (2, True),
    }
    assert any(unit.parallelism.ep > 1 and unit.parallelism.tp > 1 and unit.pp > 1 for unit in units)
    assert {cheaper_transfer(ROUTING, unit.parallelism.ep, nodes=1) for unit in units} == {"gather", "all_to_all"}
