"""The grouped matmul compiled for H100s: the kernels there, and what each implementation keeps in memory."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.h100_schedule.compilation import TENSOR, tensor_mesh
from mmjax.training.dry_run.targets import missing_plugin
from pallas_kernels.grouped_matmul import grouped_matmul

pytestmark = [pytest.mark.aot, pytest.mark.skipif(bool(missing_plugin()), reason=missing_plugin())]

RANKS, ROWS, INNER, OUTER, GROUPS, BF16 = 2, 8192, 2048, 768, 16, 2


@functools.cache
def compiled(implementation):
    """The product with both gradients, on each rank."""

    def gradients(x, matrices, sizes, cotangent):
        multiply = functools.partial(grouped_matmul, group_sizes=sizes[0], implementation=implementation)
        product, pull = jax.vjp(multiply, x[0], matrices[0])
        return tuple(array[None] for array in (product, *pull(cotangent[0])))

    each = P(TENSOR)
    body = jax.shard_map(gradients, mesh=tensor_mesh(RANKS), in_specs=each, out_specs=each)
    shapes = ((ROWS, INNER), (GROUPS, INNER, OUTER), (GROUPS,), (ROWS, OUTER))
    dtypes = (jnp.bfloat16, jnp.bfloat16, jnp.int32, jnp.bfloat16)
    sharding = NamedSharding(tensor_mesh(RANKS), each)
    arguments = (
        jax.ShapeDtypeStruct((RANKS, *shape), dtype, sharding=sharding)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    )
    return jax.jit(body).lower(*arguments).compile()


def test_hopper_kernels_are_chosen_and_need_no_memory_but_operands_and_results():
    program = compiled(None)
    assert program.as_text().count('custom_call_target="mosaic_gpu_v2"') == 3
    assert program.memory_analysis().temp_size_in_bytes < 2**20


def test_tiles_need_the_padded_operands_and_one_sum_in_float32():
    most = (3 * ROWS * (INNER + OUTER) * BF16 + 2 * INNER * OUTER * 4) * 1.1
    assert compiled("tiled").memory_analysis().temp_size_in_bytes < most


def test_xla_s_own_multiplies_with_every_group_s_matrix_unless_its_flag_is_set():
    """Rows of every group, masked: why it is not the default."""
    assert compiled("ragged_dot").memory_analysis().temp_size_in_bytes > GROUPS * ROWS * OUTER * BF16
