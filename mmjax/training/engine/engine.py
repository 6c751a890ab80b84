"""The engine: a model on a plan. It places batches, makes states, and has the executor that runs a step.

`TrainingRun` has one, and so has every layout that is verified and every plan that is timed.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.architectures import ModelConfig
from configs.clusters import cluster_of_device_kind
from data.packing.batch_requirements import BatchRequirements
from data.packing.batch_spec import BatchSpec
from data.packing.dealt_phases import plan_phase_rows
from data.packing.global_batch import GlobalBatch
from data.packing.phases.phase_rows import PhaseRows
from mmjax.models.model import model_modules
from mmjax.models.structure.parameters import place_host_array
from mmjax.training.engine.build import build_executor, place_hyperparameters, plan_devices
from mmjax.training.engine.exchanges import BatchTables, Exchanges
from mmjax.training.engine.optimizers.layer_optimizer import LayerOptimizer
from mmjax.training.engine.optimizers.optimizer import (
    abstract_optimizer_state,
    init_stage,
    stage_optimizer_shardings,
)
from mmjax.training.engine.optimizers.part_optimizers import make_part_optimizers
from mmjax.training.engine.placement import (
    PlacedStage,
    check_host_memory,
    check_sequence_parallelism,
    place_stages,
)
from mmjax.training.engine.replica_rows import place_rows, rows_of_devices
from mmjax.training.engine.settings import EngineSettings
from mmjax.weights.initialization import ParameterInitializer, SeedInitializer
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.plans.resolved.stage_graph import StageId
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.runtime.global_reduction import StepSummary
from sharding.runtime.pipeline import PlacedBatch, TrainState
from sharding.runtime.stages.definition import Microbatches
from sharding.runtime.stages.named_programs import named_jit
from sharding.schedules.named.build import build_schedule
from sharding.schedules.ops import OpGraph, Schedule
from sharding.specs.modules import module_graph
from sharding.trees import Tree

HostBatch = Mapping[str, Mapping[str, np.ndarray]]
"""`{module: {name: [n, ...]}}`: the arrays of a global batch of n rows."""


class Engine:
    """A model on a plan: its meshes, shardings and compiled programs. Training changes only a `TrainState`.

    Args:
        config: The model.
        plan: The placement of its modules; checked here.
        batch_spec: Shapes and dtypes of a global batch. Arrays are accepted too; only their shapes and dtypes are read.
        settings: The optimizer, which parts train, and the transport of hops.
        devices: The devices that the plan's numbers index; all by default.

    Raises:
        PlanError: The plan cannot hold this model, or this batch.
        UserError: `settings.trainable`, or the optimizer's settings, name a part that the model does not have.
        DataError: `settings.quadratic_cost_weights` has the field of an encoder without rows of its own.
    """

    def __init__(
        self,
        config: ModelConfig,
        plan: Plan,
        batch_spec: BatchSpec,
        settings: EngineSettings,
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        self.config, self.plan, self.settings = config, plan, settings
        self.devices = list(devices or jax.devices())
        self.graph = module_graph(config)
        trained = trained_parts(self.graph, settings.trainable)
        self.resolved = resolve_plan(plan, self.graph, len(self.devices), _row_count(batch_spec), trained)
        self.modules = model_modules(config)
        state_memory = settings.optimizer.state_memory
        check_host_memory(plan, self.devices, state_memory)
        self.stages: dict[StageId, PlacedStage] = place_stages(
            config, self.modules, self.resolved, self.devices, state_memory
        )
        cluster = cluster_of_device_kind(self.devices[0].device_kind)
        per_node = cluster.devices_per_node if cluster else len(self.devices)
        self.dealt_phases = plan_phase_rows(plan, config, batch_spec, per_node, settings.quadratic_cost_weights)
        batch_spec = self.dealt_phases.batch_spec(batch_spec)
        check_sequence_parallelism(plan, self.modules, batch_spec, self.phases)
        self._trained_parts, self.optimizer = trained, LayerOptimizer(settings.optimizer.algorithm)
        self.part_optimizers = make_part_optimizers(settings.optimizer, self.graph, trained, settings.steps)
        self.executor = build_executor(
            self.resolved,
            self.stages,
            batch_spec,
            self.optimizer,
            self.part_optimizers.hyperparameters(self.modules),
            settings.transport,
            self.devices,
            self.phases,
        )

    def with_settings(self, settings: EngineSettings) -> "Engine":
        """Returns an engine of the same compiled programs, whose arguments come from other settings.

        Args:
            settings: They differ in nothing that programs depend on (`EngineSettings.of_programs`).

        Raises:
            UserError: The optimizer's settings name a part that the model does not have.
        """
        if settings.of_programs != self.settings.of_programs:
            raise ValueError(f"programs of {self.settings.of_programs} do not serve for {settings.of_programs}")
        engine = copy.copy(self)
        engine.settings, engine.optimizer_init = settings, self.optimizer_init
        engine.part_optimizers = make_part_optimizers(
            settings.optimizer, self.graph, self._trained_parts, settings.steps
        )
        engine.executor = self.executor.with_hyperparameters(
            place_hyperparameters(
                engine.part_optimizers.hyperparameters(self.modules), self.stages, self.executor.global_reduction
            )
        )
        return engine

    @functools.cached_property
    def exchanges(self) -> Exchanges:
        """The hops between the backbone and modules with rows of their own."""
        return Exchanges(self.executor, self.dealt_phases)

    @functools.cached_property
    def schedule(self) -> Schedule:
        """The order of a training step's ops on all devices; the plan's order until `set_schedule` sets another."""
        graph = self.executor.training_schedule.op_graph
        return build_schedule(self.resolved, graph.trained_stages, graph.tied_stages)

    def set_schedule(self, schedule: Schedule) -> None:
        """Runs the next training steps in another order of the same ops; all processes do so at the same step.

        Args:
            schedule: The order of all devices, with the same bundles, whose programs are compiled.
        """
        process = jax.process_index()
        local = [number for number, device in enumerate(self.devices) if device.process_index == process]
        self.schedule, self.executor.training_schedule = schedule, schedule.restricted_to(local)

    @property
    def _op_graph(self) -> OpGraph:
        return self.executor.training_schedule.op_graph

    @property
    def phases(self) -> Mapping[str, PhaseRows]:
        """The modules with rows of their own."""
        return self.dealt_phases.phases

    @property
    def plan_devices(self) -> list[jax.Device]:
        """The devices of the plan, each once."""
        return plan_devices(self.plan, self.devices)

    @property
    def local_stages(self) -> dict[StageId, PlacedStage]:
        """The stages of which this process has devices."""
        return {stage_id: stage for stage_id, stage in self.stages.items() if self.executor.stages[stage_id].is_local}

    def losses_by_name(self, summary: StepSummary) -> dict[str, float]:
        """Returns a step's losses by name, of all stages together; waits for the step."""
        names = [name for _, name in self.executor.global_reduction.loss_order]
        losses = dict.fromkeys(names, 0.0)
        for name, loss in zip(names, np.asarray(summary.losses), strict=True):
            losses[name] += float(loss)
        return losses

    # ------------------------------------------------------------------ batches

    def batch_requirements(self, rows: int) -> BatchRequirements:
        """Returns what this process needs of global batches of `rows` rows: its stages' rows, and tables made ahead."""
        local = [device for device in self.devices if device.process_index == jax.process_index()]
        needed = rows_of_devices(self.stages, self._op_graph, self.phases, rows, frozenset(local))
        return BatchRequirements(needed, self.dealt_phases, self.prepare) if self.phases else BatchRequirements(needed)

    def prepare(self, batch: GlobalBatch) -> GlobalBatch:
        """Adds the tables of exchanges to a batch, ahead of its step and in any thread."""
        arrays = self.dealt_phases.deal(batch.arrays)
        return dataclasses.replace(batch, arrays=arrays, exchange_tables=self.exchanges.tables(arrays))

    def place_batch(self, batch: HostBatch, step: int, tables: BatchTables | None = None) -> PlacedBatch:
        """Places the arrays of a global batch on the stages of this process that read them.

        Where modules have rows of their own, their items are dealt over these first, if they are not yet.

        Args:
            batch: The arrays; row i belongs to microbatch i // (n / m).
            step: Number of the step; its randomness is derived from the seed and this number.
            tables: Tables of `prepare`, which has dealt or checked the batch; without them it is done here.
        """
        if not tables:
            batch = self.dealt_phases.deal(batch)
            tables = self.exchanges.tables(batch)
        seed_and_step = np.array([self.settings.seed, step], np.int32)
        capacities = self.dealt_phases.capacities(batch)
        return PlacedBatch(
            {
                (stage_id, pipeline_replica): self._place_microbatches(batch, seed_and_step, stage_id, pipeline_replica)
                for stage_id in self.local_stages
                for pipeline_replica, programs in enumerate(self.executor.stages[stage_id].pipeline_replicas)
                if programs.is_local
            },
            self.exchanges.place(tables),
            {self.plan.unit_of(module).name: numbers for module, numbers in capacities.items()},
        )

    def _place_microbatches(
        self, batch: HostBatch, seed_and_step: np.ndarray, stage_id: StageId, pipeline_replica: int
    ) -> Microbatches:
        """Places the arrays that a stage reads, of the microbatches that a pipeline replica of its unit takes."""
        stage, microbatches = self.stages[stage_id], self.plan.microbatches
        taken = self._op_graph.stage_graph.microbatches_of(stage_id[0], pipeline_replica, microbatches)

        def place(module: str, name: str) -> jax.Array:
            array = batch[module][name]
            by_microbatch = array.reshape(microbatches, -1, *array.shape[1:])  # [n, ...] -> [m, n / m, ...]
            return place_rows(by_microbatch, taken, stage.rows_sharding(module, pipeline_replica))

        names = self.executor.stages[stage_id].programs.batch_shapes.arrays
        arrays = {module: {name: place(module, name) for name in array_names} for module, array_names in names.items()}
        replicated = NamedSharding(stage.meshes.by_pipeline_replica[pipeline_replica], P())
        return Microbatches(arrays, place_host_array(seed_and_step, replicated))

    # ------------------------------------------------------------------ states

    def initial_state(self, initializer: ParameterInitializer | None = None) -> TrainState:
        """Makes initial master weights, the same on every plan, and zero moments, each array on its own devices.

        Args:
            initializer: Makes the initial weights; by default from the seed of the settings.
        """
        initializer = initializer or SeedInitializer(self.settings.seed)
        return self.state_from_masters(
            {stage_id: _initial_masters(stage, initializer) for stage_id, stage in self.local_stages.items()}
        )

    def state_from_masters(self, masters: dict[StageId, Tree]) -> TrainState:
        """Makes a training state of given master weights, with the optimizer state before the first step."""
        optimizer_state = {
            stage_id: self.optimizer_init[stage_id](
                {key: tree[key] for key in sorted(self.stages[stage_id].trained_keys)}
            )
            for stage_id, tree in masters.items()
            if self.stages[stage_id].trained_keys
        }
        return TrainState(masters, optimizer_state, self.executor.global_reduction.initial_flag())

    @functools.cached_property
    def optimizer_init(self) -> dict[StageId, Callable[[Tree], Tree]]:
        """Programs from the trained master weights of a stage to its optimizer state; compiled once."""
        return {
            stage_id: named_jit(
                functools.partial(init_stage, self.optimizer),
                stage_id,
                "optimizer_init",
                out_shardings=self.optimizer_shardings(stage_id),
            )
            for stage_id, stage in self.stages.items()
            if stage.trained_keys
        }

    def abstract_optimizer_state(self, stage_id: StageId) -> Tree:
        """Shape, type and sharding of a stage's optimizer state, of the keys that train: `{key: {layer: ...}}`."""
        stage = self.stages[stage_id]
        return abstract_optimizer_state(self.optimizer, stage.master_weights, stage.trained_keys)

    def optimizer_shardings(self, stage_id: StageId) -> Tree:
        """Shardings of a stage's optimizer state: `{key: {layer: ...}}`."""
        stage = self.stages[stage_id]
        return stage_optimizer_shardings(self.optimizer, stage.master_weights, stage.trained_keys)


def _row_count(batch_spec: BatchSpec) -> int:
    arrays = next(iter(batch_spec.values()))
    return next(iter(arrays.values())).shape[0]


def _initial_masters(stage: PlacedStage, initializer: ParameterInitializer) -> Tree:
    shardings = stage.master_weights.shardings
    return {
        run.parameter_key: {
            name: initializer.init_layer(run.module, run.piece, layer, shardings[run.parameter_key][name])
            for name, layer in zip(run.layers, range(run.first, run.last), strict=True)
        }
        for run in stage.layout.piece_runs
    }
