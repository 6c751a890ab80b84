"""Compiles for eight H100s of one host on a machine that has none (`pip install -e '.[aot]'`); nothing runs."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from mmjax.training.dry_run.scheduled_hlo import ScheduledProgram, parse_scheduled_hlo
from mmjax.training.dry_run.targets import described_devices

TENSOR = "tensor"
DEVICES = 8

CUBLAS = {"xla_gpu_enable_triton_gemm": False}
"""Compiler options that leave matmuls to cuBLAS. With a GPU, XLA chooses the faster of cuBLAS and its own kernels."""


@functools.cache
def tensor_mesh(ranks: int) -> Mesh:
    """A mesh of the first of the eight GPUs along `TENSOR`."""
    devices = described_devices("h100", DEVICES, DEVICES)
    return Mesh(np.array(devices[:ranks]), (TENSOR,), axis_types=(jax.sharding.AxisType.Auto,))


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A compiled program.

    Attributes:
        program: Its instructions in the order of the schedule.
        temporary_bytes: Bytes that a device needs in addition to arguments and results.
    """

    program: ScheduledProgram
    temporary_bytes: int


def compile_for_h100(function: Callable, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> CompiledProgram:
    """Compiles a function of shapes (with shardings over `tensor_mesh`) with these compiler options."""
    with jax.numpy_dtype_promotion("standard"):  # jax's attention adds a float32 mask to bfloat16, and its gradient
        lowered = jax.jit(function, compiler_options=dict(options)).lower(*arguments)
    compiled = lowered.compile()
    return CompiledProgram(parse_scheduled_hlo(compiled.as_text()), compiled.memory_analysis().temp_size_in_bytes)
