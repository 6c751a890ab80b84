"""The stages of a plan on described devices, with the calls of their programs; nothing is placed on a device.

The engine builds the same stages on devices that are here (`mmjax.training.engine.build`).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.architectures import ModelConfig
from configs.optimizer import OptimizerConfig
from data.packing.batch_spec import BatchSpec
from data.packing.dealt_phases import plan_phase_rows
from data.packing.phases.phase_rows import PhaseRows
from mmjax.models.model import model_modules
from mmjax.training.engine.build import build_stage_programs, executable_stage
from mmjax.training.engine.channels import find_channels, find_exchanges
from mmjax.training.engine.compilation import once_per_step_calls
from mmjax.training.engine.optimizers.hyperparameters import Hyperparameters
from mmjax.training.engine.optimizers.layer_optimizer import LayerOptimizer
from mmjax.training.engine.placement import PlacedStage, check_sequence_parallelism, place_stages
from mmjax.training.engine.tied_parameters import find_tied_parameters
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.pipeline import ExecutableStage
from sharding.runtime.stages.compilation import ProgramCall, StageCalls, stage_calls
from sharding.schedules.named.build import build_schedule
from sharding.schedules.ops import Schedule
from sharding.trees import Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class AbstractStage:
    """A stage of a plan on described devices.

    Attributes:
        placed: Its layers, meshes and master weights.
        executable: Its programs.
        optimizer: The optimizer of a layer.
    """

    placed: PlacedStage
    executable: ExecutableStage
    optimizer: LayerOptimizer

    def microbatch_calls(self, pipeline_replica: int = 0) -> list[ProgramCall]:
        """The programs of a microbatch of a pipeline replica, for every capacity of its rows."""
        calls = stage_calls(self.executable.pipeline_replicas[pipeline_replica].by_capacity).calls
        return [call for call in calls if call.arguments]  # without the ones that make zeros

    @functools.cached_property
    def step_calls(self) -> list[ProgramCall]:
        """The programs that run once a step."""
        losses, gradients = self.executable.joined_shapes(self._of_first.losses, self._of_first.gradients)
        return once_per_step_calls(
            self.placed, self.executable, self.optimizer, self._hyperparameters, losses, gradients
        )

    @functools.cached_property
    def gradients(self) -> Tree | None:
        """Abstract unreduced gradients of a pipeline replica; None without a backward."""
        return self._of_first.gradients

    @functools.cached_property
    def _of_first(self) -> StageCalls:
        return stage_calls(self.executable.pipeline_replicas[0].by_capacity)

    @property
    def _hyperparameters(self) -> jax.ShapeDtypeStruct:
        shape = (len(self.placed.trained_keys), len(Hyperparameters._fields))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(self.placed.mesh, P()))


@dataclasses.dataclass(frozen=True)
class AbstractStep:
    """The training step of a plan on described devices.

    Attributes:
        stages: Its stages.
        schedule: The order of its ops.
        phases: The modules with rows of their own.
    """

    stages: Mapping[StageId, AbstractStage]
    schedule: Schedule
    phases: Mapping[str, PhaseRows]


def abstract_step(
    config: ModelConfig,
    resolved: ResolvedPlan,
    batch_spec: BatchSpec,
    devices: Sequence[Any],
    devices_per_node: int,
    optimizer: OptimizerConfig,
) -> AbstractStep:
    """Builds the stages of a plan.

    Args:
        config: The model.
        resolved: The plan.
        batch_spec: Shapes of a global batch.
        devices: Descriptions of the devices that the plan's numbers index.
        devices_per_node: Devices of a node.
        optimizer: The optimizer, whose updates run once a step.

    Raises:
        PlanError: The plan cannot hold the batch.
    """
    plan, backbone = resolved.plan, resolved.graph.backbone.name
    modules = model_modules(config)
    placed = place_stages(config, modules, resolved, devices, optimizer.state_memory)
    dealt = plan_phase_rows(plan, config, batch_spec, devices_per_node)
    batch_spec = dealt.batch_spec(batch_spec)
    check_sequence_parallelism(plan, modules, batch_spec, dealt.phases)
    channels = find_channels(placed)
    tied = tuple(dict.fromkeys((parameter.owner, parameter.borrower) for parameter in find_tied_parameters(placed)))
    trained = frozenset(stage_id for stage_id, stage in placed.items() if stage.trained_keys)
    schedule = build_schedule(resolved, trained, tied)
    rows = batch_spec[backbone]["tokens"].shape[0] // plan.microbatches
    exchanges = find_exchanges(dealt.phases, backbone, rows)
    programs = build_stage_programs(placed, channels, batch_spec, schedule.op_graph, dealt.phases, exchanges)
    of_layer = LayerOptimizer(optimizer.algorithm)
    stages = {
        stage_id: AbstractStage(
            placed=stage,
            executable=executable_stage(stage, programs[stage_id], of_layer),
            optimizer=of_layer,
        )
        for stage_id, stage in placed.items()
    }
    return AbstractStep(stages, schedule, dealt.phases)
