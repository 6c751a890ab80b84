"""Moments in bfloat16: unbiased rounding that no layout changes, and moments that small steps still move."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from configs.optimizer import SGD, AdamW, Lion, Muon, OptimizerConfig
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.optimizers.hyperparameters import make_hyperparameters
from mmjax.training.engine.optimizers.layer_optimizer import LayerOptimizer
from mmjax.training.engine.optimizers.moments import round_stochastically
from mmjax.training.engine.stage_layouts import trees_by_module
from tests.mmjax.training.engines import (
    SETTINGS,
    TIED_EMBEDDINGS,
    TWO_UNITS,
    noisy_parameters,
    noisy_state,
    shared_engine,
    single_unit_plan,
)

ULP = 2.0**-7  # of bfloat16 at 1


@functools.cache
def rounded(value, seeds):
    """A value in many elements, rounded by each of some seeds: `[seeds, elements]` in float32."""
    values = jnp.full((64, 64), value, jnp.float32)
    rounds = jax.jit(jax.vmap(lambda seed: round_stochastically(values, seed, jnp.uint32(7))))
    return np.asarray(rounds(jnp.arange(seeds, dtype=jnp.uint32)), np.float32).reshape(seeds, -1)


@pytest.mark.parametrize("share", [0.125, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_goes_to_its_neighbours_as_often_as_it_is_near_them(share, sign):
    found = rounded(sign * (1 + share * ULP), 64)
    assert {*np.unique(found)} == {sign * 1.0, sign * (1 + ULP)}
    away = np.abs(found) > 1
    deviation = (share * (1 - share)) ** 0.5
    assert abs(away.mean() - share) < 5 * deviation / found.size**0.5
    # Neither the seeds nor the elements go together.
    assert np.abs(away.mean(axis=1) - share).max() < 5 * deviation / found.shape[1] ** 0.5
    assert np.abs(away.mean(axis=0) - share).max() < 5 * deviation / found.shape[0] ** 0.5


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 2.0**-100])
def test_values_that_bfloat16_has_stay(value):
    assert {*np.unique(rounded(value, 8))} == {np.float32(value)}


def test_the_second_moment_follows_gradients_that_shrink():
    """Rounded to the nearest, its steps of a thousandth of it would all be lost."""
    config = OptimizerConfig(algorithm=AdamW(beta2=0.999, moment_dtype="bfloat16"))
    hyperparameters, optimizer = make_hyperparameters(config, 10_000), LayerOptimizer(config.algorithm)
    layer = {"kernel": jnp.zeros((32, 32))}
    gradients = {"kernel": jnp.full((32, 32), 0.01)}

    def step(state, _):
        return optimizer.update(gradients, state, layer, hyperparameters, "m/p/000")[1], None

    state = jax.tree.map(lambda leaf: jnp.ones_like(leaf), optimizer.init(layer))
    state, _ = jax.jit(lambda state: jax.lax.scan(step, state, length=2000))(state)
    expected = 1e-4 + (1 - 1e-4) * 0.999**2000
    second = np.asarray(state[0].nu["kernel"], np.float32)
    assert state[0].nu["kernel"].dtype == jnp.bfloat16
    assert abs(second.mean() / expected - 1) < 0.01
    assert second.std() / expected < 0.1
    nearest = jnp.bfloat16(1.0)
    assert jnp.bfloat16(np.float32(nearest) * 0.999 + 1e-7) == nearest


@pytest.mark.parametrize("algorithm", [AdamW(), Lion(), SGD(), Muon()], ids=lambda algorithm: type(algorithm).__name__)
def test_moments_take_half_the_bytes_and_updates_nearly_stay(algorithm):
    random = np.random.default_rng(0)

    def drawn():
        return {"kernel": jnp.asarray(random.standard_normal((64, 32), np.float32)), "scale": jnp.ones(32)}

    layer, *given = (drawn() for _ in range(4))
    hyperparameters = make_hyperparameters(OptimizerConfig(algorithm=algorithm), 10)
    found = {}
    for dtype in ("float32", "bfloat16"):
        optimizer = LayerOptimizer(dataclasses.replace(algorithm, moment_dtype=dtype))
        state = optimizer.init(layer)
        for gradients in given:
            changes, state = optimizer.update(gradients, state, layer, hyperparameters, "m/p/000")
        found[dtype] = changes, sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.ndim)
    (whole, whole_bytes), (half, half_bytes) = found["float32"], found["bfloat16"]
    coefficients = jax.tree.leaves(LayerOptimizer(algorithm).init({"none": jnp.zeros(())}))
    constant = sum(leaf.nbytes for leaf in coefficients if leaf.ndim)  # Muon's polynomial
    assert half_bytes - constant == (whole_bytes - constant) / 2
    error = optax.tree.norm(jax.tree.map(jnp.subtract, half, whole)) / optax.tree.norm(whole)
    assert error < (0.2 if isinstance(algorithm, Lion) else 0.02)  # Lion's signs of sums near 0 turn


def test_layouts_round_every_element_alike():
    """The same gradients, on two units of data and tensor ranks and on one device: the same bits in all moments."""
    optimizer = dataclasses.replace(SETTINGS.optimizer, algorithm=AdamW(moment_dtype="bfloat16"))
    settings = dataclasses.replace(SETTINGS, optimizer=optimizer)
    random = np.random.default_rng(0)
    gradients = jax.tree.map(
        lambda leaf: random.standard_normal(leaf.shape).astype(np.float32), noisy_parameters(TIED_EMBEDDINGS)
    )
    states = []
    for plan in (TWO_UNITS, single_unit_plan(TIED_EMBEDDINGS, dp=1, tp=1)):
        engine = shared_engine(plan, TIED_EMBEDDINGS, settings)
        states.append(trees_by_module(updated(engine, gradients, 2)))
    moments = jax.tree.map(np.asarray, states)
    assert {leaf.dtype for leaf in jax.tree.leaves(moments[0]) if leaf.ndim} == {np.dtype(jnp.bfloat16)}
    jax.tree.map(np.testing.assert_array_equal, *moments)


def updated(engine: Engine, gradients, steps: int):
    """The optimizer state by stage after some updates with the same gradients."""
    state, result = noisy_state(engine), {}
    for stage_id, stage in engine.stages.items():
        masters, moments = state.master_weights[stage_id], state.optimizer_state[stage_id]
        placed = {
            key: {
                layer: jax.tree.map(jax.device_put, of_layer(gradients, key, layer), sharding)
                for layer, sharding in layers.items()
            }
            for key, layers in stage.master_weights.shardings.items()
        }
        decision = jax.device_put(jnp.ones((1, 2)), NamedSharding(stage.mesh, PartitionSpec()))
        update = engine.executor.stages[stage_id].update
        assert update is not None
        for _ in range(steps):
            masters, moments = update(
                masters, moments, placed, decision, engine.executor.hyperparameters.by_stage[stage_id]
            )
        result[stage_id] = moments
    return result


def of_layer(tree, key: str, layer: str):
    """A layer of a tree by module and piece, given a key of a stage."""
    module, piece = key.split("/")[:2]
    return tree[module][piece][layer]
