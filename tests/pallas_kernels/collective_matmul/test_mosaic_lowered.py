"""Every configuration of the Hopper kernels lowers for CUDA, without a GPU: meshes of CPU devices 0 to n - 1."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from pallas_kernels.collective_matmul import mosaic_kernels
from tests.tiers import first_in_default

MESHES = [
    ({"tensor": 2}, ("tensor",)),
    ({"data": 2, "tensor": 2}, ("tensor",)),
    ({"data": 2, "tensor": 2}, ("data",)),
    ({"data": 2, "a": 2, "b": 2}, ("a", "b")),
    ({"data": 2, "a": 2, "b": 2}, ("b", "data")),
    ({"tensor": 8}, ("tensor",)),
]
over_meshes = pytest.mark.parametrize(("sizes", "axes"), first_in_default(MESHES))


def mesh_of(sizes, first=0):
    devices = jax.devices()[first : first + math.prod(sizes.values())]
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), (jax.sharding.AxisType.Auto,) * len(sizes), devices=devices
    )


def bfloat16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def lowered(function, *arguments):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))


def gather(mesh, axes, rows=64, depth=128, widths=(128,)):
    """The lowered all-gather matmul, and what it returns."""
    ranks = math.prod(mesh.shape[axis] for axis in axes)
    body = jax.shard_map(
        lambda x, weights: mosaic_kernels.all_gather_matmul(x, weights, axes),
        mesh=mesh,
        in_specs=(P(axes), P(None, axes)),
        out_specs=(P(None, None, axes), P(None, axes)),
    )
    weights = tuple(bfloat16(depth, width * ranks) for width in widths)
    low = lowered(body, bfloat16(rows * ranks, depth), weights)
    return low.as_text(), low.out_info


def scatter(mesh, axes, rows=64, depth=128, width=128):
    ranks = math.prod(mesh.shape[axis] for axis in axes)
    body = jax.shard_map(
        lambda x, w: mosaic_kernels.matmul_reduce_scatter(x, w, axes),
        mesh=mesh,
        in_specs=(P(None, None, axes), P(axes)),
        out_specs=P(axes),
    )
    low = lowered(body, bfloat16(ranks, rows, depth * ranks), bfloat16(depth * ranks, width))
    return low.as_text(), low.out_info


@over_meshes
def test_the_all_gather_matmul_lowers(sizes, axes):
    ranks = math.prod(sizes[axis] for axis in axes)
    text, (products, gathered) = gather(mesh_of(sizes), axes)
    assert text.count("mosaic_gpu_v2") == 1 and "xla_replica_ids" in text
    assert [product.shape for product in products] == [(ranks, 64, 128 * ranks)]
    assert gathered.shape == (ranks, 64 * ranks, 128)


@over_meshes
def test_the_matmul_reduce_scatter_lowers(sizes, axes):
    text, result = scatter(mesh_of(sizes), axes)
    assert text.count("mosaic_gpu_v2") == 1 and "xla_replica_ids" in text
    assert result.shape == (64 * math.prod(sizes[axis] for axis in axes), 128)


@pytest.mark.parametrize(
    ("rows", "depth", "widths"), first_in_default([(128, 256, (256, 512)), (128, 64, (64,)), (64, 192, (256,))])
)
def test_other_tiles_and_several_weights_lower(rows, depth, widths):
    mesh = mesh_of({"tensor": 2})
    _, (products, _) = gather(mesh, ("tensor",), rows, depth, widths)
    assert [product.shape for product in products] == [(2, rows, 2 * width) for width in widths]
    assert scatter(mesh, ("tensor",), rows, depth, widths[0])[1].shape == (2 * rows, widths[0])


@pytest.mark.parametrize("ranks", first_in_default([2, 4, 8]))
def test_the_loopback_lowers_for_one_gpu(ranks):
    low = lowered(mosaic_kernels.loopback_all_gather_matmul, bfloat16(ranks, 64, 64), (bfloat16(ranks, 64, 128),))
    assert "xla_replica_ids" not in low.as_text()
    assert [leaf.shape for leaf in jax.tree.leaves(low.out_info)] == [(ranks, ranks, 64, 128), (ranks, ranks, 64, 64)]
    low = lowered(
        mosaic_kernels.loopback_matmul_reduce_scatter, bfloat16(ranks, ranks, 64, 64), bfloat16(ranks, 64, 128)
    )
    assert "xla_replica_ids" not in low.as_text() and low.out_info.shape == (ranks, 64, 128)


def test_part_of_the_devices_does_not_lower():
    with pytest.raises(NotImplementedError, match="row-major device ids"):
        gather(mesh_of({"tensor": 2}, first=4), ("tensor",))
