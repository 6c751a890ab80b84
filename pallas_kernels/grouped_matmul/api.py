"""The grouped matmul as callers use it; it chooses the implementation, and differentiates it.

The mixture of experts calls `grouped_matmul`.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import CustomVJPPrimal

from pallas_kernels.fallbacks import warn_once
from pallas_kernels.fp8 import MatmulFormat, dense, gradient_operand, operand
from pallas_kernels.grouped_matmul import mosaic, ragged_dot, tiled
from pallas_kernels.target_device import target_device
from pallas_kernels.varying import equally_varying

ImplementationName = Literal["mosaic", "ragged_dot", "tiled"]


class Implementation(NamedTuple):
    """An implementation of the grouped matmul, of its dgrad and of its wgrad.

    Attributes:
        product: See `tiled.product`.
        outer_product: See `tiled.outer_product`.
        unsupported_reason: Why it can't multiply given rows and matrices on the device that the program is traced for,
            or would do more arithmetic than the groups have; "" where it can.
    """

    product: Callable[..., jax.Array]
    outer_product: Callable[..., jax.Array]
    unsupported_reason: Callable[[jax.Array, jax.Array], str]


IMPLEMENTATIONS: dict[ImplementationName, Implementation] = {
    "mosaic": Implementation(mosaic.product, mosaic.outer_product, mosaic.unsupported_reason),
    "ragged_dot": Implementation(ragged_dot.product, ragged_dot.outer_product, ragged_dot.unsupported_reason),
    "tiled": Implementation(tiled.product, tiled.outer_product, lambda x, matrices: ""),
}
"""In the order in which they are tried."""

_default: contextvars.ContextVar[ImplementationName | None] = contextvars.ContextVar("grouped_matmul", default=None)


@contextlib.contextmanager
def use_grouped_matmul_implementation(implementation: ImplementationName) -> Iterator[None]:
    """Makes an implementation the default of all grouped matmuls traced inside: to count FLOPs, say, or to compare."""
    token = _default.set(_check_implementation(implementation))
    try:
        yield
    finally:
        _default.reset(token)


def grouped_matmul(
    x: jax.Array,
    matrices: jax.Array,
    group_sizes: jax.Array,
    *,
    implementation: ImplementationName | None = None,
    matmul_format: MatmulFormat = "native",
) -> jax.Array:
    """Multiplies each group of rows by its own matrix; only reverse-mode differentiation.

    Args:
        x: Rows `[m, k]`, one group after another; there may be rows behind the last group.
        matrices: A matrix for each group, `[g, k, n]`.
        group_sizes: Rows of each group `[g]`, whole numbers whose sum is at most m: the caller has to ensure that.
        implementation: `mosaic` on Hopper GPUs, for bfloat16 and float16; `ragged_dot`, XLA's own, which does the
            arithmetic of the groups on TPUs, and on other GPUs with an XLA flag; or `tiled` everywhere, which adds
            padding of at most an eighth where groups have 64 rows and more on average. By default the first of them
            that has no reason not to be used; if that is `tiled` on a GPU, a warning has the reasons, once.
        matmul_format: Format of the operands (`pallas_kernels.fp8`). No implementation has kernels for FP8: rounded
            values are multiplied in the precision of x.

    Returns:
        `[m, n]` in the precision of x. Rows behind the last group are undefined, and so are their gradients by x.

    Raises:
        ValueError: Shapes or types do not fit, or there is no such implementation.
        NotImplementedError: The named implementation can't multiply these on this device; the message says why.
    """
    _check_operands(x, matrices, group_sizes)
    x, matrices, group_sizes = equally_varying(x, matrices, group_sizes.astype(jnp.int32))
    chosen = _choose(x, matrices, implementation or _default.get())
    return _grouped_matmul(x, matrices, group_sizes, chosen, matmul_format)


def _choose(x: jax.Array, matrices: jax.Array, named: ImplementationName | None) -> ImplementationName:
    """The named implementation, or the first that has no reason not to be used."""
    if named is not None:
        chosen = IMPLEMENTATIONS[_check_implementation(named)]
        reason = chosen.unsupported_reason(x, matrices)
        if reason and named != "ragged_dot":  # which is right everywhere, at more arithmetic
            raise NotImplementedError(f"a grouped matmul can't be {named}: {reason}")
        return named
    reasons: dict[ImplementationName, str] = {
        name: candidate.unsupported_reason(x, matrices) for name, candidate in IMPLEMENTATIONS.items()
    }
    first: ImplementationName = next(name for name, reason in reasons.items() if not reason)
    if first == "tiled" and target_device().is_gpu:
        warn_once(f"a grouped matmul is a loop over tiles on this GPU: {'; '.join(filter(None, reasons.values()))}")
    return first


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _grouped_matmul(
    x: jax.Array, matrices: jax.Array, group_sizes: jax.Array, name: ImplementationName, matmul_format: MatmulFormat
) -> jax.Array:
    return _product(x, matrices, group_sizes, name, matmul_format)


def _product(
    x: jax.Array, matrices: jax.Array, group_sizes: jax.Array, name: ImplementationName, matmul_format: MatmulFormat
) -> jax.Array:
    x = dense(operand(_rows_of_groups(x, group_sizes, matmul_format), matmul_format))
    return IMPLEMENTATIONS[name].product(x, dense(operand(matrices, matmul_format)), group_sizes)


def _rows_of_groups(x: jax.Array, group_sizes: jax.Array, matmul_format: MatmulFormat) -> jax.Array:
    """The rows, where they are rounded with zeros behind the last group: what is there must not choose the scale."""
    if matmul_format == "native":
        return x
    is_in_group = jnp.arange(len(x), dtype=group_sizes.dtype) < jnp.sum(group_sizes)
    return jnp.where(is_in_group[:, None], x, jnp.zeros((), x.dtype))


def _forward(
    x: CustomVJPPrimal,
    matrices: CustomVJPPrimal,
    group_sizes: CustomVJPPrimal,
    name: ImplementationName,
    matmul_format: MatmulFormat,
) -> tuple[jax.Array, tuple]:
    """Saves an operand only if the other one is differentiated: nothing of x for frozen matrices."""
    saved = x.value if matrices.perturbed else None, matrices.value if x.perturbed else None, group_sizes.value
    return _product(x.value, matrices.value, group_sizes.value, name, matmul_format), saved


def _backward(name: ImplementationName, matmul_format: MatmulFormat, saved: tuple, cotangent: jax.Array) -> tuple:
    x, matrices, group_sizes = saved
    chosen, dgrad, wgrad = IMPLEMENTATIONS[name], None, None
    gradient = dense(gradient_operand(_rows_of_groups(cotangent, group_sizes, matmul_format), matmul_format))
    if matrices is not None:
        dgrad = chosen.product(gradient, dense(operand(matrices, matmul_format)), group_sizes, transposed=True)
    if x is not None:
        rounded = dense(operand(_rows_of_groups(x, group_sizes, matmul_format), matmul_format))
        wgrad = chosen.outer_product(rounded, gradient, group_sizes)
    return dgrad, wgrad, np.zeros(group_sizes.shape, jax.dtypes.float0)


_grouped_matmul.defvjp(_forward, _backward, symbolic_zeros=True)


def _check_implementation(implementation: ImplementationName) -> ImplementationName:
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is {implementation!r}; choose one of {', '.join(IMPLEMENTATIONS)}")
    return implementation


def _check_operands(x: jax.Array, matrices: jax.Array, group_sizes: jax.Array) -> None:
    shapes = f"x {list(x.shape)}, matrices {list(matrices.shape)} and group_sizes {list(group_sizes.shape)}"
    if (x.ndim, matrices.ndim, group_sizes.ndim) != (2, 3, 1) or 0 in (*x.shape, *matrices.shape):
        raise ValueError(f"{shapes}: give [m, k], [g, k, n] and [g], none of them 0")
    if matrices.shape[:2] != (len(group_sizes), x.shape[1]):
        raise ValueError(f"{shapes}: give one matrix for each group, with as many rows as x has columns")
    if x.dtype != matrices.dtype or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x {x.dtype} and matrices {matrices.dtype}: give one floating-point type")
    if not jnp.issubdtype(group_sizes.dtype, jnp.integer):
        raise ValueError(f"group_sizes are {group_sizes.dtype}; give whole numbers")
