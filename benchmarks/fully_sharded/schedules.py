"""The programs of a fully sharded stage compiled for H100s: which collectives of a layer run beside matmuls."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax

from benchmarks.h100_schedule.compilation import DEVICES, tensor_mesh
from benchmarks.memory.cases import CASES
from benchmarks.memory.compiled_stages import abstract_stage_programs
from mmjax.training.dry_run.overlap import Collective, find_collectives
from mmjax.training.dry_run.scheduled_hlo import parse_scheduled_hlo
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.runtime.stages.compilation import stage_calls
from sharding.specs.layers.layer import RecomputePolicy

Pass = Literal["forward", "backward"]

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "pipelined": {
        "xla_gpu_enable_pipelined_all_gather": True,
        "xla_gpu_enable_pipelined_reduce_scatter": True,
    },
}
"""Compiler options by name; `pipelined` moves the gathers of a layer into the iteration before, and scatters back."""

ATTENTION = "cudnn"


@dataclasses.dataclass(frozen=True)
class StageSchedule:
    """The collectives of one program of a stage, as scheduled.

    Attributes:
        recompute: The recomputation policy of its layers.
        of_pass: The program.
        options: Name of the compiler options.
        temporary_bytes: Bytes that a device needs in addition to arguments and results.
        of_layer: The collectives of one iteration of the loop over the layers.
        around: The collectives before and after the loop.
    """

    recompute: RecomputePolicy
    of_pass: Pass
    options: str
    temporary_bytes: int
    of_layer: tuple[Collective, ...]
    around: tuple[Collective, ...]

    def exposed_bytes(self, kind: str) -> int:
        """Bytes of a layer's collectives of a kind that no matmul runs beside."""
        return sum(collective.size for collective in self.of_layer if collective.kind == kind and not collective.hidden)

    def bytes_of(self, kind: str) -> int:
        """Bytes of a layer's collectives of a kind."""
        return sum(collective.size for collective in self.of_layer if collective.kind == kind)


def stage_schedule(recompute: RecomputePolicy, pass_name: Pass, options: str) -> StageSchedule:
    """Compiles a stage in the middle of Llama3-70B whose weights eight H100s divide."""
    call = _calls(recompute)[pass_name]
    with jax.numpy_dtype_promotion("standard"), use_attention_implementation(ATTENTION):
        compiled = call.program.lower(*call.arguments).compile(compiler_options=dict(OPTIONS[options]))
    program = parse_scheduled_hlo(compiled.as_text())
    collectives = find_collectives(program)
    return StageSchedule(
        recompute=recompute,
        of_pass=pass_name,
        options=options,
        temporary_bytes=compiled.memory_analysis().temp_size_in_bytes,
        of_layer=tuple(collective for collective in collectives if collective.computation != program.entry),
        around=tuple(collective for collective in collectives if collective.computation == program.entry),
    )


@functools.cache
def _calls(recompute: RecomputePolicy) -> Mapping[str, Any]:
    (case,) = (case for case in CASES if case.fsdp > 1)
    config = case.model()
    devices = list(tensor_mesh(DEVICES).devices.flat)
    with jax.numpy_dtype_promotion("standard"):  # jax's own attention adds a float32 mask to bfloat16
        programs = abstract_stage_programs(
            config, case.plan(config, recompute), case.batch_spec(config), devices, ATTENTION
        )[case.compared_stages()[0]]
        with use_attention_implementation(ATTENTION):
            *_, forward, backward = stage_calls((programs,)).calls
    return {"forward": forward, "backward": backward}
