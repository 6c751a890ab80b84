"""A vjp function is split in one program and restored in another."""

import jax
import jax.numpy as jnp
import numpy as np

from sharding.runtime.stages.residuals import split_vjp


def layer(weights, x):
    return jnp.tanh(x @ weights["up"]) @ weights["down"]


def operands():
    random = np.random.default_rng(0)
    shapes = {"up": (4, 6), "down": (6, 3)}
    weights = {name: jnp.asarray(random.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    return weights, jnp.asarray(random.normal(size=(5, 4)), jnp.float32)


def test_forward_and_backward_programs_compute_what_one_vjp_does():
    weights, x = operands()
    traced = {}

    @jax.jit
    def forward(weights, x):
        y, vjp = jax.vjp(layer, weights, x)
        residuals, traced["structure"] = split_vjp(vjp, jax.tree.leaves((weights, x)))
        return y, residuals

    @jax.jit
    def backward(weights, x, residuals, seed):
        return traced["structure"].restore(residuals, jax.tree.leaves((weights, x)))(seed)

    y, residuals = forward(weights, x)
    expected, vjp = jax.vjp(layer, weights, x)
    seed = jnp.ones_like(expected)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5),
        backward(weights, x, residuals, seed),
        vjp(seed),
    )
    # tanh(x up) for the second matmul, and what tanh's derivative needs: neither a weight nor the input.
    assert {leaf.shape for leaf in residuals} == {(5, 6)}


def test_values_are_recognised_as_available_by_identity_not_by_equality():
    weights, x = operands()
    saved_counts = {}

    def trace(weights, x):
        _, vjp = jax.vjp(layer, weights, x)
        saved_counts["same objects"] = len(split_vjp(vjp, jax.tree.leaves((weights, x)))[0])
        saved_counts["equal values"] = len(split_vjp(vjp, [leaf + 0 for leaf in jax.tree.leaves((weights, x))])[0])
        return x

    jax.eval_shape(trace, weights, x)
    assert saved_counts["equal values"] == saved_counts["same objects"] + 3
