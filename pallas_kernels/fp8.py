"""Operands of matmuls in FP8: activations and weights in e4m3, gradients in e5m2, with one scale for each array.

The scale is a power of two, computed from the array's largest magnitude, which then is one of the largest numbers of
the format. A power of two changes no mantissa, so that a value is rounded alike whichever array it is scaled in: the
whole one, a rank's shard or a chunk of it. Only values that become subnormal, below 2^-14 of the largest in e4m3 and
2^-29 in e5m2, are rounded to multiples that depend on the scale, by at most 2^-17 and 2^-31 of the largest magnitude.
So layouts agree to rounding, and no collective has to find a common scale.

What a product of such operands is, is defined by their rounded values and a sum in float32. It is a `dot_general` of
FP8 arrays, times the scales, which XLA's GPU compiler turns into cuBLASLt's FP8 matmul where the hardware has one; it
merges such matmuls of one operand as it does others. Elsewhere XLA multiplies the same values in a wider precision.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.fallbacks import warn_once
from pallas_kernels.target_device import target_device

MatmulFormat = Literal["native", "fp8"]
"""Whether a matmul's operands keep their precision or are rounded to FP8."""

Fp8Kind = Literal["e4m3", "e5m2"]

_DTYPES = {"e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2}
_LARGEST_EXPONENT = {"e4m3": 8, "e5m2": 15}
"""Of the largest number of each format, 1.75 times this power of two."""
_LARGEST_SHIFT = 126
"""The exponent of the largest power of two whose inverse is a normal number of float32 and bfloat16."""
_LARGEST_MANTISSA = 0x600000
"""The bits of the mantissa 1.75 in float32."""


_MANTISSA_BITS = {"e4m3": 3, "e5m2": 2}

_unbounded: contextvars.ContextVar[bool] = contextvars.ContextVar("fp8_unbounded_exponents", default=False)


@contextlib.contextmanager
def use_unbounded_exponents() -> Iterator[None]:
    """Makes all operands traced inside have the mantissas of FP8 at any magnitude, as if nothing were subnormal.

    A value is then rounded alike by every scale: verification compares layouts so.
    """
    token = _unbounded.set(True)
    try:
        yield
    finally:
        _unbounded.reset(token)


class Fp8Array(NamedTuple):
    """An array in FP8 with its scale.

    Attributes:
        values: The scaled values, in `float8_e4m3fn` or `float8_e5m2`.
        scale: A power of two, in the precision of the array that was rounded; values times it are that array.
    """

    values: jax.Array
    scale: jax.Array

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.values.ndim

    @property
    def dense(self) -> jax.Array:
        """The rounded values in the precision that they had; exact."""
        return self.values.astype(self.scale.dtype) * self.scale


Operand = jax.Array | Fp8Array
"""An operand of a product: as it is, or in FP8."""


def quantize(x: jax.Array, kind: Fp8Kind) -> Fp8Array:
    """Rounds an array in float32 or bfloat16 to FP8 by the scale of its largest magnitude; zeros stay zeros.

    An array with an infinity or NaN keeps a value that is not finite, so that the step is recognised as failed; its
    finite values are lost.
    """
    bits = lax.bitcast_convert_type(jnp.max(jnp.abs(x)).astype(jnp.float32), jnp.int32)
    exponent, mantissa = (bits >> 23) - 127, bits & 0x7FFFFF  # largest magnitude = 2^exponent (1 + mantissa 2^-23)
    shift = _LARGEST_EXPONENT[kind] - exponent - (mantissa > _LARGEST_MANTISSA).astype(jnp.int32)
    shift = jnp.clip(shift, -_LARGEST_SHIFT, _LARGEST_SHIFT)
    return Fp8Array((x * _power_of_two(shift, x.dtype)).astype(_DTYPES[kind]), _power_of_two(-shift, x.dtype))


def operand(x: jax.Array, matmul_format: MatmulFormat) -> Operand:
    """Activations or a weight as an operand of a product."""
    return _rounded(x, "e4m3") if matmul_format == "fp8" else x


def gradient_operand(cotangent: jax.Array, matmul_format: MatmulFormat) -> Operand:
    """A cotangent as an operand of a product."""
    return _rounded(cotangent, "e5m2") if matmul_format == "fp8" else cotangent


def contract(
    a: Operand, b: Operand, dimensions: tuple[tuple[int, ...], tuple[int, ...]], dtype: jax.typing.DTypeLike
) -> jax.Array:
    """The product of two operands of one format, summed in float32 over dimensions of both, in a precision."""
    if isinstance(a, Fp8Array) and isinstance(b, Fp8Array):
        unscaled = lax.dot_general(a.values, b.values, (dimensions, ((), ())), preferred_element_type=dtype)
        return unscaled * (a.scale * b.scale).astype(dtype)  # powers of two: nothing is rounded
    return lax.dot_general(dense(a), dense(b), (dimensions, ((), ())), preferred_element_type=dtype)


def dense(x: Operand) -> jax.Array:
    """The values that an operand stands for, in the precision in which they are multiplied."""
    return x.dense if isinstance(x, Fp8Array) else x


def _rounded(x: jax.Array, kind: Fp8Kind) -> Operand:
    """`quantize`, with a warning on GPUs that multiply no FP8."""
    if _unbounded.get():
        return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=_MANTISSA_BITS[kind])
    if x.dtype not in (jnp.float32, jnp.bfloat16):
        raise NotImplementedError(f"operands are rounded to FP8 from float32 and bfloat16, not from {x.dtype.name}")
    device = target_device()
    if device.is_gpu and not device.has_fp8:
        warn_once(
            f"{device.kind} multiplies no FP8: matmuls in FP8 are computed as {x.dtype.name} matmuls of rounded "
            "values, slower than without FP8; set the modules' fp8 to () on such devices"
        )
    return quantize(x, kind)


def _power_of_two(exponent: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """2^exponent, exactly: XLA computes exponentials only to rounding."""
    return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32).astype(dtype)
