"""The Hopper kernels compiled for H100s: through ptxas, and what runs beside them in a program."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.h100_schedule.compilation import tensor_mesh
from mmjax.training.dry_run.targets import missing_plugin
from pallas_kernels.collective_matmul import mosaic, mosaic_kernels
from pallas_kernels.collective_matmul import mosaic_support as mosaic_limits
from pallas_kernels.collective_matmul.tiling import CollectiveTiling

pytestmark = [pytest.mark.aot, pytest.mark.skipif(bool(missing_plugin()), reason=missing_plugin())]

KERNEL = 'custom_call_target="mosaic_gpu_v2"'


def mesh_of(sizes):
    devices = np.asarray(tensor_mesh(math.prod(sizes.values())).devices)
    return Mesh(devices.reshape(tuple(sizes.values())), tuple(sizes))


def compiled(mesh, body, in_specs, out_specs, shapes):
    mapped = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, in_specs, strict=True)
    ]
    return jax.jit(mapped).lower(*arguments).compile().as_text()


def gather(mesh, axes, rows, depth, width):
    ranks = math.prod(mesh.shape[axis] for axis in axes)
    return compiled(
        mesh,
        lambda x, w: mosaic_kernels.all_gather_matmul(x, (w,), axes),
        (P(axes), P(None, axes)),
        ((P(None, None, axes),), P(None, axes)),
        ((rows * ranks, depth), (depth, width * ranks)),
    )


def scatter(mesh, axes, rows, depth, width):
    ranks = math.prod(mesh.shape[axis] for axis in axes)
    return compiled(
        mesh,
        lambda x, w: mosaic_kernels.matmul_reduce_scatter(x, w, axes),
        (P(None, None, axes), P(axes)),
        P(axes),
        ((ranks, rows, depth * ranks), (depth * ranks, width)),
    )


@pytest.mark.parametrize("kind", [gather, scatter])
@pytest.mark.parametrize(
    ("sizes", "axes", "rows", "depth", "width"),
    [
        ({"tensor": 2}, ("tensor",), 256, 256, 512),
        ({"tensor": 8}, ("tensor",), 1024, 4096, 1024),
        ({"data": 2, "tensor": 4}, ("tensor",), 1024, 4096, 1024),
        ({"data": 2, "a": 2, "b": 2}, ("a", "b"), 256, 256, 512),
        ({"tensor": 2}, ("tensor",), 256, 128, 128),
        ({"tensor": 2}, ("tensor",), 128, 128, 128),
        ({"tensor": 2}, ("tensor",), 64, 128, 256),
        ({"tensor": 2}, ("tensor",), 128, 128, 64),
        ({"tensor": 2}, ("tensor",), 64, 128, 128),
    ],
)
def test_ptxas_takes_every_tile_and_mesh_without_spilling(kind, sizes, axes, rows, depth, width, monkeypatch, capfd):
    mesh = mesh_of(sizes)
    assert mosaic_limits.unsupported_mesh_reason(mesh, axes) == ""
    assert mosaic_limits.unsupported_shape_reason(rows, depth, [width], jnp.bfloat16) == ""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTX", "1")
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    assert kind(mesh, axes, rows, depth, width).count(KERNEL) == 1
    said = "".join(capfd.readouterr())
    assert re.search(r"0 bytes spill stores, 0 bytes spill loads", said)
    ranks = math.prod(sizes[axis] for axis in axes)
    assert len(re.findall(r"red\.release\.sys", said)) == len(re.findall(r"fence\.acquire\.sys", said)) == ranks - 1
    assert len(re.findall(r"fence\.proxy\.async;", said)) == ranks - 1


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_loopback_compiles_for_one_gpu(ranks):
    alone = jax.sharding.SingleDeviceSharding(tensor_mesh(1).devices.item())

    def operand(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=alone)

    gathered = jax.jit(mosaic_kernels.loopback_all_gather_matmul).lower(
        operand(ranks, 256, 256), (operand(ranks, 256, 512),)
    )
    scattered = jax.jit(mosaic_kernels.loopback_matmul_reduce_scatter).lower(
        operand(ranks, ranks, 256, 256), operand(ranks, 256, 512)
    )
    assert all(lowered.compile().as_text().count(KERNEL) == 1 for lowered in (gathered, scattered))


def test_no_collective_runs_beside_a_kernel():
    """Of the backward that gathers x once more: whatever begins before a kernel is over before it."""
    mesh, axes = mesh_of({"data": 2, "tensor": 4}), ("tensor",)

    def body(x, w, y):
        back, (made,) = mosaic.gather_matmul_backward(x, (w,), (y,), axes, CollectiveTiling(), "native")
        return back, made[None]

    text = compiled(
        mesh,
        body,
        (P("data", "tensor"), P(None, "tensor"), P("data", None, "tensor")),
        (P("data", "tensor"), P("data", None, "tensor")),
        ((2, 4096, 2048), (2048, 4096), (2, 4096, 4096)),
    )
    assert text.count(KERNEL) == 1
    entry = text[text.index("ENTRY") :].splitlines()
    kernel = next(i for i, line in enumerate(entry) if KERNEL in line)
    begun, over = (
        [i for i, line in enumerate(entry) if re.search(rf"\b(all-gather|async)-{end}\(", line)]
        for end in ("start", "done")
    )
    assert begun and len(begun) == len(over)
    assert all(done < kernel or start > kernel for start, done in zip(begun, over, strict=True))
