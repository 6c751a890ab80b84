"""Steps of units whose pipeline is one program against plain differentiation of the whole model on one device."""

import dataclasses

import pytest

from configs.architectures import ModelConfig
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.mmjax.training.engines import (
    TIED_EMBEDDINGS,
    assert_step_of_one_device,
    shared_engine,
)
from tests.tiny_model import BACKBONE, VISION

DEEP = dataclasses.replace(BACKBONE, depth=4)
TEXT = ModelConfig((), DEEP, ())
WITH_VISION = ModelConfig((VISION,), DEEP, ())
TIED = dataclasses.replace(TIED_EMBEDDINGS, backbone=dataclasses.replace(TIED_EMBEDDINGS.backbone, depth=4))
VISION_UNIT = UnitPlan("vision", ("vision",), (0, 1), dp=2, layers=(2,))


def backbone(pp, *, first=0, chunks=1, recompute="none", executor="compiled", **unit):
    """A unit of four layers on `pp` pipeline ranks, from a device on."""
    devices = pp * unit.get("dp", 1) * unit.get("tp", 1) * unit.get("cp", 1)
    return UnitPlan(
        "backbone",
        ("backbone",),
        tuple(range(first, first + devices)),
        layers=(4 // (pp * chunks),) * (pp * chunks),
        recompute=(recompute,) * (pp * chunks),
        chunks=chunks,
        executor=executor,
        **unit,
    )


@pytest.mark.parametrize(
    ("unit", "microbatches"),
    [
        pytest.param(backbone(2), 1, id="one microbatch"),
        pytest.param(backbone(4, dp=2, recompute="selective"), 4, id="four ranks, two replicas"),
        pytest.param(backbone(2, chunks=2, tp=2, collectives="ring"), 4, id="two chunks, a ring of tensor ranks"),
        pytest.param(backbone(2, chunks=2, dp=2, fsdp=2, recompute="full"), 2, id="two chunks, fully sharded"),
    ],
)
def test_a_backbone_alone(unit, microbatches):
    assert_step_of_one_device(shared_engine(Plan((unit,), microbatches, "interleaved"), TEXT))


def test_an_encoder_before_it_and_tied_embeddings():
    """All forwards of the encoder come before the program, and all its backwards after it."""
    assert_step_of_one_device(shared_engine(Plan((VISION_UNIT, backbone(2, first=2, tp=2)), 4), TIED))
