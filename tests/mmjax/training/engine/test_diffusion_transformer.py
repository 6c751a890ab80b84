"""A diffusion transformer cut into stages, against plain differentiation on one device."""

import dataclasses

import pytest

from configs.architectures import AutoencoderConfig, DiTConfig, ModelConfig
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.mmjax.training.engines import assert_step_of_one_device, shared_engine
from tests.tiers import first_in_default
from tests.tiny_model import BACKBONE

TRANSFORMER = DiTConfig(
    image_size=4,
    patch=2,
    width=8,
    heads=2,
    ffn=12,
    double_layers=2,
    single_layers=2,
    plain_layers=0,
    qk_norm=True,
    positions="rotary",
    rotary_axes=(0, 2, 2),
    pooled_width=4,
    conditions=2,
    condition_width=8,
    condition_dropout=0.3,
)
# Latents pass through the stages for the loss; the last block has no output for the conditions.
OF_LATENTS = dataclasses.replace(
    TRANSFORMER,
    patch=1,
    double_layers=3,
    image_attention_layers=1,
    single_layers=0,
    positions="sinusoidal",
    autoencoder=AutoencoderConfig(latent_channels=2, widths=(8, 8), blocks=1, groups=4, quantise=False, shift=0.1),
)


def plan(layers, recompute):
    """The backbone on one device, and the generator in two stages of two tensor ranks."""
    backbone = UnitPlan("backbone", ("backbone",), (0,), layers=(3,))
    generator = UnitPlan(
        "generator", ("generator",), (1, 2, 3, 4), layers=layers, recompute=recompute, parallelism=Parallelism(tp=2)
    )
    return Plan((backbone, generator), microbatches=2)


@pytest.mark.parametrize(
    ("generator", "layers", "recompute"),
    first_in_default(
        [
            (dataclasses.replace(TRANSFORMER, double_layers=1, single_layers=1), (1, 1), ("none", "none")),
            (TRANSFORMER, (1, 3), ("none", "selective")),
            (OF_LATENTS, (2, 1), ("1 full, 1 none", "none")),
        ]
    ),
    ids=["cut between stacks", "cut within a stack", "cut between stacks, with an autoencoder"],
)
def test_losses_and_gradients_in_two_stages_are_those_of_one_device(generator, layers, recompute):
    assert_step_of_one_device(shared_engine(plan(layers, recompute), ModelConfig((), BACKBONE, (generator,))))
