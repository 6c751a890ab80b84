"""The loss over chunks of the vocabulary compiled for H100s: its memory beside that of whole logits."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.h100_schedule.compilation import tensor_mesh
from mmjax.models.layers.chunked_logits import chunked_logits
from mmjax.training.dry_run.targets import missing_plugin
from sharding.axes import Axes

pytestmark = [pytest.mark.aot, pytest.mark.skipif(bool(missing_plugin()), reason=missing_plugin())]

POSITIONS, WIDTH, VOCABULARY = 8192, 4096, 151936


def temporary_bytes(loss):
    """Of the loss and its gradients by hidden states and table, in bfloat16."""
    sharding = NamedSharding(tensor_mesh(1), P())
    shapes = (((1, POSITIONS, WIDTH), jnp.bfloat16), ((VOCABULARY, WIDTH), jnp.bfloat16), ((1, POSITIONS), jnp.int32))
    arguments = [jax.ShapeDtypeStruct(*shape, sharding=sharding) for shape in shapes]
    compiled = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*arguments).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def in_chunks(hidden, table, targets):
    sums = chunked_logits(hidden, table, VOCABULARY, Axes()).sums(targets)
    return jnp.sum(jnp.log(sums.exp_sum) + sums.largest - sums.target_logits)


def whole(hidden, table, targets):
    logits = jnp.einsum("rsd,vd->rsv", hidden, table, preferred_element_type=jnp.float32)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - target_logits)


def test_the_head_of_qwen3_8b_needs_less_than_0_4_gb():
    assert temporary_bytes(in_chunks) < 0.4e9


def test_whole_logits_and_their_gradient_need_twice_5_gb():
    assert temporary_bytes(whole) > 2 * 4 * POSITIONS * VOCABULARY * 0.99
