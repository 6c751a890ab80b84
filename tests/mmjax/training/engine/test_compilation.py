"""Programs compiled ahead: how many they are, and that a step and an evaluation then compile nothing more."""

import collections
import contextlib

import jax
import numpy as np
import pytest

from mmjax.training.engine.compilation import compile_evaluation, compile_step
from mmjax.training.engine.engine import Engine
from sharding.runtime import communication_check
from sharding.runtime.communication_check import check_communication
from tests.mmjax.training.engine.test_capacities import PLANS, sparse_batch
from tests.mmjax.training.engines import SETTINGS, STEP, TIED_EMBEDDINGS, TWO_UNITS
from tests.tiny_model import tiny_batch

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def compilations():
    """Counts the programs that XLA compiles, by name."""
    names: collections.Counter[str] = collections.Counter()

    def listen(event, seconds, fun_name="", **_):
        if event == COMPILED:
            names[fun_name] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


RESHARDS = {"jit(reshard)": 2}
"""Of the hops of `TWO_UNITS`: activations of the encoder are sharded anew before they go to the backbone, and back."""


def test_after_compile_step_only_the_addition_of_tied_gradients_and_hops_are_compiled():
    jax.clear_caches()  # a test before may have compiled the same addition
    batch = tiny_batch(TIED_EMBEDDINGS)
    engine = Engine(TIED_EMBEDDINGS, TWO_UNITS, batch, SETTINGS)
    reports = []
    with compilations() as compiled:
        compile_step(engine, lambda done, total: reports.append((done, total)))
    # Each of 3 stages: forward, backward, 2 of zeros, gather, reduce, loss_and_norm, update, optimizer_init.
    assert sum(compiled.values()) == 3 * 9 + 1, f"and the global reduction: {compiled}"
    assert reports == [(done, 28) for done in range(29)]
    with compilations() as compiled:
        state, summary = engine.executor.step(engine.initial_state(), engine.place_batch(batch, STEP))
        state, summary = engine.executor.step(state, engine.place_batch(batch, STEP + 1))
    assert compiled == {"jit(add)": 1, **RESHARDS}
    assert np.isfinite(float(summary.gradient_norm))

    with compilations() as compiled:
        compile_evaluation(engine, lambda done, total: reports.append((done, total)))
    assert sum(compiled.values()) == 3, "evaluate of 3 stages; gather and zero losses are compiled already"
    assert reports[29:] == [(done, 9) for done in range(10)]
    with compilations() as compiled:
        engine.executor.evaluate(engine.executor.compute_weights(state), engine.place_batch(batch, STEP))
    assert not compiled


@pytest.mark.layouts
def test_programs_of_all_capacities_are_compiled_ahead_and_their_hops_tried():
    config, plan, _ = PLANS["an encoder of two stages, and tied embeddings"]
    engine, batch = Engine(config, plan, tiny_batch(config), SETTINGS), sparse_batch(config)
    with compilations() as compiled:
        compile_step(engine, lambda done, total: None)
        compile_evaluation(engine, lambda done, total: None)
    # As above for 4 stages, with forward, backward and evaluate of 2 of them once more; evaluate of all.
    assert sum(compiled.values()) == 4 * 9 + 1 + 2 * 3 + 4, compiled
    check_communication(engine.executor)
    with compilations() as compiled:
        state, _ = engine.executor.step(engine.initial_state(), engine.place_batch(batch, STEP))
        engine.executor.evaluate(engine.executor.compute_weights(state), engine.place_batch(batch, STEP))
    assert sum(compiled.values()) <= 1, f"the addition of tied gradients: {compiled}"


def test_the_communication_check_compiles_one_sum_for_each_axis_with_ranks_of_each_mesh():
    engine = Engine(TIED_EMBEDDINGS, TWO_UNITS, tiny_batch(TIED_EMBEDDINGS), SETTINGS)
    meshes = {stage.meshes.all_pipeline_replicas for stage in engine.executor.stages.values()}
    sums = sum(size > 1 for mesh in meshes for size in mesh.shape.values())
    assert sums > 1
    communication_check._sum_program.cache_clear()
    with compilations() as compiled:
        check_communication(engine.executor)
    assert compiled.items() >= RESHARDS.items()
    assert sum(compiled.values()) == sums + 1 + sum(RESHARDS.values()), "and the global reduction"
