"""The matmul of dense layers, and the two products of its backward, in the form that compilers have fast code for.

JAX derives the wgrad of `jnp.matmul(x, w)` as (cotangent^T x)^T. Where the weight is as wide as it is high or wider,
XLA's CPU compiler makes a copy of cotangent^T, removes the outer transpose by exchanging the operands, and is left with
a product over the first dimension of x and the last of the copy, for which its runtime has only slow code: up to twice
the processor time of the forward. Written as x^T cotangent it copies x^T and runs the forward's code. A GPU's matmul
takes operands in either order. (x flattened to rows, with JAX's own wgrad, is as fast in float32 and slower in
bfloat16, but the flattened x would be saved beside the x that others save, once for each layer that reads it.) Dense
layers of models use this matmul; the collective matmuls use the products of its backward.
"""

import functools

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal

from pallas_kernels.fp8 import MatmulFormat, Operand, contract, gradient_operand, operand
from pallas_kernels.varying import equally_varying


def matmul(x: jax.Array, w: jax.Array, matmul_format: MatmulFormat = "native") -> jax.Array:
    """`[..., d] @ [d, f]`, as `jnp.matmul`, with its wgrad in the form above; only reverse-mode differentiation.

    With `matmul_format` "fp8" the operands of all three products are rounded to FP8 (`pallas_kernels.fp8`).
    """
    # JAX would do this inside of `_matmul`; here it also sums the gradients of what is the same on all ranks.
    x, w = equally_varying(x, w)
    return _matmul(x, w, matmul_format)


def product(x: Operand, w: Operand, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """`[..., d] @ [d, f]`, the forward."""
    return contract(x, w, ((x.ndim - 1,), (0,)), dtype)


def input_gradient(cotangent: Operand, w: Operand, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """The dgrad of x @ w, `[..., d]`: the cotangent `[..., f]` times the transpose of w `[d, f]`."""
    return contract(cotangent, w, ((cotangent.ndim - 1,), (1,)), dtype)


def weight_gradient(x: Operand, cotangent: Operand, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """The wgrad of x @ w, `[d, f]`, given x `[..., d]` and the cotangent `[..., f]`."""
    leading = tuple(range(x.ndim - 1))
    return contract(x, cotangent, (leading, leading), dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _matmul(x: jax.Array, w: jax.Array, matmul_format: MatmulFormat) -> jax.Array:
    return product(operand(x, matmul_format), operand(w, matmul_format), x.dtype)


def _forward(x: CustomVJPPrimal, w: CustomVJPPrimal, matmul_format: MatmulFormat) -> tuple[jax.Array, tuple]:
    """Saves an operand only if the other one is differentiated: nothing of x for a frozen weight.

    Operands are saved as they are, not in FP8: others save the same x.
    """
    saved = x.value if w.perturbed else None, w.value if x.perturbed else None
    return product(operand(x.value, matmul_format), operand(w.value, matmul_format), x.value.dtype), saved


def _backward(matmul_format: MatmulFormat, saved: tuple, cotangent: jax.Array) -> tuple:
    x, w = saved
    gradient = gradient_operand(cotangent, matmul_format)
    dgrad = None if w is None else input_gradient(gradient, operand(w, matmul_format), w.dtype)
    return dgrad, None if x is None else weight_gradient(operand(x, matmul_format), gradient, x.dtype)


_matmul.defvjp(_forward, _backward, symbolic_zeros=True)
