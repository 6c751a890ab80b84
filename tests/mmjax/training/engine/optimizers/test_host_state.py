"""Master weights and moments in the host's memory: the same bits as on the devices, before and after a checkpoint."""

import contextlib
import dataclasses

import jax
import numpy as np
import pytest

from configs.optimizer import AdamW, Muon
from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.engine.compilation import compile_step
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.placement import check_host_memory
from sharding.plans.plan_error import PlanError
from sharding.runtime.stages.host_memory import HOST_MEMORY
from tests.mmjax.training.engines import SETTINGS, TIED_EMBEDDINGS, TWO_UNITS, noisy_state
from tests.tiny_model import tiny_batch


def engine_with(algorithm, state_memory) -> Engine:
    optimizer = dataclasses.replace(SETTINGS.optimizer, algorithm=algorithm, state_memory=state_memory)
    return Engine(
        TIED_EMBEDDINGS, TWO_UNITS, tiny_batch(TIED_EMBEDDINGS), dataclasses.replace(SETTINGS, optimizer=optimizer)
    )


def steps(engine, state, numbers):
    norms = []
    for number in numbers:
        batch = engine.place_batch(tiny_batch(TIED_EMBEDDINGS, seed=number), number)
        state, summary = engine.executor.step(state, batch)
        norms.append(float(summary.gradient_norm))
    return state, norms


def arrays(state):
    return jax.tree.map(np.asarray, (state.master_weights, state.optimizer_state))


def kinds(tree):
    """Kinds of memory of all leaves but step counts and the coefficients of Muon's polynomial, which are small."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {leaf.sharding.memory_kind for path, leaf in leaves if leaf.ndim and "ns_coeffs" not in str(path)}


@pytest.mark.parametrize("algorithm", [AdamW(), AdamW(moment_dtype="bfloat16"), Muon()], ids=repr)
def test_steps_are_those_of_state_on_the_devices_to_the_bit(algorithm, tmp_path):
    on_device, in_host = (engine_with(algorithm, memory) for memory in ("device", "host"))
    compile_step(in_host, lambda done, total: None)
    states = []
    for engine in (on_device, in_host):
        before = noisy_state(engine)
        old = jax.tree.leaves(before.master_weights)
        state, norms = steps(engine, before, (0, 1))
        assert all(leaf.is_deleted() for leaf in old)  # donated
        states.append((arrays(state), norms))
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert kinds(state.master_weights) == kinds(state.optimizer_state) == {HOST_MEMORY}

    with contextlib.closing(CheckpointManager(tmp_path, TIED_EMBEDDINGS)) as checkpoints:
        checkpoints.save(2, in_host, state, {})
        restored, elsewhere = (checkpoints.restore(engine)[0] for engine in (in_host, on_device))
    jax.tree.map(np.testing.assert_array_equal, arrays(restored), states[0][0])
    assert kinds(restored.optimizer_state) == {HOST_MEMORY}
    assert kinds(elsewhere.master_weights) == {"device"}
    after = [arrays(steps(engine, of, (2,))[0]) for engine, of in ((in_host, restored), (on_device, elsewhere))]
    jax.tree.map(np.testing.assert_array_equal, *after)


def test_layers_are_loaded_one_after_another():
    """Each after the layer before it is updated; for the compute weights, each after the weight before it is cast."""
    engine = engine_with(AdamW(), "host")
    state = noisy_state(engine)
    for stage_id, masters in state.master_weights.items():
        stage = engine.executor.stages[stage_id]
        layers = sum(len(by_layer) for by_layer in masters.values())
        arguments = masters, state.optimizer_state[stage_id], gradients_like(engine, stage_id)
        decision = engine.executor.global_reduction.abstract_decision(stage_id)
        hyperparameters = engine.executor.hyperparameters.by_stage[stage_id]
        assert stage.update is not None
        lowered = stage.update.lower(*arguments, decision, hyperparameters).as_text()
        assert lowered.count("optimization_barrier") == layers - 1
        weights = len(jax.tree.leaves(masters))
        assert stage.gather.lower(masters).as_text().count("optimization_barrier") == weights - 1


def gradients_like(engine, stage_id):
    return engine.stages[stage_id].master_weights.abstract_gradients()


def test_a_step_that_is_not_finite_leaves_the_state_in_the_hosts_memory():
    engine = engine_with(AdamW(), "host")
    state, expected = noisy_state(engine), arrays(noisy_state(engine))
    batch = tiny_batch(TIED_EMBEDDINGS)
    batch["vision"]["patches"][0] = np.nan
    state, summary = engine.executor.step(state, engine.place_batch(batch, 0))
    assert not float(summary.all_finite)
    jax.tree.map(np.testing.assert_array_equal, arrays(state), expected)


def test_a_device_without_host_memory_is_refused():
    class Device:
        device_kind = "some chip"

        def addressable_memories(self):
            return [dataclasses.make_dataclass("Memory", [("kind", str)])("device")]

    message = (
        r"unit vision: master weights of stage 0 are to be offloaded, .* OptimizerConfig.state_memory to \"device\"$"
    )
    with pytest.raises(PlanError, match=message):
        check_host_memory(TWO_UNITS, [Device()] * 6, "host")
