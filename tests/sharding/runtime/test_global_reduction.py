"""The reduction over all stages once a step, against sums by hand."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.runtime.global_reduction import GlobalReduction
from tests.sharding.runtime.submeshes import stage_mesh

NODES = {"vision": ((2, 3), 2, 1), "backbone": ((4, 5, 6, 7), 2, 2), "generator": ((3,), 1, 1)}


def make_reduction():
    devices = jax.devices()
    meshes = {(name, 0): stage_mesh([devices[d] for d in ids], dp, tp) for name, (ids, dp, tp) in NODES.items()}
    losses = {("vision", 0): (), ("backbone", 0): ("backbone", "backbone/balance"), ("generator", 0): ("generator",)}
    return GlobalReduction([devices[d] for d in (2, 3, 4, 5, 6, 7)], meshes, losses), meshes


def stats(meshes, squares, losses):
    """`losses` are two of the backbone's and one of the generator's."""
    node_losses = (losses[:0], losses[:2], losses[2:])
    return {
        node: jax.device_put(np.array([[square, *node_loss]], np.float32), NamedSharding(mesh, P()))
        for (node, mesh), square, node_loss in zip(meshes.items(), squares, node_losses, strict=True)
    }


def reduce(reduction, statistics, all_finite=None, max_norm=None):
    if all_finite is None:
        all_finite = reduction.initial_flag()
    return reduction.reduce(statistics, all_finite, reduction.max_norm(max_norm))


def test_every_stage_counts_once_however_many_devices_it_has():
    reduction, meshes = make_reduction()
    summary = reduce(reduction, stats(meshes, (4.0, 9.0, 3.0), (0.0, 2.5, 0.5)))
    assert reduction.stage_ids == (("vision", 0), ("backbone", 0), ("generator", 0))
    assert [name for _, name in reduction.loss_order] == ["backbone", "backbone/balance", "generator"]
    np.testing.assert_array_equal(summary.losses, np.array([0, 2.5, 0.5], np.float32))
    assert (float(summary.gradient_norm), float(summary.clip_scale), float(summary.all_finite)) == (4.0, 1.0, 1.0)
    assert len(summary.gradient_norm.sharding.device_set) == 6


@pytest.mark.parametrize(("max_norm", "scale"), [(None, 1.0), (8.0, 1.0), (1.0, 0.25)])
def test_gradients_are_scaled_down_to_the_limit_and_never_up(max_norm, scale):
    reduction, meshes = make_reduction()
    summary = reduce(reduction, stats(meshes, (4.0, 9.0, 3.0), (0.0, 0.0, 0.0)), max_norm=max_norm)
    assert float(summary.clip_scale) == pytest.approx(scale)


def test_gradients_of_zero_are_finite():
    reduction, meshes = make_reduction()
    summary = reduce(reduction, stats(meshes, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), max_norm=1.0)
    assert (float(summary.gradient_norm), float(summary.clip_scale), float(summary.all_finite)) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("statistic", ["squares", "losses"])
def test_a_stage_that_was_not_finite_is_remembered_by_all(bad, statistic):
    reduction, meshes = make_reduction()
    fine = {"squares": (1.0, 1.0, 1.0), "losses": (1.0, 1.0, 1.0)}
    broken = reduce(reduction, stats(meshes, **fine | {statistic: (1.0, 1.0, bad)}), max_norm=1.0)
    assert float(broken.all_finite) == 0
    later = reduce(reduction, stats(meshes, **fine), broken.all_finite, 1.0)
    assert float(later.all_finite) == 0
    assert float(later.gradient_norm) == pytest.approx(np.sqrt(3))
    unfinished = reduction.initial_flag(all_finite=False)
    assert float(reduce(reduction, stats(meshes, **fine), unfinished, 1.0).all_finite) == 0


def test_a_stage_sees_the_decision_on_its_own_devices_without_a_copy():
    reduction, meshes = make_reduction()
    summary = reduce(reduction, stats(meshes, (4.0, 9.0, 3.0), (0.0, 2.0, 1.0)), max_norm=1.0)
    for node, mesh in meshes.items():
        seen = reduction.on_stage(summary, node)
        assert seen.sharding == NamedSharding(mesh, P())
        whole = {shard.device: shard.data.unsafe_buffer_pointer() for shard in summary.decision.addressable_shards}
        for shard in seen.addressable_shards:
            np.testing.assert_array_equal(shard.data, [[summary.clip_scale, summary.all_finite]])
            assert shard.data.unsafe_buffer_pointer() == whole[shard.device]
        np.testing.assert_array_equal(seen, [[0.25, 1.0]])
