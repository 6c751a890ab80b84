"""Loops written out: the outermost, wherever they are, with the same results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sharding.runtime.stages.unrolling import unroll_outermost_loops

WEIGHTS = np.random.default_rng(0).standard_normal((3, 4, 4), np.float32)


def layers(weights, x):
    """Three layers, each with a loop of its own."""

    def layer(x, w):
        return lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=2)

    return lax.scan(layer, x, weights)[0]


def backward(weights, x):
    return jax.vjp(layers, weights, x)[1](x)


def nested(weights, x):
    """The loop in a program that another calls, and in what is recomputed."""
    return jax.jit(lambda x: jax.checkpoint(layers)(weights, x))(x)


@pytest.mark.parametrize("function", [layers, backward, nested])
def test_the_outermost_loops_are_written_out_and_change_nothing(function):
    unrolled = unroll_outermost_loops(function)
    x = WEIGHTS[0]
    actual, expected = unrolled(WEIGHTS, x), function(WEIGHTS, x)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for leaf, expected_leaf in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, expected_leaf, rtol=1e-6, atol=1e-6)
    assert _unrolled_iterations(jax.make_jaxpr(unrolled)(WEIGHTS, x).jaxpr) == {3}


def _unrolled_iterations(jaxpr):
    """How many iterations of each outermost loop are written out."""
    counts = set()
    for operation in jaxpr.eqns:
        if operation.primitive.name == "scan":
            counts.add(operation.params["unroll"])
        else:
            for value in operation.params.values():
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    counts |= _unrolled_iterations(inner)
    return counts
