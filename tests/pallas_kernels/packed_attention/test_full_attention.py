"""Attention to every key: its forms and their gradients against the definition, and the choice among them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.packed_attention import (
    api,
    full_attention,
    use_attention_implementation,
    use_attention_of_gpus,
)


def operands(keys=40):
    random = np.random.default_rng(0)
    shapes = ((2, 24, 4, 8), (2, keys, 2, 8), (2, keys, 2, 8), (2, 24, 4, 8))
    return [jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes]


def definition(query, key, value, scale):
    key, value = (jnp.repeat(x, query.shape[2] // key.shape[2], axis=2) for x in (key, value))
    scores = jnp.einsum("bshe,bthe->bhst", query, key) * scale
    return jnp.einsum("bhst,bthu->bshu", jax.nn.softmax(scores, axis=-1), value)


@pytest.mark.parametrize("scale", [None, 0.25])
@pytest.mark.parametrize("most_bytes", [2**30, 0], ids=["dense", "blocked"])
def test_every_form_is_the_definition_with_its_gradients(most_bytes, scale, monkeypatch):
    monkeypatch.setattr(api, "MAX_SCORE_BYTES", most_bytes)
    *given, cotangent = operands()
    with jax.default_matmul_precision("highest"):
        actual, pull = jax.vjp(lambda *x: full_attention(*x, scale=scale), *given)
        expected, pull_expected = jax.vjp(lambda *x: definition(*x, scale or 8**-0.5), *given)
        gradients = zip(pull(cotangent), pull_expected(cotangent), strict=True)
        for found, wanted in ((actual, expected), *gradients):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_large_scores_are_not_kept(monkeypatch):
    """4,096 pixels of 4 maps with 8 heads: the scores of all pairs take 2 GB."""
    shape = jax.ShapeDtypeStruct((4, 4096, 8, 16), jnp.float32)

    def loss(query, key, value):
        return jnp.sum(full_attention(query, key, value))

    memory = jax.jit(jax.grad(loss, (0, 1, 2))).lower(shape, shape, shape).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.2e9


def test_where_cudnn_does_not_take_the_arrays_another_form_does():
    *given, _ = operands()  # float32
    with use_attention_of_gpus():
        actual = full_attention(*given)
    np.testing.assert_allclose(actual, definition(*given, 8**-0.5), rtol=1e-4, atol=1e-5)
    with use_attention_implementation("cudnn"), pytest.raises(NotImplementedError, match="not float32"):
        full_attention(*given)


def test_values_may_be_wider_than_keys():
    query, key, value, _ = operands()
    wide = jnp.concatenate([value, 2 * value], axis=-1)
    expected = definition(query, key, wide, 8**-0.5)
    np.testing.assert_allclose(full_attention(query, key, wide), expected, rtol=1e-4, atol=1e-5)
