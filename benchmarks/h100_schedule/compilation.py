"""Compiles for eight H100s of one host on a machine that has none (`pip install -e '.[aot]'`).

XLA's GPU compiler needs a description of the device (`h100_target.txt`), not the device: the schedule and the memory
are the ones that it would use there. Nothing runs, and no matmul is tuned by trying.
"""

import dataclasses
import functools
import importlib.util
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from benchmarks.h100_schedule.scheduled_hlo import ScheduledProgram, parse_scheduled_hlo

TENSOR = "tensor"
DEVICES = 8
TARGET = pathlib.Path(__file__).with_name("h100_target.txt")
PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")

CUBLAS = {"xla_gpu_enable_triton_gemm": False}
"""Compiler options that leave matmuls to cuBLAS. With a GPU, XLA chooses the faster of cuBLAS and its own kernels."""


def missing_plugin() -> str:
    """Why nothing can be compiled for a GPU here, or ""."""
    if any(_is_installed(plugin) for plugin in PLUGINS):
        return ""
    return "JAX has no CUDA plugin here: pip install -e '.[aot]' (5.5 GB)"


def _is_installed(plugin: str) -> bool:
    try:
        return importlib.util.find_spec(plugin) is not None
    except ModuleNotFoundError:
        return False


@functools.cache
def tensor_mesh(ranks: int) -> Mesh:
    """A mesh of the first of the eight GPUs along `TENSOR`."""
    topology = topologies.get_topology_desc(
        "h100x8", platform="cuda", target_config=TARGET.read_text(), topology=f"1x1x{DEVICES}"
    )
    return Mesh(np.array(topology.devices[:ranks]), (TENSOR,), axis_types=(jax.sharding.AxisType.Auto,))


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
