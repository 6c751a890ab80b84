"""FP8 operands: their values against ml_dtypes, what a scale may change, and the products of a matmul with them."""

import functools
import logging

import hypothesis
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies
from jax.sharding import AbstractDevice, AxisType

from pallas_kernels.fallbacks import warn_once
from pallas_kernels.fp8 import dense as values_of
from pallas_kernels.fp8 import gradient_operand, operand, quantize, use_unbounded_exponents
from pallas_kernels.matmul import matmul

FORMATS = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 2.0**-6), "e5m2": (ml_dtypes.float8_e5m2, 57344.0, 2.0**-14)}
"""By kind: the format, its largest number and its smallest normal one."""
by_kind = pytest.mark.parametrize("kind", FORMATS)

compiled = jax.jit(quantize, static_argnums=1)


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def dense(x, kind):
    return np.asarray(compiled(x, kind).dense, np.float64)


@by_kind
@hypothesis.given(
    magnitude=strategies.integers(-100, 100),
    mantissa=strategies.floats(1.0, 2.0, exclude_max=True, width=32),
    seed=strategies.integers(0, 2**32 - 1),
)
def test_the_largest_magnitude_is_one_of_the_largest_numbers_and_others_are_rounded_to_the_nearest(
    kind, magnitude, mantissa, seed
):
    x = np.random.default_rng(seed).uniform(-1, 1, 64).astype(np.float32) * np.float32(2.0**magnitude)
    x[7] = np.float32(mantissa * 2.0**magnitude)
    values, scale = compiled(x, kind)
    dtype, largest, _ = FORMATS[kind]
    assert np.frexp(scale)[0] == 0.5, "a power of two"
    assert largest / 2 <= np.abs(np.asarray(values, np.float64)).max() <= largest
    np.testing.assert_array_equal(values, (x / np.asarray(scale)).astype(dtype))


@by_kind
@hypothesis.given(shift=strategies.integers(0, 12), seed=strategies.integers(0, 2**32 - 1))
def test_values_are_rounded_alike_by_any_scale_that_leaves_them_normal(kind, shift, seed):
    """A shard whose largest value is smaller has a smaller scale; a chunk of the array is such a shard."""
    random = np.random.default_rng(seed)
    shard = jnp.asarray(random.normal(size=64) * 2.0 ** random.uniform(-12, 0, 64), jnp.bfloat16)
    whole = jnp.concatenate([shard, jnp.full((1,), 2.0**shift, jnp.bfloat16) * jnp.max(jnp.abs(shard))])
    alone, within = dense(shard, kind), dense(whole, kind)[:-1]
    largest = float(jnp.max(jnp.abs(whole)))
    _, largest_number, smallest_normal = FORMATS[kind]
    is_normal = np.abs(np.asarray(shard, np.float64)) >= 2 * smallest_normal / largest_number * largest
    np.testing.assert_array_equal(alone[is_normal], within[is_normal])
    bound = {"e4m3": 2.0**-17, "e5m2": 2.0**-31}[kind] * largest
    assert np.abs(alone - within).max() <= bound


@by_kind
def test_with_unbounded_exponents_all_but_subnormal_values_are_the_same(kind):
    x = normal(4096)
    with use_unbounded_exponents():
        unbounded = (operand if kind == "e4m3" else gradient_operand)(x, "fp8")
    _, largest_number, smallest_normal = FORMATS[kind]
    is_normal = np.abs(x) >= 2 * smallest_normal / largest_number * np.abs(x).max()
    np.testing.assert_array_equal(dense(x, kind)[is_normal], np.asarray(unbounded)[is_normal])
    tiny = 2.0**-60 * x
    with use_unbounded_exponents():
        np.testing.assert_array_equal(values_of(operand(tiny, "fp8")), 2.0**-60 * values_of(operand(x, "fp8")))


@by_kind
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_zeros_stay_zeros_and_the_smallest_numbers_do_not_overflow(kind, dtype):
    np.testing.assert_array_equal(dense(jnp.zeros(4, dtype), kind), 0.0)
    smallest = jnp.asarray([jnp.finfo(dtype).tiny, 0.0], dtype)
    assert np.isfinite(dense(smallest, kind)).all()


@by_kind
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so_and_so_do_the_gradients(kind, value):
    x = normal(4).at[2].set(value)
    assert not np.isfinite(dense(x, kind)[2])
    w, cotangent = normal(4, 4, seed=1), normal(3, 4, seed=2).at[1, 1].set(value)
    _, pull = jax.vjp(functools.partial(matmul, matmul_format="fp8"), normal(3, 4), w)
    dgrad, wgrad = pull(cotangent)
    assert not np.isfinite(dgrad[1]).any()
    assert not np.isfinite(wgrad[:, 1]).any()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_are_those_of_rounded_operands_summed_in_float32(dtype):
    x, w, cotangent = normal(2, 16, 32, dtype=dtype), normal(32, 48, seed=1, dtype=dtype), normal(2, 16, 48, seed=2)
    cotangent = (1e-6 * cotangent).astype(dtype)
    y, pull = jax.vjp(functools.partial(matmul, matmul_format="fp8"), x, w)
    rounded_x, rounded_w, rounded_cotangent = dense(x, "e4m3"), dense(w, "e4m3"), dense(cotangent, "e5m2")
    wgrad = rounded_x.reshape(-1, 32).T @ rounded_cotangent.reshape(-1, 48)
    expected = (rounded_x @ rounded_w, rounded_cotangent @ rounded_w.T, wgrad)
    for actual, wanted in zip((y, *pull(cotangent)), expected, strict=True):
        assert actual.dtype == dtype
        tolerance = 4 * np.abs(wanted).max() * float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(np.asarray(actual, np.float64), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("kind", "warns"),
    [
        ("NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA A800 80GB PCIe", True),
        ("NVIDIA A10G", True),
        ("Tesla V100-SXM2-16GB", True),
        ("NVIDIA RTX A6000", True),
        ("NVIDIA L40S", False),
        ("NVIDIA RTX 6000 Ada Generation", False),
        ("NVIDIA H100 80GB HBM3", False),
        ("NVIDIA B200", False),
    ],
)
def test_gpus_that_multiply_no_fp8_are_named(kind, warns, caplog):
    warn_once.cache_clear()
    device = AbstractDevice(kind, 132, "gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh), caplog.at_level(logging.WARNING):
        jax.eval_shape(lambda x: values_of(operand(x, "fp8")), jax.ShapeDtypeStruct((4,), jnp.bfloat16))
    assert [kind in message for message in caplog.messages] == ([True] if warns else [])
