"""Activations by the names that configurations give them."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Activations = Float[Array, "..."]

# Error function of x = x P(x²) / Q(x²) on |x| < 3.83, beyond which float32 has 1: within 4.2e-7, as in XLA and Eigen.
_ABOVE = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05)
_ABOVE += (-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)
_BELOW = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03)
_BELOW += (-1.42647390514189e-02,)
_FARTHEST = 3.832506856900711


@jax.custom_jvp
def erf(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The error function in float32. jax 0.12's own fails under `jax.shard_map`: its constants vary over no axis."""
    near = jnp.clip(x, -_FARTHEST, _FARTHEST)
    square = near * near
    return near * _polynomial(_ABOVE, square) / _polynomial(_BELOW, square)


@erf.defjvp
def _erf_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (dx,) = primals, tangents
    return erf(x), 2 / math.sqrt(math.pi) * jnp.exp(-x * x) * dx


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    """By Horner's rule, the highest power first."""
    first, *rest = coefficients
    return functools.reduce(lambda value, coefficient: value * x + coefficient, rest, first + jnp.zeros_like(x))


def gelu(x: Activations) -> Activations:
    """x Φ(x), exactly (arXiv 1606.08415)."""
    wide = x.astype(jnp.float32)
    return (wide * 0.5 * (1 + erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def quick_gelu(x: Activations) -> Activations:
    """x sigmoid(1.702 x), CLIP's approximation of GELU."""
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "quick_gelu": quick_gelu,
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
}
