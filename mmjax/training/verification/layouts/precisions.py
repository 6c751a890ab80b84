"""The precisions in which layouts are compared with the reference, and how a model computes in each.

Every layout is compared in float32, without FP8 operands, where no error but of rounding is small enough to be missed.
A model in bfloat16 is compared in that too. A model with FP8 operands is compared with these in float32: other
precisions of the rest would hide what is wrong in FP8. There its values are rounded to FP8's mantissas whatever their
magnitude (`pallas_kernels.fp8.use_unbounded_exponents`), so that layouts, which scale other parts of an array, round
alike.
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp

from configs.architectures import ModelConfig

Precision = Literal["float32", "bfloat16", "fp8"]

PERTURBATIONS: dict[Precision, int] = {"float32": 4, "bfloat16": 0, "fp8": 12}
"""Perturbations of each step by which rounding errors are measured; bfloat16's are averaged (`reference.repeats`)."""


def precisions_of(model: ModelConfig) -> tuple[Precision, ...]:
    """The precisions in which layouts of a model are compared."""
    own: tuple[Precision, ...] = ("bfloat16",) if model.dtype == "bfloat16" else ()
    return ("float32", *own, *(("fp8",) if model.uses_fp8 else ()))


def model_in(model: ModelConfig, precision: Precision) -> ModelConfig:
    """The model in a precision."""
    if precision == "fp8":
        return dataclasses.replace(model, dtype="float32")
    return dataclasses.replace(model.with_fp8(()), dtype=precision)


def rounding_unit(precision: Precision) -> float:
    """By how much parameters are perturbed, relatively.

    With FP8 operands a difference of a few float32 roundings lets single values round to a neighbouring number of FP8,
    6% away. Perturbations of eight roundings make that likelier than it is in a layout, so that it is measured.
    """
    return 8 * float(jnp.finfo("float32").eps) if precision == "fp8" else float(jnp.finfo(precision).eps)


def parameter_dtype(precision: Precision) -> str:
    """The precision of perturbed parameters."""
    return "float32" if precision == "fp8" else precision
