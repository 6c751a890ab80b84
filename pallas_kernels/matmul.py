"""The matmul of dense layers, and the two products of its backward, in the form that compilers have fast code for.

JAX derives the wgrad of `jnp.matmul(x, w)` as (cotangent^T x)^T. Where the weight is as wide as it is high or wider,
XLA's CPU compiler makes a copy of cotangent^T, removes the outer transpose by exchanging the operands, and is left with
a product over the first dimension of x and the last of the copy, for which its runtime has only slow code: up to twice
the processor time of the forward. Written as x^T cotangent it copies x^T and runs the forward's code. A GPU's matmul
takes operands in either order. (x flattened to rows, with JAX's own wgrad, is as fast in float32 and slower in
bfloat16, but the flattened x would be saved beside the x that others save, once for each layer that reads it.) Dense
layers of models use this matmul; the collective matmuls use the products of its backward.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import CustomVJPPrimal

from pallas_kernels.varying import make_varying, varying_axes


def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    """`[..., d] @ [d, f]`, as `jnp.matmul`, with its wgrad in the form above; only reverse-mode differentiation."""
    # JAX would do this inside of `_matmul`; here it also sums the gradients of what is the same on all ranks.
    x, w = make_varying(x, tuple(sorted(varying_axes(w)))), make_varying(w, tuple(sorted(varying_axes(x))))
    return _matmul(x, w)


def input_gradient(cotangent: jax.Array, w: jax.Array, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """The dgrad of x @ w, `[..., d]`: the cotangent `[..., f]` times the transpose of w `[d, f]`."""
    return jnp.einsum("...f,df->...d", cotangent, w, preferred_element_type=dtype)


def weight_gradient(x: jax.Array, cotangent: jax.Array, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """The wgrad of x @ w, `[d, f]`, given x `[..., d]` and the cotangent `[..., f]`."""
    leading = tuple(range(x.ndim - 1))
    return lax.dot_general(x, cotangent, ((leading, leading), ((), ())), preferred_element_type=dtype)


@jax.custom_vjp
def _matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.matmul(x, w)


def _forward(x: CustomVJPPrimal, w: CustomVJPPrimal) -> tuple[jax.Array, tuple]:
    """Saves an operand only if the other one is differentiated: nothing of x for a frozen weight."""
    return jnp.matmul(x.value, w.value), (x.value if w.perturbed else None, w.value if x.perturbed else None)


def _backward(saved: tuple, cotangent: jax.Array) -> tuple:
    x, w = saved
    dgrad = None if w is None else input_gradient(cotangent, w, w.dtype)
    return dgrad, None if x is None else weight_gradient(x, cotangent, x.dtype)


_matmul.defvjp(_forward, _backward, symbolic_zeros=True)
