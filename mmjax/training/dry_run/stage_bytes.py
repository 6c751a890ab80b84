"""Bytes of a stage on one device, from the shapes of its programs' arguments and from what XLA says of the programs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding

from mmjax.training.dry_run.abstract_stages import AbstractStage
from mmjax.training.dry_run.compiled_program import ProgramFigures
from mmjax.training.engine.compilation import abstract_reduced_gradients
from mmjax.training.engine.optimizers.optimizer import abstract_optimizer_state
from sharding.runtime.stages.compilation import ProgramCall
from sharding.runtime.stages.compiled_pipeline import CompiledPipeline


def device_bytes(tree: Any) -> int:
    """Bytes that one device holds of abstract arrays with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
        if isinstance(leaf.sharding, NamedSharding)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageBytes:
    """Bytes on one device of a stage.

    Attributes:
        weights: Weights in compute precision.
        gradients: Sums of gradients in float32.
        optimizer: Master weights and optimizer state.
        batch: The arrays of all microbatches of a step that the stage reads.
        saved: By capacity, what a microbatch holds from its forward to its backward: its inputs and residuals.
        offloaded: By capacity, its residuals in host memory.
        for_wgrad: By capacity, what it holds from its dgrad to its wgrad; empty where the backward is whole.
        workspace: Bytes that a program of a microbatch needs besides: temporaries, and results that are sent on.
        step_workspace: The same of programs that run once a step, when no microbatch is in flight.
    """

    weights: int
    gradients: int
    optimizer: int
    batch: int
    saved: tuple[int, ...]
    offloaded: tuple[int, ...]
    for_wgrad: tuple[int, ...]
    workspace: int
    step_workspace: int


def stage_bytes(stage: AbstractStage, figures: Mapping[str, ProgramFigures]) -> StageBytes:
    """Bytes of a stage.

    Args:
        stage: The stage.
        figures: What XLA says of its programs, by their names.
    """
    programs, calls = stage.executable.pipeline_replicas[0].by_capacity, stage.microbatch_calls()
    gradients = device_bytes(stage.gradients or {})
    if isinstance(programs[0], CompiledPipeline):
        held = [_of_pipeline(calls, figures, gradients)]
    else:
        count = len(calls) // len(programs)
        held = [_of_microbatch(calls[first : first + count], figures) for first in range(0, len(calls), count)]
    return StageBytes(
        weights=device_bytes(calls[0].arguments[0]),
        gradients=gradients,
        optimizer=0 if stage.placed.master_weights.in_host_memory else device_bytes(_optimizer_state(stage)),
        batch=device_bytes(calls[0].arguments[2]),
        saved=tuple(of_capacity.saved for of_capacity in held),
        offloaded=tuple(of_capacity.offloaded for of_capacity in held),
        for_wgrad=tuple(of_capacity.for_wgrad for of_capacity in held),
        workspace=max(of_capacity.workspace for of_capacity in held),
        step_workspace=_step_workspace(stage, figures, gradients),
    )


def _optimizer_state(stage: AbstractStage) -> Any:
    """Master weights and optimizer state. Descriptions of devices have no memory kinds that tell where they lie."""
    masters = stage.placed.master_weights
    return masters.abstract_weights(), abstract_optimizer_state(stage.optimizer, masters, stage.placed.trained_keys)


class _Held(NamedTuple):
    """Bytes of the programs of a microbatch at one capacity; as in `StageBytes`."""

    saved: int
    offloaded: int
    for_wgrad: int
    workspace: int


def _of_microbatch(calls: Sequence[ProgramCall], figures: Mapping[str, ProgramFigures]) -> _Held:
    """Bytes of a forward, and of its backward or its dgrad and wgrad if there are some.

    Described devices have no memory spaces by which residuals were told apart: what is offloaded is what the forward
    puts out in host memory.
    """
    forward, *backward = calls
    inputs = device_bytes(forward.arguments[1])
    named = [figures[call.program.__name__] for call in calls]
    needs = [program.temporary_bytes + program.output_bytes for program in named]
    if not backward:
        return _Held(inputs, 0, 0, needs[0])
    if len(backward) == 1:
        residuals, output_gradients, for_wgrad = *backward[0].arguments[4:6], ()
    else:
        arrays, for_wgrad = backward[0].arguments[3], backward[1].arguments[4]
        residuals, output_gradients = arrays.residuals, arrays.output_gradients
    kept = device_bytes(residuals) - named[0].host_bytes
    workspace = (
        needs[0] - kept,
        needs[1] - device_bytes(for_wgrad) + device_bytes(output_gradients),
        *needs[2:],
    )
    return _Held(inputs + kept, named[0].host_bytes, device_bytes(for_wgrad), max(workspace))


def _of_pipeline(calls: Sequence[ProgramCall], figures: Mapping[str, ProgramFigures], gradients: int) -> _Held:
    """Bytes of a pipeline that is one program, or two: it holds what it saves itself."""
    needs = [
        figures[call.program.__name__].temporary_bytes
        + figures[call.program.__name__].output_bytes
        + device_bytes(call.arguments[3:5])
        for call in calls
    ]
    return _Held(0, 0, 0, max(needs[0] - gradients, *needs[1:]) + device_bytes(calls[0].arguments[1]))


def _step_workspace(stage: AbstractStage, figures: Mapping[str, ProgramFigures], gradients: int) -> int:
    """Bytes that gather, reduction and update need besides weights, unreduced gradients and optimizer state."""
    most = 0
    for call in stage.step_calls:
        program = figures[call.program.__name__]
        needs = program.temporary_bytes + program.output_bytes
        if call.program is stage.executable.gather:
            needs -= device_bytes(stage.microbatch_calls()[0].arguments[0])
        elif call.program is not stage.executable.reduce:  # the reduced gradients take the place of the unreduced ones
            needs += device_bytes(abstract_reduced_gradients(stage.placed)) - gradients
        most = max(most, needs)
    return most
