"""Activation functions by the names that configurations give them, and `recomputed`, which saves inputs only.

Feed-forward layers, experts and norms compute by them.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Activations = Float[Array, "..."]

# erf(x) = x P(x²) / Q(x²) for |x| < 3.83, beyond which it is 1 in float32; the error is at most 4.2e-7. XLA and Eigen
# use the same coefficients.
_NUMERATOR = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05)
_NUMERATOR += (-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)
_DENOMINATOR = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03)
_DENOMINATOR += (-1.42647390514189e-02,)
_SATURATION = 3.832506856900711


@jax.custom_jvp
def erf(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Error function in float32.

    jax 0.12's own fails under `jax.shard_map`: its constants vary over no mesh axis.
    """
    clipped = jnp.clip(x, -_SATURATION, _SATURATION)
    square = clipped * clipped
    return clipped * _polynomial(_NUMERATOR, square) / _polynomial(_DENOMINATOR, square)


@erf.defjvp
def _erf_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (x,), (dx,) = primals, tangents
    return erf(x), 2 / math.sqrt(math.pi) * jnp.exp(-x * x) * dx


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    """Evaluates a polynomial by Horner's rule; the coefficient of the highest power comes first."""
    highest, *others = coefficients
    return functools.reduce(lambda value, coefficient: value * x + coefficient, others, highest + jnp.zeros_like(x))


def recomputed(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Wraps a function so that the backward computes it again, and only its inputs are saved.

    For functions that memory traffic limits. Of a norm autodiff would save three float32 arrays, six times the bytes
    of its input in bfloat16; XLA fuses computing them again with the operations that read them.
    """
    # Forward and backward are separate programs or bodies of loops: there is nothing to keep XLA from sharing.
    return jax.checkpoint(function, prevent_cse=False)


def gelu(x: Activations) -> Activations:
    """GELU, x Φ(x), with the exact normal distribution function Φ (arXiv 1606.08415)."""
    wide = x.astype(jnp.float32)
    return (wide * 0.5 * (1 + erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def quick_gelu(x: Activations) -> Activations:
    """CLIP's approximation of GELU, x sigmoid(1.702 x)."""
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "quick_gelu": quick_gelu,
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
}
