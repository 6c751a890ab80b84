"""Split matmuls under `jax.shard_map` against the plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pallas_kernels.collective_matmul import split_matmul


def operands():
    random = np.random.default_rng(0)
    return tuple(
        jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((3, 5, 8), (8, 16), (16, 4), (3, 5, 4))
    )


def plain(x, up, down):
    return jnp.tanh(x @ up) @ down


def split(devices):
    mesh = jax.make_mesh((devices,), ("model",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices])

    def body(x, up, down):
        inner = jnp.tanh(split_matmul(x, up, split="columns", axes=("model",)))
        return split_matmul(inner, down, split="rows", axes=("model",))

    specs = (P(), P(None, "model"), P("model", None))
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P()))


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_columns_then_rows_are_the_plain_matmuls_with_their_gradients(devices):
    *arguments, seed = operands()
    expected, expected_vjp = jax.vjp(plain, *arguments)
    value, vjp = jax.vjp(split(devices), *arguments)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
    for gradient, wanted in zip(vjp(seed), expected_vjp(seed), strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-5)


def test_columns_stay_split_and_cost_no_collective():
    x, up, *_ = operands()
    mesh = jax.make_mesh((2,), ("model",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])

    def body(x, w):
        return split_matmul(x, w, split="columns", axes=("model",))

    mapped = jax.shard_map(body, mesh=mesh, in_specs=(P(), P(None, "model")), out_specs=P(None, None, "model"))
    np.testing.assert_allclose(jax.jit(mapped)(x, up), x @ up, rtol=1e-5, atol=1e-5)
    assert "psum" not in str(jax.make_jaxpr(mapped)(x, up))


def test_without_axes_every_split_is_the_plain_contraction():
    x, up, *_ = operands()
    for how in (None, "columns", "rows"):
        np.testing.assert_array_equal(split_matmul(x, up, split=how, axes=()), x @ up)


def test_the_contraction_may_be_another():
    x, up, *_ = operands()

    def twice(x, w):
        return 2 * jnp.matmul(x, w)

    np.testing.assert_array_equal(split_matmul(x, up, split=None, axes=(), contract=twice), 2 * (x @ up))


def test_an_unknown_split_is_refused_by_name():
    x, up, *_ = operands()
    with pytest.raises(ValueError, match="'diagonal'.*columns.*rows"):
        split_matmul(x, up, split="diagonal", axes=())
