"""Model FLOPs of a function, and the share of the devices' peak that they reach (MFU). A multiply-add is two FLOPs."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from configs.clusters import cluster_of_device_kind


def peak_flops(device_kind: str) -> float | None:
    """The dense bfloat16 peak in FLOP/s of a `jax.Device.device_kind`, or None where it is not known (CPU too)."""
    cluster = cluster_of_device_kind(device_kind)
    return None if cluster is None or cluster.name == "cpu" else cluster.peak_flops


def model_flops_utilization(flops: float, seconds: float, device_kinds: Sequence[str]) -> float | None:
    """MFU of a step (PaLM, arXiv 2204.02311, appendix B): the model's FLOPs over what the devices could have done.

    Args:
        flops: Forward and backward of the real tokens alone: no padding, no recomputation.
        seconds: Wall time of the step.
        device_kinds: The kind of every device allocated to the run, the idle ones too.

    Returns:
        A share of the peak, or None where a device's peak is not known.
    """
    peaks = [peak_flops(kind) for kind in device_kinds]
    if not peaks or None in peaks or seconds <= 0:
        return None
    return flops / (seconds * sum(peaks))


def count_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """FLOPs of the matrix products and convolutions in one call of `function`; nothing is run.

    Count `jax.value_and_grad` of a loss for a training step: what is frozen then has no backward. Unlike XLA's
    analysis it counts every turn of a scan. What `jax.checkpoint` computes again is counted too: leave it out for MFU.

    Args:
        function: Traceable by jax; without `shard_map`, whose body is one device's share.
        *arguments: Arrays or `jax.ShapeDtypeStruct`s.

    Raises:
        NotImplementedError: Arithmetic inside a `while` loop of unknown length, or a `shard_map`.
    """
    return _jaxpr_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def _jaxpr_flops(jaxpr: core.Jaxpr) -> int:
    return sum(_equation_flops(equation) for equation in jaxpr.eqns)


def _equation_flops(equation: core.JaxprEqn) -> int:
    name = equation.primitive.name
    if name == "dot_general":
        return _product_flops(equation)
    if name == "conv_general_dilated":
        return _convolution_flops(equation)
    if name == "ragged_dot_general":
        return _grouped_flops(equation)
    inner = [_jaxpr_flops(jaxpr) for jaxpr in _inner_jaxprs(equation)]
    if name == "scan":
        return equation.params["length"] * sum(inner)
    if name == "cond":
        return max(inner)
    if name in ("while", "shard_map") and sum(inner):
        raise NotImplementedError(f"{name}: how often its body runs is not known, so its FLOPs can't be counted")
    return sum(inner)


def _inner_jaxprs(equation: core.JaxprEqn) -> list[core.Jaxpr]:
    """The programs that an equation calls: of jit, scan, remat, custom derivatives and so on."""
    inner = []
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, core.ClosedJaxpr):  # before Jaxpr, which newer versions of jax make its base
                inner.append(item.jaxpr)
            elif isinstance(item, core.Jaxpr):
                inner.append(item)
    return inner


def _product_flops(equation: core.JaxprEqn) -> int:
    (contracting, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(shape[axis] for axis in contracting)


def _grouped_flops(equation: core.JaxprEqn) -> int:
    """Of a product of groups of rows, each with a matrix of its own: as many as of all rows with one."""
    of = equation.params["ragged_dot_dimension_numbers"]
    (contracting, _), _ = of.dot_dimension_numbers
    rows, sizes = equation.invars[0].aval.shape, equation.invars[2].aval.shape
    flops = 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(rows[axis] for axis in contracting)
    # Where the rows are contracted, as in the gradient of the matrices, a group's matrix is made of its rows alone.
    return flops if of.rhs_group_dimensions else flops // sizes[0]


def _convolution_flops(equation: core.JaxprEqn) -> int:
    kernel = equation.invars[1].aval.shape
    outputs, _, *_ = equation.params["dimension_numbers"].rhs_spec
    # Zeros that an input dilation puts between the pixels are multiplied by nobody.
    stride = math.prod(equation.params["lhs_dilation"])
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) // kernel[outputs] // stride
