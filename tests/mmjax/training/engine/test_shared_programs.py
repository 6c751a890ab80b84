"""A sweep over hyperparameters: what it compiles, and that its steps are those of engines made alone."""

import dataclasses

import jax
import numpy as np
import pytest

from configs.common.errors import UserError
from configs.optimizer import (
    AdamW,
    ConstantRate,
    CosineDecay,
    InverseSquareRootDecay,
    LinearDecay,
    Lion,
    OptimizerConfig,
    PartOptimizer,
)
from mmjax.training.engine.compilation import compile_step
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.engine.shared_programs import engine_with_shared_programs
from tests.mmjax.training.engine.test_compilation import compilations
from tests.mmjax.training.engines import TIED_EMBEDDINGS, TWO_UNITS, noisy_parameters, noisy_state
from tests.tiny_model import tiny_batch

BATCH = tiny_batch(TIED_EMBEDDINGS)
OWN = ("vision_projector", PartOptimizer(learning_rate=3e-3, weight_decay=0.0, schedule=ConstantRate()))
SWEEP = (
    EngineSettings(OptimizerConfig(learning_rate=1e-2, warmup_steps=1), steps=20),
    EngineSettings(OptimizerConfig(learning_rate=3e-3, schedule=LinearDecay(0.1), weight_decay=0.2), steps=90, seed=4),
    EngineSettings(OptimizerConfig(schedule=InverseSquareRootDecay(3.0), max_grad_norm=0.0, parts=(OWN,)), steps=7),
    EngineSettings(OptimizerConfig(max_grad_norm=0.1, warmup_steps=0, schedule=CosineDecay(0.5)), steps=20),
)


def swept(settings: EngineSettings) -> Engine:
    return engine_with_shared_programs(TIED_EMBEDDINGS, TWO_UNITS, BATCH, settings)


def state_after_updates(engine: Engine, count: int = 3) -> list[np.ndarray]:
    """Master weights and moments after some updates by gradients of their own size."""
    state = noisy_state(engine)
    for _ in range(count):
        gradients = jax.tree.map(lambda leaf: leaf + 0, state.master_weights)
        state, _ = engine.executor.update(state, gradients)
    return [np.array(leaf) for leaf in jax.tree.leaves((state.master_weights, state.optimizer_state))]


def test_a_sweep_over_rates_schedules_decay_clipping_steps_and_seeds_compiles_as_often_as_one_run():
    noisy_parameters(TIED_EMBEDDINGS)
    jax.clear_caches()
    with compilations() as compiled:
        compile_step(swept(SWEEP[0]), lambda done, total: None)
        state_after_updates(swept(SWEEP[0]))
    assert sum("update" in name for name in compiled.elements()) == 3, "one for each stage"
    with compilations() as compiled:
        finals = [state_after_updates(swept(settings)) for settings in SWEEP]
        for settings in SWEEP:
            compile_step(swept(settings), lambda done, total: None)
    assert not compiled
    assert len({final[0].tobytes() for final in finals}) == len(SWEEP), "each has its own numbers"


@pytest.mark.layouts
@pytest.mark.parametrize("settings", SWEEP[1:3])
def test_updates_of_a_sweep_are_those_of_an_engine_made_alone(settings):
    state_after_updates(swept(SWEEP[0]))
    alone = Engine(TIED_EMBEDDINGS, TWO_UNITS, BATCH, settings)
    for one, other in zip(state_after_updates(swept(settings)), state_after_updates(alone), strict=True):
        np.testing.assert_array_equal(one, other)


def test_engines_of_a_sweep_have_their_own_settings_and_schedules():
    first, second = swept(SWEEP[0]), swept(SWEEP[1])
    assert (first.settings, second.settings) == (SWEEP[0], SWEEP[1])
    assert first.executor.stages is second.executor.stages and first.executor.op_log is not second.executor.op_log
    order = second.executor.training_schedule
    first.set_schedule(first.schedule)
    assert first.executor.training_schedule is not order is second.executor.training_schedule
    seeds = [engine.place_batch(BATCH, 2).stages[("vision", 0), 0].seed_and_step for engine in (first, second)]
    np.testing.assert_array_equal(seeds, [[0, 2], [4, 2]])


@pytest.mark.parametrize(
    "other",
    [
        EngineSettings(OptimizerConfig(algorithm=Lion())),
        EngineSettings(OptimizerConfig(algorithm=AdamW(beta2=0.9))),
        EngineSettings(trainable=("projectors",)),
    ],
    ids=["another algorithm", "another beta", "fewer parts"],
)
def test_what_programs_are_made_of_is_not_shared(other):
    assert swept(other).executor.stages is not swept(SWEEP[0]).executor.stages
    with pytest.raises(ValueError, match="do not serve for"):
        swept(SWEEP[0]).with_settings(other)


def test_a_part_that_does_not_exist_is_refused_though_programs_are_there():
    swept(SWEEP[0])
    wrong = OptimizerConfig(parts=(("visoin", PartOptimizer(learning_rate=1.0)),))
    with pytest.raises(UserError, match="visoin"):
        swept(dataclasses.replace(SWEEP[0], optimizer=wrong))
