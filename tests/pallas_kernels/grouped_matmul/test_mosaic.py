"""The Hopper kernels of the grouped matmul without a GPU: lowered for CUDA, and the wgrad's in the interpreter."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractDevice, AxisType
from jax.sharding import PartitionSpec as P

from pallas_kernels.grouped_matmul import grouped_matmul, mosaic_kernels, tiled

KERNEL = "@mosaic_gpu"
H100S = jax.sharding.AbstractMesh(
    (2,), ("ranks",), (AxisType.Auto,), abstract_device=AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
)


@pytest.mark.parametrize(("inner", "outer"), [(64, 64), (128, 192), (256, 128)])
@pytest.mark.parametrize("groups", [1, 16])
def test_product_dgrad_and_wgrad_lower_for_cuda(groups, inner, outer):
    rows = 512

    def gradients(x, matrices, sizes, cotangent):
        multiply = functools.partial(grouped_matmul, group_sizes=sizes[0])
        product, pull = jax.vjp(multiply, x[0], jax.lax.pcast(matrices, "ranks", to="varying"))
        return tuple(array[None] for array in (product, *pull(cotangent[0])))

    each = P("ranks")
    body = jax.shard_map(gradients, mesh=H100S, in_specs=(each, P(), each, each), out_specs=each)
    shapes = [
        ((2, rows, inner), jnp.bfloat16),
        ((groups, inner, outer), jnp.bfloat16),
        ((2, groups), jnp.int32),
        ((2, rows, outer), jnp.bfloat16),
    ]
    traced = jax.jit(body).trace(*(jax.ShapeDtypeStruct(*shape) for shape in shapes))
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count(KERNEL) == 3


@pytest.mark.skipif(not hasattr(plgpu, "InterpretGPUParams"), reason="jax 0.10 interprets no transposed tile")
@pytest.mark.parametrize("sizes", [[130, 0, 64, 200], [1, 2, 3, 4], [0, 0, 0, 0], [512, 0, 0, 0]], ids=str)
def test_the_wgrad_s_tiles_add_up_to_it(sizes):
    random = np.random.default_rng(0)
    x, y = (jnp.asarray(random.normal(size=(512, width)), jnp.bfloat16) for width in (128, 64))
    x, y = x.at[sum(sizes) :].set(jnp.inf), y.at[sum(sizes) :].set(jnp.nan)
    given = x, y, jnp.asarray(sizes, jnp.int32)
    params = plgpu.InterpretGPUParams(detect_races=True)
    actual = mosaic_kernels.outer_product(*given, tile_rows=64, tile_columns=64, interpret=params)
    expected = np.asarray(tiled.outer_product(*given), np.float32)
    np.testing.assert_allclose(np.asarray(actual, np.float32), expected, rtol=2**-7, atol=2**-6)
