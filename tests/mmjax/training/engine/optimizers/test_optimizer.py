"""The update: AdamW on the whole tree, clipped, sharded, and skipped on the devices where anything was not finite."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from mmjax.training.engine.stage_layouts import trees_by_module
from mmjax.training.profiling.op_times import measure_op_times, seconds_by_kind
from tests.mmjax.training.engines import (
    SETTINGS,
    TIED_EMBEDDINGS,
    TWO_UNITS,
    gradients_and_summary,
    noisy_state,
    shared_engine,
)
from tests.tiny_model import tiny_batch


def on_host(tree):
    return jax.tree.map(np.array, tree)


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_updates_are_those_of_plain_adamw_on_the_whole_tree():
    """Given the same gradients, clipped by their global norm; matrices of a layer decay, its vectors do not."""
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS)
    chosen = SETTINGS.optimizer
    plain = optax.chain(
        optax.clip_by_global_norm(chosen.max_grad_norm),
        optax.adamw(
            optax.warmup_cosine_decay_schedule(
                0.0, chosen.learning_rate, 1, SETTINGS.steps, chosen.learning_rate * 0.05
            ),
            b1=0.9,
            b2=0.98,
            weight_decay=chosen.weight_decay,
            mask=lambda tree: jax.tree.map(lambda leaf: leaf.ndim >= 2, tree),
        ),
    )
    state = noisy_state(engine)
    tree = jax.tree.map(jnp.asarray, on_host(trees_by_module(state.master_weights)))
    with jax.numpy_dtype_promotion("standard"):
        moments = plain.init(tree)
        update = jax.jit(plain.update)
    for step in range(3):
        batch = tiny_batch(TIED_EMBEDDINGS, seed=step)
        gradients, decision = gradients_and_summary(engine, batch, state)
        assert float(decision.clip_scale) == pytest.approx(
            min(1, chosen.max_grad_norm / float(decision.gradient_norm)), rel=1e-5
        )
        with jax.numpy_dtype_promotion("standard"):
            changes, moments = update(jax.tree.map(jnp.asarray, on_host(gradients)), moments, tree)
        tree = optax.apply_updates(tree, changes)
        state, _ = engine.executor.step(state, engine.place_batch(batch, step))
    assert float(decision.clip_scale) < 1  # the clip was at work
    actual = trees_by_module(state.master_weights)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), actual, tree)


@pytest.mark.parametrize(("max_norm", "scale"), [(0.0, 1.0), (5.0, 0.5)])
def test_a_limit_of_zero_turns_clipping_off(max_norm, scale):
    limited = dataclasses.replace(SETTINGS.optimizer, max_grad_norm=max_norm)
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS, dataclasses.replace(SETTINGS, optimizer=limited))
    stats = {
        node: jax.device_put(
            np.array([[square, *losses]], np.float32), NamedSharding(engine.stages[node].mesh, PartitionSpec())
        )
        for node, square, losses in zip(
            engine.executor.global_reduction.stage_ids, (36, 0, 64), ((), (), (0,)), strict=True
        )
    }
    reduction, limit = engine.executor.global_reduction, engine.executor.hyperparameters.max_norm
    decision = reduction.reduce(stats, reduction.initial_flag(), limit)
    assert (float(decision.gradient_norm), float(decision.clip_scale)) == (10, scale)


def test_masters_and_moments_are_float32_shares_over_the_data_axis():
    with jax.numpy_dtype_promotion("standard"):  # jax's own attention asks which of two precisions is wider
        engine = shared_engine(TWO_UNITS, dataclasses.replace(TIED_EMBEDDINGS, dtype="bfloat16"))
    state = engine.initial_state()
    node = ("vision", 0)  # dp 2, tp 1
    (adam, *_) = state.optimizer_state[node]["vision/blocks"]["001"]
    kernel = ("mlp", "up", "kernel")
    for tree in (state.master_weights[node]["vision/blocks"]["001"], adam.mu, adam.nu):
        leaf = tree[kernel[0]][kernel[1]][kernel[2]]
        assert leaf.dtype == jnp.float32 and leaf.shape == (8, 12)
        assert [shard.data.shape for shard in leaf.addressable_shards] == [(4, 12)] * 2
        assert len({str(shard.index) for shard in leaf.addressable_shards}) == 2
    for trees in (state.master_weights[node], state.optimizer_state[node]):
        leaves = [leaf for leaf in jax.tree.leaves(trees) if leaf.ndim]
        whole = sum(leaf.nbytes for leaf in leaves)
        held = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
        assert held < 0.55 * whole  # vectors that tensor ranks divide have no dimension left for data
    weights = engine.executor.stages[node].gather(state.master_weights[node])
    assert {leaf.dtype for leaf in jax.tree.leaves(weights)} == {jnp.dtype(jnp.bfloat16)}


def test_state_keeps_its_shardings_over_updates():
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS)
    state = noisy_state(engine)
    places = jax.tree.map(lambda leaf: leaf.sharding, (state.master_weights, state.optimizer_state))
    state, _ = engine.executor.step(state, engine.place_batch(tiny_batch(TIED_EMBEDDINGS), 0))
    jax.tree.map(
        lambda leaf, place: leaf.sharding.is_equivalent_to(place, leaf.ndim) or pytest.fail(f"{leaf.sharding}"),
        (state.master_weights, state.optimizer_state),
        places,
    )


def test_masters_and_moments_are_donated():
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS)
    state = noisy_state(engine)
    engine.executor.step(state, engine.place_batch(tiny_batch(TIED_EMBEDDINGS), 0))
    assert all(
        leaf.is_deleted() for leaf in jax.tree.leaves((state.master_weights, state.optimizer_state)) if leaf.ndim
    )


@pytest.mark.parametrize("module", ["vision", "backbone"])
def test_a_step_that_is_not_finite_changes_nothing_nor_does_any_later_one(module):
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS)
    state = noisy_state(engine)
    oks = []
    for step in range(5):
        batch = tiny_batch(TIED_EMBEDDINGS, seed=step)
        if step == 2:
            batch[module]["patches" if module == "vision" else "weights"][5, 2] = np.nan
            before = on_host((state.master_weights, state.optimizer_state))
        state, decision = engine.executor.step(state, engine.place_batch(batch, step))
        oks.append(float(decision.all_finite))
        if step == 1:
            moved = on_host(state.master_weights)
    assert oks == [1, 1, 0, 0, 0]
    same(on_host((state.master_weights, state.optimizer_state)), before)
    assert any(
        np.any(one != two)
        for one, two in zip(*map(jax.tree.leaves, (moved, on_host(noisy_state(engine).master_weights))), strict=True)
    )


def test_a_step_waits_neither_for_the_norm_nor_for_clipping():
    """All of a step is dispatched while what it depends on is still being computed, on a device of no stage."""
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS)
    placed = engine.place_batch(tiny_batch(TIED_EMBEDDINGS), 0)
    state, _ = engine.executor.step(noisy_state(engine), placed)  # compiles
    jax.block_until_ready(state.master_weights)
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 6000, lambda _, y: jnp.sin(y @ y), x)[0, 0] * 0 + 1)
    late = slow(jax.device_put(jnp.ones((128, 128)), jax.devices()[7]))
    shards = [shard.data for shard in state.all_finite.addressable_shards]
    shards[-1] = jax.device_put(late, shards[-1].device)
    state.all_finite = jax.make_array_from_single_device_arrays((), state.all_finite.sharding, shards)
    state, decision = engine.executor.step(state, placed)
    assert not late.is_ready() and not decision.all_finite.is_ready()
    assert float(decision.all_finite) == 1


def test_a_step_reads_no_value_on_the_host(monkeypatch):
    """On CPU the transfer guard reports only arrays that come from the host, so reads are caught by their methods.

    Hops use the transport of several processes: on CPU, `jax.device_put` between shardings whose shards differ copies
    through the host itself, which the guard of newer versions of jax reports.
    """

    def refuse(array, *arguments, **options):
        raise AssertionError("a value is read on the host")

    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS, dataclasses.replace(SETTINGS, transport="ppermute"))
    first, second = (engine.place_batch(tiny_batch(TIED_EMBEDDINGS), step) for step in range(2))
    state, _ = engine.executor.step(noisy_state(engine), first)  # compiles
    for method in ("__array__", "__float__", "__int__", "__bool__", "__index__", "item", "tolist"):
        monkeypatch.setattr(type(state.all_finite), method, refuse)
    with jax.transfer_guard("disallow"):
        state, summary = engine.executor.step(state, second)
        for read in (float, bool, np.asarray):
            with pytest.raises(AssertionError, match="read on the host"):
                read(summary.all_finite)
        with pytest.raises(jax.errors.JaxRuntimeError, match="host-to-device"):
            jnp.add(summary.clip_scale, np.float32(1))


def test_every_op_of_a_step_is_timed_once():
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS)
    seconds = measure_op_times(engine, [tiny_batch(TIED_EMBEDDINGS, seed=0)], 1)
    assert set(seconds) == set(engine.executor.training_schedule.ops)
    assert all(duration >= 0 for duration in seconds.values())
    sums = seconds_by_kind(seconds)
    assert sums["forward"] > 0 and sums["backward"] > 0 and sum(sums.values()) == pytest.approx(sum(seconds.values()))
