"""Every reason why the Hopper kernels cannot run names what is wrong."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.mesh import AbstractDevice

from pallas_kernels.collective_matmul import mosaic_kernels
from pallas_kernels.collective_matmul.mosaic_support import (
    choose_tiles,
    unsupported_mesh_reason,
    unsupported_placement_reason,
    unsupported_shape_reason,
    unsupported_traced_mesh_reason,
)

HOPPER = {
    "ids": [0, 1, 2, 3],
    "sizes": {"data": 2, "tensor": 2},
    "axes": ("tensor",),
    "processes": 1,
    "platform": "gpu",
    "capability": "9.0",
}


@pytest.mark.parametrize("axes", [("data",), ("tensor",), ("data", "tensor")])
def test_a_whole_mesh_of_hopper_gpus_is_accepted_over_any_of_its_axes(axes):
    assert unsupported_placement_reason(**HOPPER | {"axes": axes}) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ids": [4, 5, 6, 7]}, "holds the devices 4, 5, 6, 7.*devices 0 to 3"),
        ({"ids": [0, 2, 1, 3]}, "row-major order"),
        ({"sizes": {"data": 4, "tensor": 1}}, "one rank.*plain matmul"),
        ({"processes": 2}, "2 processes"),
        ({"platform": "cpu"}, "platform 'cpu'.*Hopper"),
        ({"capability": "8.0"}, "compute capability 8.0.*9.0"),
        ({"capability": "10.0"}, "compute capability 10.0"),
    ],
)
def test_an_unsupported_mesh_is_refused_with_the_reason(change, said):
    assert re.search(said, unsupported_placement_reason(**HOPPER | change))


def test_an_axis_that_the_mesh_lacks_is_named():
    with pytest.raises(ValueError, match="no axis 'model'; it has data, tensor"):
        unsupported_placement_reason(**HOPPER | {"axes": ("model",)})


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_another_dtype_is_refused_by_name(dtype):
    assert re.search(f"bfloat16, not {dtype}", unsupported_shape_reason(128, 128, [256], jnp.dtype(dtype)))


@pytest.mark.parametrize(
    ("rows", "depth", "widths", "tile"),
    [
        (1024, 4096, [1024], (128, 256)),  # rows and columns of a block
        (256, 64, [128], (256, 128)),
        (128, 64, [128, 384], (128, 128)),
        (64, 192, [256], (64, 256)),
        (64, 64, [128], (64, 128)),
        (128, 64, [64], (128, 64)),
    ],
)
def test_the_largest_tiles_that_divide_are_chosen(rows, depth, widths, tile):
    assert choose_tiles(rows, depth, widths).block == tile
    assert unsupported_shape_reason(rows, depth, widths, jnp.bfloat16) == ""


@pytest.mark.parametrize(
    ("rows", "depth", "widths"),
    [(96, 64, [128]), (128, 96, [128]), (128, 64, [96]), (64, 64, [64]), (64, 64, [128, 64])],
)
def test_sizes_that_no_tile_divides_are_refused_with_the_sizes(rows, depth, widths):
    reason = unsupported_shape_reason(rows, depth, widths, jnp.bfloat16)
    assert f"[{rows}, {depth}]" in reason and 'use backend="ring"' in reason


def test_a_mesh_of_cpus_is_refused_with_the_reason():
    whole, part = (jax.sharding.Mesh(np.array(devices), ("tensor",)) for devices in (jax.devices(), jax.devices()[4:]))
    assert "platform 'cpu'" in unsupported_mesh_reason(whole, ("tensor",))
    assert "4, 5, 6, 7" in unsupported_mesh_reason(part, ("tensor",))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("NVIDIA H100 80GB HBM3", ""),
        ("NVIDIA GH200 480GB", ""),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA B200", "B2"),
    ],
)
def test_inside_shard_map_the_device_kind_decides(kind, said):
    device = AbstractDevice(kind, 132, "gpu")
    mesh = jax.sharding.AbstractMesh((2,), ("tensor",), (jax.sharding.AxisType.Manual,), abstract_device=device)
    reason = unsupported_traced_mesh_reason(mesh, ("tensor",))
    assert said in reason and bool(reason) == bool(said)


def test_the_kernels_refuse_while_tracing():
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4])

    def trace(axes, rows=64, chunks=2, dtype=jnp.bfloat16, manual=("data", "tensor")):
        x, w = jax.ShapeDtypeStruct((chunks, rows, 64), dtype), jax.ShapeDtypeStruct((64, 128), dtype)
        everywhere = jax.sharding.PartitionSpec()
        body = jax.shard_map(
            lambda x, w: mosaic_kernels.matmul_reduce_scatter(x, w, axes),
            mesh=mesh,
            in_specs=everywhere,
            out_specs=jax.sharding.PartitionSpec(axes),
            axis_names=set(manual),
        )
        jax.eval_shape(body, x, w)

    trace(("tensor",))
    with pytest.raises(NotImplementedError, match="not float32"):
        trace(("tensor",), dtype=jnp.float32)
    with pytest.raises(NotImplementedError, match=r"\[48, 64\]"):
        trace(("tensor",), rows=48)
    with pytest.raises(NotImplementedError, match="every mesh axis manual.*data is not"):
        trace(("tensor",), manual=("tensor",))
    with pytest.raises(ValueError, match="one chunk for each of 4 ranks"):
        trace(("data", "tensor"))
