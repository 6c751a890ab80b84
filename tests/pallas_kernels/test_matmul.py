"""The dense layers' matmul: its gradients, what it saves, and what XLA's CPU compiler makes of its wgrad."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pallas_kernels.matmul import matmul
from tests.tiers import first_in_default

pytestmark = pytest.mark.usefixtures("compiled_as_users_do")

ROWS, POSITIONS, INPUTS, OUTPUTS = 2, 128, 64, 256


def operands(*leading, dtype=jnp.float32):
    """x, w and the cotangent of their product."""
    shapes = ((*leading, INPUTS), (INPUTS, OUTPUTS), (*leading, OUTPUTS))
    keys = jax.random.split(jax.random.key(0), 3)
    return tuple(jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True))


def product_and_gradients(x, w, cotangent, function=matmul):
    y, vjp = jax.vjp(function, x, w)
    return y, *vjp(cotangent)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "leading", first_in_default(map(pytest.param, [(), (POSITIONS,), (1, POSITIONS), (ROWS, POSITIONS)]))
)
def test_product_and_gradients_are_those_of_numpy_in_the_dtype_of_the_operands(leading, dtype):
    x, w, cotangent = operands(*leading, dtype=dtype)
    wide_x, wide_w, wide_cotangent = (np.asarray(array, np.float64) for array in (x, w, cotangent))
    wgrad = wide_x.reshape(-1, INPUTS).T @ wide_cotangent.reshape(-1, OUTPUTS)
    expected = (wide_x @ wide_w, wide_cotangent @ wide_w.T, wgrad)
    for actual, wanted in zip(jax.jit(product_and_gradients)(x, w, cotangent), expected, strict=True):
        assert actual.dtype == dtype
        tolerance = 16 * np.abs(wanted).max() * jnp.finfo(dtype).eps
        np.testing.assert_allclose(np.asarray(actual, np.float64), wanted, rtol=0, atol=tolerance)


def test_an_operand_is_saved_only_for_the_gradient_of_the_other_one():
    x, w, _ = operands(ROWS, POSITIONS)
    saved = {
        "both": jax.vjp(matmul, x, w)[1],
        "frozen weight": jax.vjp(lambda x: matmul(x, w), x)[1],
        "frozen input": jax.vjp(lambda w: matmul(x, w), w)[1],
    }
    shapes = {name: sorted(leaf.shape for leaf in jax.tree.leaves(vjp)) for name, vjp in saved.items()}
    assert shapes == {
        "both": sorted((x.shape, w.shape)),
        "frozen weight": [w.shape],
        "frozen input": [x.shape],
    }


def test_recomputation_and_an_unused_product_give_the_same_gradients():
    x, w, _ = operands(ROWS, POSITIONS)
    square = w[:, :INPUTS] / INPUTS**0.5

    def loss(multiply, w):
        def layer(x, _):
            return multiply(x, w) + x, multiply(x, 2 * w)

        return jnp.sum(jnp.sin(jax.lax.scan(jax.checkpoint(layer), x, None, length=3)[0]))

    actual, expected = (jax.jit(jax.grad(loss, argnums=1), static_argnums=0)(f, square) for f in (matmul, jnp.matmul))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_what_all_ranks_share_is_summed_over_them():
    x, w, cotangent = operands(ROWS, POSITIONS)
    mesh = jax.make_mesh((2, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4])
    specs = (P("data"), P(None, "model"), P("data", None, "model"))
    step = jax.shard_map(product_and_gradients, mesh=mesh, in_specs=specs, out_specs=(specs[2], *specs[:2]))
    for actual, expected in zip(
        jax.jit(step)(x, w, cotangent), product_and_gradients(x, w, cotangent, jnp.matmul), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_wgrad_is_compiled_for_a_cpu_as_the_forward_is(rows, dtype):
    x, w, cotangent = operands(rows, POSITIONS, dtype=dtype)
    program = jax.jit(lambda *operands: product_and_gradients(*operands)[2]).lower(x, w, cotangent).compile().as_text()
    copied = re.findall(r"= \w+\[([\d,]+)\]\S* copy\(", program)
    assert copied == [f"{INPUTS},{rows},{POSITIONS}"], "the transpose of x, and nothing of the cotangent's size"
    products = re.findall(
        r"= \w+\[([\d,]+)\]\S* dot\(.*?, lhs_contracting_dims=(\S+), rhs_contracting_dims=([{}\d]+)", program
    )
    assert products == [(f"{INPUTS},{OUTPUTS}", "{1}", "{0}")], "the forward's form"
