"""A pipeline on devices: its stages, what passes between them, and the state that training changes.

The engine builds these records once; the executor reads them in every step.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax

from configs.common.short_repr import short_repr
from sharding.plans.resolved.stage_graph import StageId, StageReplica
from sharding.runtime.exchange.exchange_hop import ExchangeHop, PlacedTables
from sharding.runtime.hops import Hop
from sharding.runtime.replica_meshes import ReplicaMeshes, is_local_mesh
from sharding.runtime.stages.definition import Microbatches
from sharding.runtime.stages.mesh_programs import MeshPrograms
from sharding.trees import Tree


@dataclasses.dataclass(frozen=True)
class ReplicaPrograms:
    """The programs of one stage that run for the microbatches of one pipeline replica, all jitted on its submesh.

    Attributes:
        by_capacity: Forward, backward (or dgrad and wgrad) and evaluation, for each capacity of the stage's rows,
            ascending; or the programs of a whole pipeline, whose rows have one capacity.
    """

    by_capacity: tuple[MeshPrograms, ...]

    @property
    def largest(self) -> MeshPrograms:
        """The programs for rows of the largest capacity."""
        return self.by_capacity[-1]

    @functools.cached_property
    def is_local(self) -> bool:
        """Whether this process has devices of the pipeline replica."""
        return is_local_mesh(self.largest.mesh)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutableStage:
    """The programs of one stage; programs that run once a step are jitted on the mesh of all pipeline replicas.

    Attributes:
        meshes: The meshes of the stage.
        pipeline_replicas: The programs of each pipeline replica.
        gather: Master weights to compute weights.
        reduce: Unreduced gradients to gradients shaped and sharded like the master weights; None where nothing trains.
        loss_and_norm: `(reduced gradients or {}, losses by name, [replicas] each) -> [1, 1 + losses]`: the squared norm
            of the gradients, then the losses.
        update: `(master weights, optimizer state, gradients, decision, hyperparameters) -> (master weights, optimizer
            state)`, by `StepSummary.decision` and `PlacedHyperparameters.by_stage`, of the keys that train; None where
            nothing trains.
    """

    meshes: ReplicaMeshes
    pipeline_replicas: tuple[ReplicaPrograms, ...]
    gather: Callable[[Tree], Tree]
    reduce: Callable[[Tree], Tree] | None
    loss_and_norm: Callable[[Tree, dict[str, jax.Array]], jax.Array]
    update: Callable[[Tree, Tree, Tree, jax.Array, jax.Array], tuple[Tree, Tree]] | None

    @property
    def programs(self) -> MeshPrograms:
        """The programs of the first pipeline replica for rows of the largest capacity.

        What depends on neither is the same for all.
        """
        return self.pipeline_replicas[0].largest

    @functools.cached_property
    def is_local(self) -> bool:
        """Whether this process has devices of the stage, in some pipeline replica."""
        return is_local_mesh(self.meshes.all_pipeline_replicas)

    def zero_losses(self) -> list[dict[str, jax.Array] | None]:
        """Losses of zero of each pipeline replica; None for a pipeline replica without devices of this process."""
        return [
            pipeline_replica.largest.zero_losses() if pipeline_replica.is_local else None
            for pipeline_replica in self.pipeline_replicas
        ]

    def join_losses(self, by_pipeline_replica: Sequence[dict[str, jax.Array] | None]) -> dict[str, jax.Array]:
        """The losses of all pipeline replicas, `[pipeline replicas * replicas]` by name."""
        return self.meshes.join(by_pipeline_replica, self.programs.loss_specs)

    def join_gradients(self, by_pipeline_replica: Sequence[Tree | None]) -> Tree:
        """The unreduced gradients of all pipeline replicas, `[pipeline replicas * replicas, ...]`."""
        return self.meshes.join(by_pipeline_replica, self.programs.gradient_specs)

    def joined_shapes(self, losses: Tree, gradients: Tree | None) -> tuple[Tree, Tree | None]:
        """Returns abstract losses and gradients of all pipeline replicas, given the ones of one pipeline replica.

        Gradients are None without a backward.
        """
        joined_losses = self.meshes.joined_shapes(losses, self.programs.loss_specs)
        if gradients is None:
            return joined_losses, None
        return joined_losses, self.meshes.joined_shapes(gradients, self.programs.gradient_specs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Channel:
    """Activations from one stage to another, and the hops that carry them forward and their gradients back.

    Exchange hops where the rows of the two stages hold different items.

    Attributes:
        name: Name of the channel.
        source, target: The stages.
        source_replica, target_replica: The pipeline replicas of their units that the hops join. There is a record for
            each pair that takes the same microbatch.
        activation_hop, gradient_hop: The hops.
        capacity: The number of the capacity, of the unit with rows of its own at either end, that the hops are for; 0
            without such a unit. There is a record for each.
    """

    name: str
    source: StageId
    target: StageId
    activation_hop: Hop | ExchangeHop
    gradient_hop: Hop | ExchangeHop
    source_replica: int = 0
    target_replica: int = 0
    capacity: int = 0


@dataclasses.dataclass(frozen=True)
class ExchangeMicrobatch:
    """The tables of both directions of an exchange hop, for one microbatch."""

    activation_tables: PlacedTables | None = None
    gradient_tables: PlacedTables | None = None


@dataclasses.dataclass(frozen=True)
class PlacedBatch:
    """A global batch on the devices of this process.

    Attributes:
        stages: By stage and pipeline replica of its unit, the arrays that the stage reads, of the microbatches that the
            pipeline replica takes.
        exchanges: By channel with an exchange hop, the tables of each microbatch.
        capacities: By unit with rows of its own, the number of the capacity with which each microbatch runs there; None
            for one without items, which does not.
    """

    stages: Mapping[StageReplica, Microbatches]
    exchanges: Mapping[str, Sequence[ExchangeMicrobatch]] = dataclasses.field(default_factory=dict)
    capacities: Mapping[str, tuple[int | None, ...]] = dataclasses.field(default_factory=dict)

    __repr__ = short_repr

    def capacity(self, microbatch: int, *units: str) -> int | None:
        """The number of the capacity with which a microbatch runs in, or between, units; None if it does not.

        At most one of them has rows of its own; without such a unit it is 0.
        """
        return next((self.capacities[unit][microbatch] for unit in units if unit in self.capacities), 0)

    def exchange(self, channel: str, microbatch: int) -> ExchangeMicrobatch:
        """Returns the tables of a microbatch in a channel; without tables where the hops are no exchanges."""
        exchanges = self.exchanges.get(channel)
        return exchanges[microbatch] if exchanges else ExchangeMicrobatch()


jax.tree_util.register_dataclass(ExchangeMicrobatch, ["activation_tables", "gradient_tables"], [])
jax.tree_util.register_dataclass(PlacedBatch, ["stages", "exchanges"], ["capacities"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class TiedParameter:
    """A parameter of one stage that another stage computes with too (tied embeddings).

    Attributes:
        owner, borrower: The stage that has the master weight, and the other one.
        owner_path, borrower_path: (key, path) of the parameter in either stage's parameters.
        owner_layer: Name of the owner's layer that holds it.
        weight_hop: Carries the compute weight to the borrower.
        gradient_hop: Carries the borrower's reduced gradient to the owner.
    """

    owner: StageId
    borrower: StageId
    owner_path: tuple[str, str]
    borrower_path: tuple[str, str]
    owner_layer: str
    weight_hop: Hop
    gradient_hop: Hop


@dataclasses.dataclass(frozen=True)
class PlacedHyperparameters:
    """The numbers of a run that its programs take as arguments, the same in every step.

    Attributes:
        max_norm: Global norm above which gradients are scaled down, on all devices of the plan.
        by_stage: Arguments of the update of each stage of this process, on the stage's mesh.
    """

    max_norm: jax.Array
    by_stage: Mapping[StageId, jax.Array]


@dataclasses.dataclass
class TrainState:
    """The state that training changes.

    Attributes:
        master_weights: By stage, key and layer.
        optimizer_state: By stage, key and layer, for the trained layers.
        all_finite: 1.0 while all losses and gradients were finite (`StepSummary.all_finite`).
    """

    master_weights: dict[StageId, Tree]
    optimizer_state: dict[StageId, Tree]
    all_finite: jax.Array

    __repr__ = short_repr
