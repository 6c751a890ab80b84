"""The mosaic backend around its kernels, which XLA stands in for, and where it falls back to the ring."""

import logging
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from pallas_kernels.collective_matmul import mosaic, mosaic_kernels, reference
from pallas_kernels.collective_matmul import mosaic_support as mosaic_limits
from pallas_kernels.collective_matmul.tiling import CollectiveTiling
from pallas_kernels.fallbacks import warn_once
from pallas_kernels.matmul import product

AXES = ("a", "b")
RANKS, BATCH, SHARE, DEPTH, WIDTHS = 4, 2, 32, 64, (128, 256)


def all_gather_matmul(x, weights, axes):
    gathered = lax.all_gather(x, axes)
    return tuple(product(gathered, w).astype(x.dtype) for w in weights), gathered


def matmul_reduce_scatter(x, w, axes):
    return lax.psum_scatter(product(x, w), axes, scatter_dimension=0).astype(x.dtype)


@pytest.fixture
def plain_kernels(monkeypatch):
    """Functions with the contracts of `mosaic_kernels`, as if the devices were Hopper GPUs."""
    plain = types.SimpleNamespace(all_gather_matmul=all_gather_matmul, matmul_reduce_scatter=matmul_reduce_scatter)
    assert all(hasattr(mosaic_kernels, name) for name in vars(plain))
    monkeypatch.setattr(mosaic, "kernels", lambda: plain)
    monkeypatch.setattr(mosaic_limits, "unsupported_traced_mesh_reason", lambda mesh, axes: "")


def signs(*shape, seed):
    """Minus one, zero and one: every sum of their products here is exact in bfloat16."""
    return jnp.asarray(np.random.default_rng(seed).integers(-1, 2, shape), jnp.bfloat16)


SHARES = P(None, AXES)  # of the positions
COLUMNS = P(None, AXES)
OPERANDS = {
    "x": (signs(BATCH, SHARE * RANKS, DEPTH, seed=0), SHARES),
    "wide x": (signs(BATCH, SHARE * RANKS, DEPTH * RANKS, seed=1), P(None, None, AXES)),
    "weights": (tuple(signs(DEPTH, f * RANKS, seed=2 + f) for f in WIDTHS), COLUMNS),
    "gradients": (tuple(signs(BATCH, SHARE * RANKS, f * RANKS, seed=3 + f) for f in WIDTHS), P(None, None, AXES)),
    "w": (signs(DEPTH * RANKS, WIDTHS[0], seed=4), P(AXES)),
    "gradient": (signs(BATCH, SHARE * RANKS, WIDTHS[0], seed=5), SHARES),
}


def call(module, name, operands, matmul_format="native"):
    """A backend's function over four ranks on two axes, a data axis beside them."""
    sizes = {"data": 2, "a": 2, "b": 2}
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), (jax.sharding.AxisType.Auto,) * 3)
    outputs = {
        "gather_matmul": P(None, None, AXES),
        "gather_matmul_backward": (SHARES, COLUMNS),
        "matmul_scatter": SHARES,
        "matmul_scatter_backward": (P(None, None, AXES), P(AXES)),
    }
    arrays, specs = zip(*(OPERANDS[operand] for operand in operands), strict=True)
    body = jax.shard_map(
        lambda *arrays: getattr(module, name)(*arrays, AXES, CollectiveTiling(), matmul_format),
        mesh=mesh,
        in_specs=specs,
        out_specs=outputs[name],
    )
    return jax.jit(body)(*arrays)


CALLS = [
    ("gather_matmul", ("x", "weights")),
    ("gather_matmul_backward", ("x", "weights", "gradients")),
    ("matmul_scatter", ("wide x", "w")),
    ("matmul_scatter_backward", ("wide x", "w", "gradient")),
]


@pytest.mark.parametrize(("name", "operands"), CALLS)
def test_it_computes_what_the_reference_does_with_kernels_that_keep_their_contract(name, operands, plain_kernels):
    actual, wanted = (call(module, name, operands) for module in (mosaic, reference))
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("name", "operands"), CALLS)
def test_without_a_gpu_it_uses_the_ring_and_logs_why_once(name, operands, caplog):
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        actual = [call(mosaic, name, operands) for _ in range(2)][-1]
    expected = call(reference, name, operands)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    (message,) = caplog.messages
    assert "uses the ring instead of a mosaic kernel: the devices are of platform 'cpu'" in message


def test_products_in_fp8_come_from_the_ring(plain_kernels, caplog):
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        products = call(mosaic, "gather_matmul", ("x", "weights"), "fp8")
    for one, other in zip(products, call(reference, "gather_matmul", ("x", "weights"), "fp8"), strict=True):
        np.testing.assert_array_equal(one, other)
    (message,) = caplog.messages
    assert "the kernels multiply no FP8" in message
