"""Attention of generators compiled for H100s: cuDNN's, which keeps no scores."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.h100_schedule.compilation import tensor_mesh
from mmjax.training.dry_run.compiled_program import attention_of_gpus
from mmjax.training.dry_run.targets import missing_plugin
from pallas_kernels.packed_attention import full_attention

pytestmark = [pytest.mark.aot, pytest.mark.skipif(bool(missing_plugin()), reason=missing_plugin())]

ITEMS, PIXELS, HEADS, WIDTH = 7, 16384, 5, 64  # the largest maps of Stable Diffusion 2.1 at 1,024 x 1,024 pixels


def test_the_scores_of_large_maps_are_not_kept():
    sharding = NamedSharding(tensor_mesh(1), P())
    shape = jax.ShapeDtypeStruct((ITEMS, PIXELS, HEADS, WIDTH), jnp.bfloat16, sharding=sharding)

    def loss(query, key, value):
        return jnp.sum(full_attention(query, key, value).astype(jnp.float32))

    with attention_of_gpus():
        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(shape, shape, shape).compile()
    scores = ITEMS * HEADS * PIXELS**2 * 2
    assert "cudnn" in compiled.as_text().lower()
    assert compiled.memory_analysis().temp_size_in_bytes < scores / 20
