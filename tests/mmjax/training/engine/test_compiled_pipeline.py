"""Steps of units whose pipeline is one program against plain differentiation of the whole model on one device."""

import dataclasses

import numpy as np
import pytest

from configs.architectures import ExpertsConfig, ModelConfig
from configs.lora import LoraConfig
from mmjax.training.engine.engine import Engine
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import ExecutorName, UnitPlan
from tests.mmjax.training.engines import (
    SETTINGS,
    STEP,
    TIED_EMBEDDINGS,
    assert_step_of_one_device,
    noisy_state,
    shared_engine,
)
from tests.tiny_model import BACKBONE, VISION, tiny_batch

DEEP = dataclasses.replace(BACKBONE, depth=4)
TEXT = ModelConfig((), DEEP, ())
WITH_VISION = ModelConfig((VISION,), DEEP, ())
TIED = dataclasses.replace(TIED_EMBEDDINGS, backbone=dataclasses.replace(TIED_EMBEDDINGS.backbone, depth=4))
VISION_UNIT = UnitPlan("vision", ("vision",), (0, 1), dp=2, layers=(2,))


def backbone(pp, *, first=0, chunks=1, recompute="none", executor: ExecutorName = "compiled", **unit):
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


@pytest.mark.parametrize(
    "trainable",
    [
        pytest.param(("vision",), id="the encoder alone"),
        pytest.param(("backbone",), id="the backbone alone"),
    ],
)
def test_parts_that_are_frozen(trainable):
    plan = Plan((VISION_UNIT, backbone(2, first=2)), 2)
    engine = shared_engine(plan, WITH_VISION, dataclasses.replace(SETTINGS, trainable=trainable))
    assert_step_of_one_device(engine)
    programs = engine.executor.stages["backbone", 0].programs
    assert bool(programs.differentiated_inputs) == ("vision" in trainable)


def test_adapters_and_experts_on_replicas_that_divide_them():
    """Microbatches that no group of pipeline ranks divides evenly: the last group of each chunk is smaller."""
    experts = ExpertsConfig(count=4, top_k=2, ffn=12)
    config = ModelConfig(
        (), dataclasses.replace(DEEP, experts=experts), (), lora=(LoraConfig(part="backbone", rank=2),)
    )
    plan = Plan((backbone(2, chunks=2, dp=2, ep=2, recompute="selective"),), 1, "interleaved")
    assert_step_of_one_device(shared_engine(plan, config))


def test_context_parallel_ranks():
    unit = backbone(2, cp=2, tp=2, collectives="gather")
    assert_step_of_one_device(shared_engine(Plan((unit,), 2), TEXT))


def test_evaluations_and_updates_are_those_of_dispatched_stages():
    """Three microbatches, which two pipeline ranks do not divide, in two chunks."""
    results = []
    executors: tuple[ExecutorName, ...] = ("compiled", "dispatched")
    for executor in executors:
        plan = Plan((VISION_UNIT, backbone(2, first=2, chunks=2, executor=executor)), 3, "interleaved")
        batch = tiny_batch(WITH_VISION, 12)
        engine = Engine(WITH_VISION, plan, batch, SETTINGS)
        state, summary = engine.executor.step(noisy_state(engine), engine.place_batch(batch, STEP))
        evaluated = engine.executor.evaluate(engine.executor.compute_weights(state), engine.place_batch(batch, STEP))
        last = {(stage, number): each for (stage, numbers) in evaluated.items() for number, each in numbers.items()}
        of_backbone = {number: each for ((unit, _), number), each in last.items() if unit == "backbone" and each.losses}
        assert sorted(of_backbone) == [0, 1, 2]
        results.append(
            [
                float(summary.gradient_norm),
                *(float(np.sum(each.losses["backbone"])) for _, each in sorted(of_backbone.items())),
                *(int(np.sum(each.auxiliary_metrics["backbone/correct"])) for _, each in sorted(of_backbone.items())),
            ]
        )
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)
