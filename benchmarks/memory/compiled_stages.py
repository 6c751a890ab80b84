"""Bytes of a stage's programs on described devices, by XLA's own `memory_analysis`; nothing runs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from configs.architectures import ModelConfig
from configs.optimizer import OptimizerConfig
from data.packing.batch_spec import BatchSpec
from mmjax.training.dry_run.abstract_stages import abstract_step
from mmjax.training.dry_run.stage_bytes import device_bytes
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.costs.optimizer_memory import OptimizerMemory
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.runtime.stages.compilation import stage_calls
from sharding.runtime.stages.programs import StagePrograms
from sharding.specs.modules import module_graph


class StageBytes(NamedTuple):
    """Bytes on one device of a stage with one microbatch in flight.

    Attributes:
        state: Bytes of weights, accumulated gradients and optimizer state.
        saved: Bytes that the forward saves for the backward, on the device.
        offloaded: Bytes that it saves in host memory.
        workspace: Bytes that the forward or the backward needs besides: temporaries.
    """

    state: float
    saved: float
    offloaded: float
    workspace: float

    @property
    def total(self) -> float:
        """All bytes on the device."""
        return self.state + self.saved + self.workspace


def abstract_stage_programs(
    config: ModelConfig, plan: Plan, batch_spec: BatchSpec, devices: Sequence[Any], attention: str
) -> dict[StageId, Any]:
    """The programs of every stage of a plan in which everything trains; nothing is placed on a device.

    Args:
        config: The model.
        plan: The placement of its modules.
        batch_spec: Shapes of a global batch.
        devices: The devices, or descriptions of devices.
        attention: Implementation of attention; empty for the one that suits shapes and the default device.
    """
    graph = module_graph(config)
    resolved = ResolvedPlan(plan, graph, trained_parts(graph, ("all",)))
    with use_attention_implementation(attention):
        step = abstract_step(config, resolved, batch_spec, devices, len(devices), OptimizerConfig())
    return {stage_id: stage.executable.programs for stage_id, stage in step.stages.items()}


def compiled_bytes(programs: StagePrograms, attention: str, optimizer_replicas: int) -> StageBytes:
    """Bytes of a stage, its forward and its backward compiled.

    Described devices have no memory spaces by which residuals were told apart: what is offloaded is what the forward
    puts out in host memory.

    Args:
        programs: The stage's programs.
        attention: As in `abstract_stage_programs`.
        optimizer_replicas: Replicas that divide the master weights and the optimizer state.
    """
    with use_attention_implementation(attention):
        *_, forward, backward = stage_calls((programs,)).calls
        analyses = [call.program.lower(*call.arguments).compile().memory_analysis() for call in (forward, backward)]
    weights, *_, residuals, _, gradients = backward.arguments
    elements = sum(device_bytes(leaf) // leaf.dtype.itemsize for leaf in jax.tree.leaves(weights))
    state = device_bytes((weights, gradients))
    offloaded = analyses[0].host_output_size_in_bytes
    return StageBytes(
        state=state + OptimizerMemory().state_bytes(elements, elements) / optimizer_replicas,
        saved=device_bytes(residuals) - offloaded,
        offloaded=offloaded,
        workspace=max(analysis.temp_size_in_bytes for analysis in analyses),
    )
