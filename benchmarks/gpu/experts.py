"""Matmuls of groups of rows, forward and both gradients: each implementation, beside one matmul of as many rows."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu.operands import grouped_operands
from benchmarks.gpu.parts import PartRun, short_reason
from benchmarks.gpu.sizes import ExpertMatmul
from benchmarks.timing import TimedRun, in_turns, medians, timed_jax
from pallas_kernels.grouped_matmul import IMPLEMENTATIONS, grouped_matmul

ONE_MATRIX = "one matrix"


def rows(part: PartRun) -> Iterator[dict[str, Any]]:
    """TFLOP/s of each implementation, counting the arithmetic of the groups alone."""
    for name, sizes in part.sizes.experts:
        if part.seconds_left < 6:
            yield part.row(f"experts, {name}", None, note="cut for time")
            continue
        runs, reasons = _candidates(sizes, part.sizes.model.dtype)
        for form, reason in reasons.items():
            yield part.row(f"experts, {name}: {form}, TFLOP/s", None, note=reason)
        seconds = medians(in_turns(runs, part.sizes.rounds, part.sizes.inner, lambda: part.seconds_left - 2))
        flops = 6.0 * sizes.rows * sizes.inner * sizes.outer
        note = f"[{sizes.rows}, {sizes.inner}] @ {sizes.groups} of [{sizes.inner}, {sizes.outer}], with gradients"
        for form, median in seconds.items():
            yield part.row(f"experts, {name}: {form}, TFLOP/s", flops / median / 1e12, note=note)


def _candidates(sizes: ExpertMatmul, dtype: str) -> tuple[dict[str, TimedRun], dict[str, str]]:
    """Implementations that run here, and why the others are left out."""
    x, matrices, group_sizes, cotangent = grouped_operands(sizes, dtype)
    arguments: dict[str, tuple] = {ONE_MATRIX: (x, matrices[0], cotangent)}
    functions = {ONE_MATRIX: lambda x, matrix, cotangent: _with_gradients(jnp.matmul, x, matrix, cotangent)}
    for implementation in IMPLEMENTATIONS:
        multiply = functools.partial(grouped_matmul, group_sizes=group_sizes, implementation=implementation)
        functions[implementation] = functools.partial(_with_gradients, multiply)
        arguments[implementation] = (x, matrices, cotangent)
    runs, reasons = {}, {}
    for form, function in functions.items():
        try:
            compiled = jax.jit(function).lower(*arguments[form]).compile()
            jax.block_until_ready(compiled(*arguments[form]))
            runs[form] = timed_jax(compiled, arguments[form])
        except Exception as error:  # this device lacks the implementation; the others are still timed
            reasons[form] = f"not run: {short_reason(error)}"
    return runs, reasons


def _with_gradients(multiply: Any, x: jax.Array, matrices: jax.Array, cotangent: jax.Array) -> tuple:
    product, pull = jax.vjp(multiply, x, matrices)
    return product, *pull(cotangent)
