"""A plan laid out for a model: its layers, stages, devices and gradients, derived here alone for all that reads plans.

`resolve_plan` refuses a plan that cannot run. Costs, schedules, reorderings, planners and engines take what it returns.
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from sharding.plans.plan import Plan, check_layout, check_rows
from sharding.plans.resolved.device_groups import replica_devices
from sharding.plans.resolved.stage_graph import StageGraph, StageId, stage_graph
from sharding.plans.resolved.trained_parts import RequiredGradients
from sharding.plans.unit_layers import LayerRun, program_layers
from sharding.specs.modules import ModuleGraph


@dataclasses.dataclass(frozen=True, eq=False)
class ResolvedPlan:
    """A plan laid out for a model.

    Attributes:
        plan: The plan.
        graph: The model's modules.
        trained_parts: Names of the parts that train.
    """

    plan: Plan
    graph: ModuleGraph
    trained_parts: frozenset[str] = frozenset()

    def with_plan(self, plan: Plan) -> "ResolvedPlan":
        """Returns another plan laid out for the same model."""
        return dataclasses.replace(self, plan=plan)

    @functools.cached_property
    def layers(self) -> Mapping[StageId, tuple[LayerRun, ...]]:
        """The runs of layers of every stage with programs of its own, in chain order.

        Raises PlanError if the layers of a unit do not add up to its modules' layers.
        """
        return program_layers(self.plan.units, self.graph)

    @functools.cached_property
    def stages(self) -> StageGraph:
        """The stages and the edges between them. Raises PlanError if stages feed each other in a cycle."""
        return stage_graph(self.plan, self.graph, self.layers)

    @functools.cached_property
    def devices(self) -> Mapping[StageId, Int[np.ndarray, "_ _"]]:
        """The devices of every stage as [pipeline replicas * replicas, ranks of a replica]."""
        return replica_devices(self.plan, self.stages.stages)

    @functools.cached_property
    def required_gradients(self) -> RequiredGradients:
        """The gradients that the backward of every layer computes."""
        return RequiredGradients(self.graph, self.trained_parts)

    @functools.cached_property
    def trained_stages(self) -> frozenset[StageId]:
        """Stages that hold a layer of a part that trains."""
        return frozenset(
            stage
            for stage, runs in self.layers.items()
            for run in runs
            if any(
                layer.part in self.trained_parts
                for layer, _ in self.graph[run.module].layers_between(run.first, run.last)
            )
        )


def resolve_plan(
    plan: Plan, graph: ModuleGraph, devices: int, rows: int | None = None, trained_parts: frozenset[str] = frozenset()
) -> ResolvedPlan:
    """Resolves a plan for a model, and refuses a plan that cannot run.

    Args:
        plan: The plan.
        graph: The model's modules.
        devices: Number of devices there are.
        rows: Rows of the global batch; None where no batch is known, and any number is accepted.
        trained_parts: Names of the parts that train.

    Raises:
        PlanError: The plan cannot run; the message names the unit at fault and the remedy.
    """
    check_layout(plan, graph, devices)
    if rows is not None:
        check_rows(plan, rows)
    resolved = ResolvedPlan(plan, graph, trained_parts)
    _ = resolved.stages  # made now, so that stages that feed each other in a cycle are refused here
    return resolved
