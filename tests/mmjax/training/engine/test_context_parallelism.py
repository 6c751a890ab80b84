"""Plans whose ranks divide the positions of a row, against plain differentiation of the whole model on one device."""

import dataclasses

import pytest

from configs.architectures import LatentAttentionConfig, ModelConfig
from configs.attention.attention_kinds import AttentionTemperature
from configs.modules.experts import ExpertsConfig
from mmjax.training.engine.engine import Engine
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from tests.mmjax.training.engines import (
    SETTINGS,
    TIED_EMBEDDINGS,
    WITHOUT_GENERATOR,
    assert_step_of_one_device,
    shared_engine,
)
from tests.tiers import first_in_default
from tests.tiny_model import AUDIO, BACKBONE, TRANSFORMER_GENERATOR, VISION, tiny_batch
from tests.unit_plans import module_unit

EVERY_MODULE = ModelConfig((VISION, AUDIO), dataclasses.replace(BACKBONE, depth=2), (TRANSFORMER_GENERATOR,))
WITH_EXPERTS = ModelConfig(
    (), dataclasses.replace(BACKBONE, depth=2, experts=ExpertsConfig(count=4, top_k=2, ffn=12, balance_weight=0.1)), ()
)
LOCAL = ModelConfig(
    (),
    dataclasses.replace(
        BACKBONE, depth=2, attention_pattern=("local", "global"), attention_window=2, attention_sinks=True
    ),
    (),
)
CHUNKED = ModelConfig(
    (),
    dataclasses.replace(
        BACKBONE,
        depth=2,
        qk_norm="rotated",
        attention_pattern=("chunked", "unrotated"),
        attention_chunk=3,
        attention_temperature=AttentionTemperature(0.7, 2),
    ),
    (),
)
LATENT_WIDTHS = LatentAttentionConfig(query_rank=6, kv_rank=8, nope_width=4, rope_width=2, value_width=3)
LATENT = ModelConfig((), dataclasses.replace(BACKBONE, depth=2, kv_heads=4, latent_attention=LATENT_WIDTHS), ())


def backbone(devices, layers, **fields):
    return module_unit("backbone", devices, layers=layers, **fields)


VISION_ALONE = module_unit("vision", (0,), layers=(2,))

PLANS = {
    "a ring in the backbone with tensor and pipeline ranks": (
        WITHOUT_GENERATOR,
        Plan((VISION_ALONE, backbone(range(8), (1, 2), cp=2, tp=2)), microbatches=2),
    ),
    "a ring in both encoders, and conditions of a generator": (
        EVERY_MODULE,
        Plan(
            (
                module_unit("vision", (0, 1, 2, 3), layers=(2,), name="eyes", cp=2, dp=2),
                module_unit("audio", (4, 5), layers=(2,), name="ears", recompute=("full",), cp=2),
                backbone((4, 5, 6, 7), (2,), cp=2, dp=2),
                module_unit("generator", (0,), name="painter"),
            ),
            microbatches=2,
        ),
    ),
    "modules of one unit, with divided positions between matmuls": (
        WITHOUT_GENERATOR,
        Plan(
            (
                UnitPlan(
                    "all",
                    ("vision", "backbone"),
                    tuple(range(8)),
                    layers=(5,),
                    recompute=("selective",),
                    parallelism=Parallelism(cp=2, tp=2, dp=2, collectives="sequence_parallel"),
                ),
            ),
            microbatches=2,
        ),
    ),
    "heads for positions, with tied embeddings": (
        TIED_EMBEDDINGS,
        Plan(
            (
                module_unit("vision", (0, 1), layers=(2,), cp=2, context_transfer="all_to_all"),
                backbone((2, 3, 4, 5), (1, 2), cp=2, context_transfer="all_to_all"),
            ),
            microbatches=2,
        ),
    ),
    "fully sharded replicas": (
        WITHOUT_GENERATOR,
        Plan((VISION_ALONE, backbone(range(8), (3,), cp=2, dp=4, fsdp=4)), microbatches=2),
    ),
    "experts over replicas": (
        WITH_EXPERTS,
        Plan((backbone(range(8), (2,), cp=2, dp=2, tp=2, ep=2, collectives="sequence_parallel"),), microbatches=2),
    ),
    "latent attention, with tensor ranks": (
        LATENT,
        Plan((backbone(range(4), (2,), cp=2, tp=2, collectives="sequence_parallel"),), microbatches=2),
    ),
    "chunked layers": (CHUNKED, Plan((backbone(range(4), (1, 1), cp=2),), microbatches=2)),
    "local layers with sinks": (LOCAL, Plan((backbone(range(4), (1, 1), cp=2),), microbatches=2)),
}


@pytest.mark.parametrize("name", first_in_default(PLANS))
def test_losses_and_gradients_are_those_of_one_device(name):
    config, plan = PLANS[name]
    assert_step_of_one_device(shared_engine(plan, config))


def test_rows_that_the_ranks_cannot_divide_are_refused():
    plan = Plan((VISION_ALONE, backbone(range(4), (3,), cp=4)), microbatches=1)
    with pytest.raises(PlanError, match="unit backbone: cp 4 takes two chunks a rank of each row, and 8 chunks do not"):
        Engine(WITHOUT_GENERATOR, plan, tiny_batch(WITHOUT_GENERATOR), SETTINGS)


def test_heads_that_the_ranks_cannot_divide_are_refused():
    unit = backbone(range(4), (3,), cp=2, tp=2, context_transfer="all_to_all")
    with pytest.raises(PlanError, match="cp 2 x tp 2 = 4 ranks do not divide kv_heads = 2 of backbone"):
        Engine(WITHOUT_GENERATOR, Plan((VISION_ALONE, unit)), tiny_batch(WITHOUT_GENERATOR), SETTINGS)
