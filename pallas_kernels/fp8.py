"""Operands of matmuls in FP8: activations and weights in e4m3, gradients in e5m2, with one scale for each array.

The scale is a power of two, computed from the array's largest magnitude, which then is one of the largest numbers of
the format. A power of two changes no mantissa, so that a value is rounded alike whichever array it is scaled in: the
whole one, a rank's shard or a chunk of it. Only values that become subnormal, below 2^-14 of the largest in e4m3 and
2^-29 in e5m2, are rounded to multiples that depend on the scale, by at most 2^-17 and 2^-31 of the largest magnitude.
So layouts agree to rounding, and no collective has to find a common scale.

What a product of such operands is, is defined by their rounded values and a sum in float32: it is written as a product
of `Fp8Array.dense`. XLA's GPU compiler recognises that form where the hardware multiplies FP8, and calls cuBLASLt's FP8
matmul with both scales; everywhere else the rounded values are multiplied in the precision that they had before.
"""

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
_LARGEST_MANTISSA = 0x600000
"""The bits of the mantissa 1.75 in float32."""


class Fp8Array(NamedTuple):
    """An array in FP8 with its scale.

    Attributes:
        values: The scaled values, in `float8_e4m3fn` or `float8_e5m2`.
        scale: A power of two, in the precision of the array that was rounded; values times it are that array.
    """

    values: jax.Array
    scale: jax.Array

    @property
    def dense(self) -> jax.Array:
        """The rounded values in the precision that they had; exact."""
        return self.values.astype(self.scale.dtype) * self.scale


Operand = jax.Array | Fp8Array
"""An operand of a product: as it is, or in FP8."""


def quantize(x: jax.Array, kind: Fp8Kind) -> Fp8Array:
    """Rounds an array to FP8 by the scale of its largest magnitude; zeros stay zeros.

    An array with an infinity or NaN keeps a value that is not finite, so that the step is recognised as failed; its
    finite values are lost.
    """
    bits = lax.bitcast_convert_type(jnp.max(jnp.abs(x)).astype(jnp.float32), jnp.int32)
    exponent, mantissa = (bits >> 23) - 127, bits & 0x7FFFFF  # largest magnitude = 2^exponent (1 + mantissa 2^-23)
    shift = _LARGEST_EXPONENT[kind] - exponent - (mantissa > _LARGEST_MANTISSA).astype(jnp.int32)
    largest_shift = min(-int(jnp.finfo(x.dtype).minexp), int(jnp.finfo(x.dtype).maxexp) - 1)
    shift = jnp.clip(shift, -largest_shift, largest_shift)
    return Fp8Array((x * _power_of_two(shift, x.dtype)).astype(_DTYPES[kind]), _power_of_two(-shift, x.dtype))


def operand(x: jax.Array, matmul_format: MatmulFormat) -> Operand:
    """Activations or a weight as an operand of a product."""
    return _checked_quantize(x, "e4m3") if matmul_format == "fp8" else x


def gradient_operand(cotangent: jax.Array, matmul_format: MatmulFormat) -> Operand:
    """A cotangent as an operand of a product."""
    return _checked_quantize(cotangent, "e5m2") if matmul_format == "fp8" else cotangent


def dense(x: Operand) -> jax.Array:
    """The values that an operand stands for, in the precision in which they are multiplied."""
    return x.dense if isinstance(x, Fp8Array) else x


def _checked_quantize(x: jax.Array, kind: Fp8Kind) -> Fp8Array:
    """`quantize`, with a warning on GPUs that multiply no FP8."""
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
