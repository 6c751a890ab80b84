"""Model FLOPs of a step, and the share of the devices' peak that they reach (MFU). A multiply-add is two FLOPs.

`TrainingRun` counts them once; the report of each window of steps multiplies them by its tokens.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from configs.clusters import cluster_of_device_kind
from data.packing.batch_spec import BatchSpec
from data.packing.phases.phase_rows import RowValues
from mmjax.models.layers.reference_implementations import use_reference_implementations
from mmjax.models.model import run_module
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import abstract_module_parameters


def peak_flops(device_kind: str, *, fp8: bool = False) -> float | None:
    """The dense peak in FLOP/s of a `jax.Device.device_kind`, or None where it is not known (CPU too).

    It is bfloat16's, or FP8's where that is asked for and the devices multiply FP8.
    """
    cluster = cluster_of_device_kind(device_kind)
    if cluster is None or cluster.name == "cpu":
        return None
    return cluster.peak_flops * (cluster.generation.fp8_rate if fp8 else 1.0)


def model_flops_utilization(
    flops: float, seconds: float, device_kinds: Sequence[str], *, fp8: bool = False
) -> float | None:
    """MFU of a step (PaLM, arXiv 2204.02311, appendix B): `flops / (seconds * sum of the devices' peaks)`.

    Args:
        flops: Forward and backward of the real tokens alone, without padding and recomputation.
        seconds: Wall time of the step.
        device_kinds: The kind of every device allocated to the run, the idle ones too.
        fp8: Whether the model has matmuls with FP8 operands, so that FP8 is the peak.

    Returns:
        A share of the peak, or None where a device's peak is not known.
    """
    peaks = [peak for kind in device_kinds if (peak := peak_flops(kind, fp8=fp8)) is not None]
    if not peaks or len(peaks) < len(device_kinds) or seconds <= 0:
        return None
    return flops / (seconds * sum(peaks))


def value_flops(
    modules: Sequence[Module], batch_spec: BatchSpec, row_values: Mapping[str, RowValues], device_kind: str
) -> dict[str, float]:
    """Forward and backward FLOPs of each module for one token, patch, frame or image of a full row.

    Empty where the devices' peak is not known. They are counted on one row of the global batch, without recomputation
    whatever the plan recomputes, for all parts of the model, trained or not, and for attention of every position to
    every other position of its row.

    Args:
        modules: The model's modules, each after the modules whose outputs it takes.
        batch_spec: Shapes and dtypes of a global batch.
        row_values: Number of tokens, patches, frames or images of a row, by module.
        device_kind: Kind of the run's devices.
    """
    if peak_flops(device_kind) is None:
        return {}
    activations: dict[tuple[str, str], jax.ShapeDtypeStruct] = {}
    flops = {}
    for module in modules:
        inputs = {source: activations[source, module.name] for source in module.inputs}
        arrays = batch_spec[module.name]
        batch = {name: jax.ShapeDtypeStruct((1, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
        batch["seed_and_step"] = jax.ShapeDtypeStruct((2,), jnp.int32)
        parameters = abstract_module_parameters(module)
        output = jax.eval_shape(functools.partial(run_module, module), parameters, inputs, batch)
        activations |= {(module.name, target): shape for target, shape in output.activations.items()}
        # Other implementations of attention compute as many blocks as there are segments, not known beforehand.
        with use_reference_implementations():
            row_flops = count_flops(functools.partial(_gradients, module), parameters, inputs, batch)
        flops[module.name] = row_flops / row_values[module.name].count
    return flops


def _gradients(module: Module, parameters: dict, inputs: dict, batch: dict) -> tuple:
    """Computes the gradients of a scalar that depends on all outputs of a module."""

    def scalar(parameters: dict, inputs: dict) -> jax.Array:
        output = run_module(module, parameters, inputs, batch)
        total = sum((jnp.sum(x.astype(jnp.float32)) for x in output.activations.values()), start=jnp.zeros(()))
        return total if output.loss is None else total + output.loss

    return jax.grad(scalar, argnums=(0, 1))(parameters, inputs)


def count_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """FLOPs of the matrix products and convolutions in one call of a function; nothing is run.

    For a training step, count `jax.value_and_grad` of the loss: frozen parameters then have no backward. Unlike XLA's
    cost analysis it counts every iteration of a scan. Arithmetic that `jax.checkpoint` repeats is counted too, so count
    without recomputation for MFU.

    Args:
        function: Traceable by jax; without `shard_map`, whose body is one device's share.
        *arguments: Arrays or `jax.ShapeDtypeStruct`s.

    Raises:
        NotImplementedError: Arithmetic inside a `while` loop of unknown length, or inside a `shard_map`.
    """
    return _jaxpr_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def _jaxpr_flops(jaxpr: core.Jaxpr) -> int:
    return sum(_equation_flops(equation) for equation in jaxpr.eqns)


def _equation_flops(equation: core.JaxprEqn) -> int:
    name = equation.primitive.name
    if name == "dot_general":
        return _dot_general_flops(equation)
    if name == "conv_general_dilated":
        return _convolution_flops(equation)
    if name == "ragged_dot_general":
        return _ragged_dot_general_flops(equation)
    inner_flops = [_jaxpr_flops(jaxpr) for jaxpr in _inner_jaxprs(equation)]
    if name == "scan":
        return equation.params["length"] * sum(inner_flops)
    if name == "cond":
        return max(inner_flops)
    if name in ("while", "shard_map") and sum(inner_flops):
        raise NotImplementedError(f"{name}: how often its body runs is not known, so its FLOPs can't be counted")
    return sum(inner_flops)


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


def _shape(operand: Any) -> tuple[int, ...]:
    """Shape of an operand or a result of an equation."""
    return operand.aval.shape


def _dot_general_flops(equation: core.JaxprEqn) -> int:
    (contracting, _), _ = equation.params["dimension_numbers"]
    lhs_shape = _shape(equation.invars[0])
    return 2 * math.prod(_shape(equation.outvars[0])) * math.prod(lhs_shape[axis] for axis in contracting)


def _ragged_dot_general_flops(equation: core.JaxprEqn) -> int:
    """Groups of rows, each times a matrix of its own: as many FLOPs as all rows times one matrix."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracting, _), _ = numbers.dot_dimension_numbers
    lhs_shape, group_sizes_shape = _shape(equation.invars[0]), _shape(equation.invars[2])
    flops = 2 * math.prod(_shape(equation.outvars[0])) * math.prod(lhs_shape[axis] for axis in contracting)
    # Where the rows are contracted, as in the gradient of the matrices, a group's matrix is made of its rows alone.
    return flops if numbers.rhs_group_dimensions else flops // group_sizes_shape[0]


def _convolution_flops(equation: core.JaxprEqn) -> int:
    kernel_shape = _shape(equation.invars[1])
    output_channels, _, *_ = equation.params["dimension_numbers"].rhs_spec
    # The zeros that an input dilation puts between pixels cost nothing.
    dilation = math.prod(equation.params["lhs_dilation"])
    return (
        2
        * math.prod(_shape(equation.outvars[0]))
        * math.prod(kernel_shape)
        // kernel_shape[output_channels]
        // dilation
    )
