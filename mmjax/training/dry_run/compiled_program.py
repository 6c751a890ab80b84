"""One program compiled for described devices: what XLA says of its memory, its matmuls and its collectives."""

import contextlib
import dataclasses
import pathlib
import re
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from configs.common.errors import UserError
from mmjax.training.dry_run.overlap import Collective, executions, find_collectives, find_matmuls
from mmjax.training.dry_run.scheduled_hlo import parse_scheduled_hlo
from pallas_kernels.packed_attention import use_attention_of_gpus
from sharding.runtime.stages.compilation import ProgramCall

_HOME = pathlib.Path(__file__).resolve().parents[3]
_PACKAGES = ("configs", "data", "mmjax", "pallas_kernels", "sharding")
_OPERATION = re.compile(r'op_name="([^"]+)"')
_SOURCE = re.compile(r"Suspected Python Code Location:\s+(\S+?):(\d+)")

_CUBLAS: dict[str, str | bool] = {"xla_gpu_enable_triton_gemm": False}
"""Compiler options that leave matmuls to cuBLAS."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramFigures:
    """What XLA says of a program on one device, for one call.

    Attributes:
        compile_seconds: Seconds in which it was traced, lowered and compiled.
        output_bytes: Bytes of its results that are no donated arguments.
        host_bytes: Bytes of its results in host memory.
        temporary_bytes: Bytes that it needs in addition to arguments and results.
        flops: Floating-point operations of its matmuls with every iteration of its loops. Attention kernels, of which a
            program says no shapes, are left out.
        collectives: Its collectives in the order of issue, each with how many times it runs.
    """

    compile_seconds: float
    output_bytes: int
    host_bytes: int
    temporary_bytes: int
    flops: int
    collectives: tuple[tuple[Collective, int], ...]

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of all collectives."""
        return sum(times * collective.size for collective, times in self.collectives)

    @property
    def exposed_bytes(self) -> int:
        """Bytes of the collectives beside which no matmul runs."""
        return sum(times * collective.size for collective, times in self.collectives if not collective.hidden)

    @property
    def synchronous_bytes(self) -> int:
        """Bytes of the collectives that XLA waits for at their start."""
        return sum(times * collective.size for collective, times in self.collectives if collective.synchronous)


@contextlib.contextmanager
def attention_of_gpus() -> Iterator[None]:
    """Traces and lowers what is inside with the attention that GPUs have."""
    # jax's own attention adds a float32 mask to bfloat16.
    with use_attention_of_gpus(), jax.numpy_dtype_promotion("standard"):
        yield


@contextlib.contextmanager
def without_persistent_cache() -> Iterator[None]:
    """Turns jax's persistent compilation cache off for what is inside.

    jax would write programs for described devices into it and find none again: a description cannot load a program, and
    the key of an entry has the description's name in place of the version of a pod's driver and plugin.
    """
    enabled = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # which remembers whether it is on
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def compile_program(call: ProgramCall, target: str) -> ProgramFigures:
    """Compiles a program for described devices and reads what XLA says of it.

    Args:
        call: The program and its abstract arguments.
        target: Name of the target, for messages.

    Raises:
        UserError: It does not compile; the message names it, and its operation and source where the error has them.
    """
    start = time.perf_counter()
    try:
        with attention_of_gpus():
            compiled = _compiled(call.program.lower(*call.arguments))
    except Exception as error:
        program = f"{call.program.__name__}{_where(error)}"
        raise UserError(f"{program} does not compile for {target}: {_first_line(error)}") from error
    return read_program(compiled, time.perf_counter() - start)


def read_program(compiled: Any, compile_seconds: float = 0.0) -> ProgramFigures:
    """Reads what XLA says of a compiled program."""
    memory, program = compiled.memory_analysis(), parse_scheduled_hlo(compiled.as_text())
    times = executions(program)
    return ProgramFigures(
        compile_seconds=compile_seconds,
        output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        host_bytes=memory.host_output_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        flops=sum(matmul.flops * times[matmul.computation] for matmul in find_matmuls(program)),
        collectives=tuple((collective, times[collective.computation]) for collective in find_collectives(program)),
    )


def _compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles; with cuBLAS's matmuls where XLA's own need tuning, of which a GPU would try several."""
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        try:
            return lowered.compile(compiler_options=_CUBLAS)
        except jax.errors.JaxRuntimeError:
            raise error from None


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _where(error: Exception) -> str:
    """The operation and the line of our source that an error is about, as far as it says them."""
    words = []
    if named := _OPERATION.search(str(error)):
        words.append(f"operation {named[1]}")
    if source := _SOURCE.search(str(error)):
        words.append(f"{_relative(source[1])}:{source[2]}")
    elif frame := _own_frame(error):
        words.append(f"{_relative(frame.filename)}:{frame.lineno}")
    return f" ({', '.join(words)})" if words else ""


def _own_frame(error: Exception) -> traceback.FrameSummary | None:
    """The innermost line of our packages that an error passed, outside this folder."""
    folder = str(pathlib.Path(__file__).parent)
    homes = tuple(str(_HOME / package) for package in _PACKAGES)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(homes) and not frame.filename.startswith(folder)
    ]
    return frames[-1] if frames else None


def _relative(filename: str) -> str:
    path = pathlib.Path(filename)
    return str(path.relative_to(_HOME)) if path.is_relative_to(_HOME) else path.name
