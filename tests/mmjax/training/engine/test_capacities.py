"""Microbatches that run with different capacities, or not at all where a unit has no item of them."""

import collections
import dataclasses

import jax
import numpy as np
import pytest

from configs.architectures import ModelConfig
from configs.modules.projectors import ResamplerConfig
from data.packing.dealt_phases import DealtPhases
from sharding.plans.plan import Plan
from tests.mmjax.training.engines import (
    SETTINGS,
    STEP,
    TIED_EMBEDDINGS,
    assert_step_of_one_device,
    noisy_state,
    shared_engine,
)
from tests.tiers import first_in_default
from tests.tiny_model import AUDIO, BACKBONE, TRANSFORMER_GENERATOR, VISION, tiny_batch
from tests.unit_plans import module_unit

EVERY_MODULE = ModelConfig(
    (dataclasses.replace(VISION, projector=ResamplerConfig(heads=4)), AUDIO),
    dataclasses.replace(BACKBONE, depth=4),
    (TRANSFORMER_GENERATOR,),
)
WITH_GENERATOR = ModelConfig((), dataclasses.replace(BACKBONE, depth=1), (TRANSFORMER_GENERATOR,))

PLANS = {
    "an encoder of two stages, and tied embeddings": (
        TIED_EMBEDDINGS,
        Plan(
            (
                module_unit(
                    "vision",
                    (0, 1, 2, 3),
                    layers=(1, 1),
                    name="eyes",
                    recompute=("full", "none"),
                    phase_rows=2,
                    capacities=(4, 8),
                    dp=2,
                    extra_microbatches=2,
                ),
                module_unit("backbone", (4, 5, 6, 7), layers=(1, 2), dp=2),
            ),
            microbatches=4,
        ),
        {"eyes": (1, None, 0, 0)},
    ),
    "every module, resampled images, an interleaved backbone, shared devices": (
        EVERY_MODULE,
        Plan(
            (
                module_unit("vision", (0, 1, 2), layers=(2,), phase_rows=3, capacities=(4, 8), dp=3),
                module_unit("audio", (6, 7), layers=(1, 1), phase_rows=1, capacities=(4, 8, 16)),
                module_unit("backbone", (2, 3), layers=(1, 1, 1, 1), chunks=2, extra_microbatches=1),
                module_unit("generator", (4, 5), phase_rows=2, capacities=(1, 2), dp=2),
            ),
            microbatches=4,
            schedule="interleaved",
        ),
        {"vision": (0, None, 0, 0), "audio": (2, None, 0, 0), "generator": (0, 1, None, 0)},
    ),
}
# A microbatch has two rows. Without an image or a clip are both rows of microbatch 1, and one row of two others; no
# image of microbatch 2 is to be generated.
WITHOUT_ITEMS = [2, 3, 5, 6]
WITHOUT_TARGETS = [4, 5, 7]


def sparse_batch(config: ModelConfig):
    batch = tiny_batch(config)
    for encoder in config.encoders:
        batch[encoder.name]["segments"][WITHOUT_ITEMS] = 0
        batch["backbone"][f"{encoder.name}_index"][WITHOUT_ITEMS] = -1
    for generator in config.generators:
        batch[generator.name]["weights"][WITHOUT_TARGETS] = 0
    return batch


@pytest.fixture
def count_programs(monkeypatch):
    """Counts the calls of an engine's programs, by (kind, stage, capacity)."""

    def watch(engine):
        calls = collections.Counter()

        def counted(kind, stage_id, capacity, program):
            def call(*arguments):
                calls[kind, stage_id, capacity] += 1
                return program(*arguments)

            return call

        for stage_id, stage in engine.executor.stages.items():
            for capacity, programs in (
                (n, capacity_programs)
                for replica in stage.pipeline_replicas
                for n, capacity_programs in enumerate(replica.by_capacity)
            ):
                for kind in ("forward", "backward", "evaluate"):
                    program = getattr(programs, kind)
                    if program is not None:
                        monkeypatch.setattr(programs, kind, counted(kind, stage_id, capacity, program))
        return calls

    return watch


def expected_calls(engine, numbers, kinds):
    """One call a microbatch and stage, with the microbatch's capacity."""
    calls = collections.Counter()
    for stage_id in engine.stages:
        for number in numbers.get(stage_id[0], (0,) * engine.plan.microbatches):
            if number is not None:
                calls.update((kind, stage_id, number) for kind in kinds)
    return calls


@pytest.mark.parametrize("name", first_in_default(PLANS))
def test_each_microbatch_runs_with_the_smallest_capacity_that_holds_it(name, count_programs):
    config, plan, numbers = PLANS[name]
    engine, batch = shared_engine(plan, config), sparse_batch(config)
    assert engine.place_batch(batch, STEP).capacities == numbers
    calls = count_programs(engine)
    assert_step_of_one_device(engine, batch=batch)
    assert calls == expected_calls(engine, numbers, ("forward", "backward"))
    calls.clear()
    state = noisy_state(engine)
    engine.executor.evaluate(engine.executor.compute_weights(state), engine.place_batch(batch, STEP))
    assert calls == expected_calls(engine, numbers, ("evaluate",))


@pytest.mark.layouts
def test_a_batch_of_text_alone_runs_the_backbone_alone_and_updates_all(count_programs):
    config, plan, _ = PLANS["every module, resampled images, an interleaved backbone, shared devices"]
    engine, batch = shared_engine(plan, config), tiny_batch(config)
    for encoder in config.encoders:
        batch[encoder.name]["segments"][:] = 0
        batch["backbone"][f"{encoder.name}_index"][:] = -1
    batch["generator"]["weights"][:] = 0
    calls = count_programs(engine)
    assert_step_of_one_device(engine, batch=batch)
    assert {stage_id for _, stage_id, _ in calls} == {("backbone", stage) for stage in range(4)}
    placed = engine.place_batch(batch, STEP)
    gradients, _ = engine.executor.gradients(noisy_state(engine), placed)
    after, _ = engine.executor.step(noisy_state(engine), placed)
    expected, _ = engine.executor.update(noisy_state(engine), gradients)
    jax.tree.map(np.testing.assert_array_equal, vars(after), vars(expected))  # also weights decay, and moments


@pytest.mark.parametrize("name", first_in_default(PLANS))
def test_skipped_microbatches_change_no_bit(name, monkeypatch):
    """What is left out is what the programs of the smallest capacity make of rows without an item."""
    config, plan, _ = PLANS[name]
    engine, batch = shared_engine(plan, config), sparse_batch(config)
    skipping, summary = engine.executor.gradients(noisy_state(engine), engine.place_batch(batch, STEP))
    chosen = DealtPhases.capacities

    def never_none(self, arrays):
        return {module: tuple(number or 0 for number in numbers) for module, numbers in chosen(self, arrays).items()}

    monkeypatch.setattr(DealtPhases, "capacities", never_none)
    placed = engine.place_batch(batch, STEP)
    assert not any(None in numbers for numbers in placed.capacities.values())
    running, other_summary = engine.executor.gradients(noisy_state(engine), placed)
    jax.tree.map(np.testing.assert_array_equal, skipping, running)
    np.testing.assert_array_equal(summary.losses, other_summary.losses)


def test_one_image_in_all_runs_its_encoder_once(count_programs):
    config, plan, _ = PLANS["an encoder of two stages, and tied embeddings"]
    engine, batch = shared_engine(plan, config), tiny_batch(config)
    batch["vision"]["segments"][:] = 0
    batch["vision"]["segments"][4, 4:] = 1
    batch["backbone"]["vision_index"][:] = -1
    batch["backbone"]["vision_index"][4, 2] = 1
    calls = count_programs(engine)
    assert_step_of_one_device(engine, batch=batch)
    numbers = {"eyes": (None, None, 0, None)}
    assert calls == expected_calls(engine, numbers, ("forward", "backward"))


@pytest.mark.layouts
def test_a_frozen_encoder_skips_too(count_programs):
    config, plan, numbers = PLANS["an encoder of two stages, and tied embeddings"]
    engine = shared_engine(plan, config, dataclasses.replace(SETTINGS, trainable=("backbone",)))
    calls = count_programs(engine)
    assert_step_of_one_device(engine, batch=sparse_batch(config))
    expected = expected_calls(engine, numbers, ("forward", "backward"))
    assert calls == {key: count for key, count in expected.items() if key[:1] == ("forward",) or key[1][0] != "eyes"}
