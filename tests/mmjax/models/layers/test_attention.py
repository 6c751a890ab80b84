"""Properties of rotary positions, and attention against its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from configs.attention.rope import rotary_frequencies
from mmjax.models.layers.attention import Attention
from mmjax.models.layers.positions import apply_rotary, rotary_cos_sin
from pallas_kernels.packed_attention import make_segment_mask
from sharding.axes import Axes


def test_rotary_dot_products_depend_on_the_distance_alone():
    random = np.random.default_rng(0)
    q, k = (jnp.asarray(random.normal(size=(1, 1, 2, 8)), jnp.float32) for _ in range(2))

    def product(at, other):
        turned = (
            apply_rotary(x, rotary_cos_sin(jnp.array([[place]]), rotary_frequencies(8, 100.0)))
            for x, place in ((q, at), (k, other))
        )
        return np.einsum("rshe,rshe->h", *turned)

    np.testing.assert_allclose(product(9, 4), product(14, 9), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(product(3, 3), np.einsum("rshe,rshe->h", q, k), rtol=1e-4, atol=1e-5)
    assert np.max(np.abs(product(9, 4) - product(9, 5))) > 1e-2


def test_rotary_pairs_are_half_a_head_apart():
    x = jnp.zeros((1, 1, 1, 4)).at[..., 0].set(1.0)
    turned = apply_rotary(x, rotary_cos_sin(jnp.array([[1]]), rotary_frequencies(4, 100.0)))
    np.testing.assert_allclose(turned[0, 0, 0], [np.cos(1), 0, np.sin(1), 0], atol=1e-6)


def kernels(random, width, kv_width):
    shapes = {"query": (width, width), "key": (width, kv_width), "value": (width, kv_width), "output": (width, width)}
    return {name: jnp.asarray(random.normal(size=shape) / 4, jnp.float32) for name, shape in shapes.items()}


def attention(weights, axes=None, **options):
    module = Attention(8, 4, kv_heads=2)
    for name, kernel in weights.items():
        getattr(module, name).kernel.set_value(kernel)
    return lambda x, **more: module(x, axes or Axes(), **options, **more)


def test_grouped_query_attention_equals_its_definition():
    random = np.random.default_rng(0)
    weights = kernels(random, 8, 4)
    x = jnp.asarray(random.normal(size=(2, 5, 8)), jnp.float32)
    packing = make_segment_mask(jnp.array([[1, 1, 1, 2, 2]] * 2), causal=True)
    same = np.array([1, 1, 1, 2, 2])[:, None] == np.array([1, 1, 1, 2, 2])[None, :]
    mask = np.tril(same)[None]
    q, k, v = ((x @ weights[name]).reshape(2, 5, -1, 2) for name in ("query", "key", "value"))
    expected = np.zeros((2, 5, 4, 2), np.float32)
    for head in range(4):
        scores = np.einsum("rse,rte->rst", q[:, :, head], k[:, :, head // 2]) / np.sqrt(2)
        shares = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
        expected[:, :, head] = np.einsum("rst,rte->rse", shares, v[:, :, head // 2])
    actual = attention(weights)(x, mask=packing)
    np.testing.assert_allclose(actual, expected.reshape(2, 5, 8) @ weights["output"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["self", "cross"])
def test_split_heads_give_the_same_attention(kind):
    random = np.random.default_rng(0)
    weights = kernels(random, 8, 4)
    x = jnp.asarray(random.normal(size=(2, 5, 8)), jnp.float32)
    context = None if kind == "self" else jnp.asarray(random.normal(size=(2, 3, 8)), jnp.float32)
    mesh = jax.make_mesh((2,), ("model",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    specs = dict.fromkeys(weights, P(None, "model")) | {"output": P("model", None)}

    def body(weights, x):
        return attention(weights, Axes(tensor=("model",)))(x, context=context)

    split = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(specs, P()), out_specs=P()))(weights, x)
    np.testing.assert_allclose(split, attention(weights)(x, context=context), rtol=1e-4, atol=1e-5)
