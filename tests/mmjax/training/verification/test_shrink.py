"""Reduced configurations: smaller, of the same kinds, and cut by the same plans."""

import dataclasses
import math

import jax
import pytest

from configs.architectures import (
    AudioConfig,
    BackboneConfig,
    DiTConfig,
    LatentAttentionConfig,
    ModelConfig,
    UNetConfig,
    VisionConfig,
)
from configs.attention.rope import LongRopeScaling
from data.data_config import DataConfig
from data.packing.phases.phase_rows import RowValues
from mmjax.models.model import model_modules
from mmjax.models.structure.parameters import abstract_module_parameters
from mmjax.training.verification.layouts.divided_plans import GlobalRows
from mmjax.training.verification.shrink import shrink_data, shrink_model, shrink_plan
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from tests.unit_plans import module_unit

LARGE = ModelConfig(
    encoders=(VisionConfig(width=3200, depth=45, heads=25, ffn=12800, patch=14),),
    backbone=BackboneConfig(
        vocabulary=92552, width=8192, depth=80, heads=64, kv_heads=8, ffn=28672, tie_embeddings=True
    ),
    generators=(UNetConfig(image_size=512, widths=(320, 640, 1280, 1280), blocks=2, head_width=160, groups=32),),
)
PLAN = Plan(
    (
        module_unit("vision", (0, 1, 2), layers=(45,), dp=3),
        module_unit("backbone", range(48), layers=(5, 15, 15, 15, 15, 15), recompute=("full",) * 6, tp=8),
        module_unit("generator", range(8), tp=8),
    ),
    microbatches=4,
)
ROWS = GlobalRows(12, {"vision": RowValues("patches", 4096, 4)})
SMALL_ROWS = GlobalRows(12, {"vision": RowValues("patches", 64, 4)})
CHAIN = Plan(
    (
        UnitPlan("all", ("vision", "backbone"), (0, 1, 2), layers=(40, 25, 60), recompute=("none",) * 3),
        module_unit("generator", (3,)),
    )
)


def size(model):
    leaves = jax.tree.leaves([abstract_module_parameters(module) for module in model_modules(model)])
    return sum(math.prod(leaf.shape) for leaf in leaves)


def test_a_large_model_becomes_small_and_keeps_its_kinds():
    small = shrink_model(LARGE, 40)
    assert size(small) < 2e7 < 1e10 < size(LARGE)
    assert (small.encoders[0].heads, small.backbone.heads, small.backbone.kv_heads) == (25, 64, 8)
    assert small.backbone.tie_embeddings and small.backbone.vocabulary == 40
    assert small.generators[0].widths == (16, 32, 64, 64) and small.encoders[0].patch == 14

    def paths(model, at):
        module = abstract_module_parameters(model_modules(model)[at])
        kept = {piece: layers["000"] for piece, layers in module.items()}
        return {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(kept)}

    assert paths(small, 0) == paths(LARGE, 0) and paths(small, 1) == paths(LARGE, 1)


def test_layers_in_fp8_stay():
    small = shrink_model(LARGE.with_fp8(("mlp",)), 40)
    assert small.encoders[0].fp8 == small.backbone.fp8 == ("mlp",)


def test_encoders_of_every_kind_become_small():
    audio = AudioConfig(width=1280, depth=32, heads=20, ffn=5120, merge=4)
    large = dataclasses.replace(LARGE, encoders=(*LARGE.encoders, audio))
    small = shrink_model(large, 40).encoders[1]
    assert small == AudioConfig(width=80, depth=4, heads=20, ffn=160, merge=4)


def test_heads_that_rotate_by_three_axes_keep_pairs_for_each():
    large = dataclasses.replace(
        LARGE, backbone=dataclasses.replace(LARGE.backbone, rope_sections=(24, 20, 20), rope_interleaved=True)
    )
    small = shrink_model(large, 40)
    assert (small.backbone.head_width, small.backbone.rope_sections) == (8, (2, 1, 1))
    assert small.backbone.rope_interleaved and shrink_model(small, 40) == small


@pytest.mark.parametrize("rope_width", [0, 96])
def test_pairs_of_channels_keep_a_factor_each(rope_width):
    pairs = (rope_width or 128) // 2
    scaling = LongRopeScaling(
        short_factors=(1.0,) * pairs, long_factors=(2.0,) * pairs, original_positions=4096, factor=32.0
    )
    backbone = dataclasses.replace(
        LARGE.backbone, attention_width=64 * 128, rope_width=rope_width, rope_scaling=scaling
    )
    small = shrink_model(dataclasses.replace(LARGE, backbone=backbone), 40).backbone
    assert (small.head_width, small.rotary_width) == (4, 2 if rope_width else 4)


def test_latent_vectors_become_narrow():
    latent = LatentAttentionConfig(query_rank=1536)
    backbone = dataclasses.replace(LARGE.backbone, kv_heads=64, latent_attention=latent)
    small = shrink_model(dataclasses.replace(LARGE, backbone=backbone), 40).backbone
    assert small.latent_attention == LatentAttentionConfig(
        query_rank=8, kv_rank=8, nope_width=4, rope_width=4, value_width=4
    )


def test_features_of_encoder_layers_stay():
    vision = dataclasses.replace(LARGE.encoders[0], deepstack_layers=(8, 16, 24))
    small = shrink_model(dataclasses.replace(LARGE, encoders=(vision,)), 40)
    assert small.encoders[0].deepstack_layers == (0, 1, 2)
    assert small.backbone.depth == 7 and module_graph(small)["backbone"].layer_count == 4


FLUX_LIKE = DiTConfig(
    image_size=1024,
    width=3072,
    heads=24,
    ffn=12288,
    double_layers=19,
    single_layers=38,
    plain_layers=0,
    positions="rotary",
    rotary_axes=(16, 56, 56),
    conditions=512,
    condition_width=4096,
    pooled_width=768,
)


def test_a_diffusion_transformer_keeps_its_kinds_of_blocks_and_a_layer_for_every_stage():
    large = dataclasses.replace(LARGE, generators=(FLUX_LIKE,))
    small = shrink_model(large, 40).generators[0]
    assert (small.double_layers, small.single_layers, small.plain_layers) == (2, 2, 0)
    assert (small.width, small.heads, small.rotary_axes, small.image_size) == (96, 24, (0, 2, 2), 4)
    eight = module_unit("generator", range(8), layers=(8, *(7,) * 7), recompute=("full",) * 8)
    plan = dataclasses.replace(PLAN, units=(*PLAN.units[:2], eight))
    cut = shrink_model(large, 40, (plan,))
    assert (cut.generators[0].double_layers, cut.generators[0].single_layers) == (3, 6)
    reduced = shrink_plan(plan, module_graph(large), module_graph(cut), ROWS, SMALL_ROWS)
    resolve_plan(reduced, module_graph(cut), 48, 12)
    assert shrink_model(cut, 40, (reduced,)) == cut


def test_a_small_model_stays_as_it_is():
    small = shrink_model(LARGE, 40)
    assert shrink_model(small, 40) == small


@pytest.mark.parametrize("plan", [PLAN, CHAIN])
def test_a_plan_cuts_the_small_model_as_the_large_one(plan):
    large, small = module_graph(LARGE), module_graph(shrink_model(LARGE, 40, (PLAN, CHAIN)))
    resolve_plan(plan, large, 48, 12)
    reduced = shrink_plan(plan, large, small, ROWS, SMALL_ROWS)
    resolve_plan(reduced, small, 48, 12)
    assert [(unit.devices, unit.pp) for unit in reduced.units] == [(unit.devices, unit.pp) for unit in plan.units]
    assert small["backbone"].layer_count == 7 and small["vision"].layer_count == 4


def test_layers_keep_about_their_proportion():
    large, small = module_graph(LARGE), module_graph(shrink_model(LARGE, 40, (PLAN, CHAIN)))
    assert shrink_plan(PLAN, large, small, ROWS, SMALL_ROWS).unit_of("backbone").layers == (1, 2, 1, 1, 1, 1)
    # Of the encoder's 4 layers 3 and 1, of the backbone's 7 2 and 5.
    assert shrink_plan(CHAIN, large, small, ROWS, SMALL_ROWS).unit_of("vision").layers == (3, 3, 5)


def test_capacities_shrink_with_rows_and_hold_any_batch():
    eyes = dataclasses.replace(PLAN.units[0], phase_rows=3, capacities=(100, 1024, 2048, 3072))
    large, small = module_graph(LARGE), module_graph(shrink_model(LARGE, 40, (PLAN,)))
    plan = dataclasses.replace(PLAN, units=(eyes, *PLAN.units[1:]))
    assert shrink_plan(plan, large, small, ROWS, SMALL_ROWS).unit_of("vision").capacities == (4, 16, 32, 64)


def test_rows_of_data_shrink_but_not_their_number():
    large = DataConfig(rows=256, tokens=8192, patches=4096, images=16, samples=64, isf_thresholds=(("tokens", 8064),))
    data = shrink_data(large, LARGE)
    assert (data.rows, data.tokens, data.patches, data.isf_thresholds) == (256, 256, 64, ())
