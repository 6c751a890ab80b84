"""Steps of units whose pipeline is one program against plain differentiation of the whole model on one device."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from configs.architectures import ExpertsConfig, ModelConfig
from configs.modules.lora import LoraConfig
from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.engine.compilation import compile_evaluation, compile_step
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.stage_layouts import trees_by_module
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import ExecutorName
from sharding.runtime.stages.weight_specs import is_partition_spec
from tests.mmjax.training.engine.test_compilation import compilations
from tests.mmjax.training.engines import (
    SETTINGS,
    STEP,
    TIED_EMBEDDINGS,
    assert_step_of_one_device,
    noisy_parameters,
    noisy_state,
    shared_engine,
)
from tests.tiny_model import BACKBONE, VISION, tiny_batch
from tests.unit_plans import module_unit

DEEP = dataclasses.replace(BACKBONE, depth=4)
TEXT = ModelConfig((), DEEP, ())
WITH_VISION = ModelConfig((VISION,), DEEP, ())
TIED = dataclasses.replace(TIED_EMBEDDINGS, backbone=dataclasses.replace(TIED_EMBEDDINGS.backbone, depth=4))
VISION_UNIT = module_unit("vision", (0, 1), layers=(2,), dp=2)


def backbone(pp, *, first=0, chunks=1, layers=4, recompute="none", executor: ExecutorName = "compiled", **unit):
    """A unit of so many layers on `pp` pipeline ranks, from a device on."""
    devices = pp * unit.get("dp", 1) * unit.get("tp", 1) * unit.get("cp", 1)
    return module_unit(
        "backbone",
        range(first, first + devices),
        layers=(layers // (pp * chunks),) * (pp * chunks),
        recompute=(recompute,) * (pp * chunks),
        executor=executor,
        chunks=chunks,
        **unit,
    )


@pytest.mark.layouts
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


@pytest.mark.layouts
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


@pytest.mark.layouts
@pytest.mark.parametrize(
    ("microbatches", "trainable"),
    [
        pytest.param(4, ("all",), id="whole groups of microbatches"),
        pytest.param(3, ("vision",), id="the encoder alone, and one microbatch left over"),
    ],
)
def test_three_chunks_an_encoder_before_them_and_tied_embeddings(microbatches, trainable):
    """The chunks in the middle have neither the embedding nor the head; the first and the last share a matrix."""
    deep = dataclasses.replace(TIED, backbone=dataclasses.replace(TIED.backbone, depth=6))
    plan = Plan((VISION_UNIT, backbone(2, first=2, chunks=3, layers=6)), microbatches, "interleaved")
    rows = 2 * microbatches
    engine = Engine(deep, plan, tiny_batch(deep, rows), dataclasses.replace(SETTINGS, trainable=trainable))
    assert_step_of_one_device(engine, rows)


@pytest.mark.layouts
def test_adapters_and_experts_on_replicas_that_divide_them():
    """Microbatches that no group of pipeline ranks divides evenly: the last group of each chunk is smaller."""
    experts = ExpertsConfig(count=4, top_k=2, ffn=12)
    config = ModelConfig(
        (), dataclasses.replace(DEEP, experts=experts), (), lora=(LoraConfig(part="backbone", rank=2),)
    )
    plan = Plan((backbone(2, chunks=2, dp=2, ep=2, recompute="selective"),), 1, "interleaved")
    assert_step_of_one_device(shared_engine(plan, config))


@pytest.mark.layouts
def test_context_parallel_ranks():
    unit = backbone(2, cp=2, tp=2, collectives="sequence_parallel")
    assert_step_of_one_device(shared_engine(Plan((unit,), 2), TEXT))


@pytest.fixture(scope="module")
def engines():
    """Three microbatches, which two pipeline ranks do not divide, in two chunks: as one program, and dispatched."""
    executors: tuple[ExecutorName, ...] = ("compiled", "dispatched")
    plans = [
        Plan((VISION_UNIT, backbone(2, first=2, dp=2, chunks=2, executor=executor)), 3, "interleaved")
        for executor in executors
    ]
    return [Engine(WITH_VISION, plan, tiny_batch(WITH_VISION, 12), SETTINGS) for plan in plans]


@pytest.mark.layouts
def test_evaluations_and_updates_are_those_of_dispatched_stages_and_nothing_compiles_in_them(engines):
    batch, results = tiny_batch(WITH_VISION, 12), []
    compile_step(engines[0], lambda done, total: None)
    compile_evaluation(engines[0], lambda done, total: None)
    for engine in engines:
        placed, state = engine.place_batch(batch, STEP), noisy_state(engine)
        with compilations() as compiled:
            state, summary = engine.executor.step(state, placed)
            evaluated = engine.executor.evaluate(engine.executor.compute_weights(state), placed)
        assert not compiled or engine is engines[1]
        backbone_outputs = {
            number: outputs
            for (unit, _), numbers in evaluated.items()
            for number, outputs in numbers.items()
            if unit == "backbone" and outputs.losses
        }
        losses = [float(np.sum(backbone_outputs[number].losses["backbone"])) for number in range(3)]
        correct = [int(np.sum(backbone_outputs[number].auxiliary_metrics["backbone/correct"])) for number in range(3)]
        results.append([float(summary.gradient_norm), *losses, *correct])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)


@pytest.mark.layouts
def test_state_is_by_layer_and_each_rank_computes_with_its_own_layers(engines, tmp_path):
    engine, other = engines
    checkpoints = CheckpointManager(tmp_path, WITH_VISION)
    state = noisy_state(engine)
    checkpoints.save(1, engine, state, {})
    checkpoints.wait()
    restored, _, step = checkpoints.restore(other)
    checkpoints.close()
    expected = noisy_parameters(WITH_VISION)
    jax.tree.map(np.testing.assert_array_equal, trees_by_module(restored.master_weights), expected)
    assert step == 1
    master = state.master_weights["backbone", 0]["backbone/blocks"]["002"]["mlp"]["up"]["kernel"]
    assert {shard.data.size for shard in master.addressable_shards} == {master.size // 4}  # 2 ranks, 2 replicas
    kernel = engine.executor.compute_weights(state)["backbone", 0]["backbone/blocks"]["mlp"]["up"]["kernel"]
    for shard in kernel.addressable_shards:
        rank = (shard.device.id - 2) // 2
        layers = [expected["backbone"]["blocks"][f"{layer:03}"]["mlp"]["up"]["kernel"] for layer in (rank, rank + 2)]
        np.testing.assert_array_equal(shard.data, np.stack(layers))


@pytest.mark.layouts
def test_layers_come_to_their_rank_and_go_back_by_an_all_to_all(engines):
    """Otherwise every rank would gather the layers of all."""
    masters = engines[0].stages["backbone", 0].master_weights
    gather = masters.gather.lower(masters.abstract_weights()).compile().as_text()
    stacked = len(jax.tree.leaves(masters.compute_specs["backbone/blocks"], is_leaf=is_partition_spec))
    exchanged = re.findall(r"^ *%?all-to-all\S* = ", gather, re.MULTILINE)
    assert len(exchanged) == stacked
    kernel = masters.compute_shapes["backbone/blocks"]["mlp"]["up"]["kernel"]
    assert f"f32[{','.join(map(str, kernel.shape))}]" not in gather  # of all layers
