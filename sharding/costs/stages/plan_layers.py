"""The layers of a plan's stages: which they are, who computes them, and what each costs alone.

`PlanLayers` is the base class of the computations of `plan_costs.py` and `plan_work.py`.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from sharding.costs.batch_costs import BatchCosts, LayerCosts
from sharding.costs.cost_model import LayerParallelism
from sharding.costs.node_placement import NodePlacement, ParameterRanks, parameter_ranks
from sharding.costs.stages.hop_costs import HopCosts
from sharding.costs.stages.once_per_step import OncePerStep, once_per_step
from sharding.costs.stages.sharded_weights import NO_EXCHANGE, WeightExchange, weight_exchange
from sharding.costs.stages.stage_parameters import LayersOfStage, layer_key, module_parallelism
from sharding.plans.device_numbers import device_array
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageGraph, StageId
from sharding.plans.resolved.trained_parts import RequiredGradients
from sharding.plans.text.recompute_text import policy_runs
from sharding.plans.unit_layers import LayerRun, program_layers
from sharding.plans.unit_plan import UnitPlan

T = TypeVar("T", bound="PlanLayers")


class PlanLayers:
    """The layers of a plan's stages.

    Args:
        units: The plan's units.
        layers: The runs of layers of their stages.
        microbatches: Microbatches of a step.
        batch: Costs of the layers for the rows of a global batch.
        required: The gradients that every layer computes.
        stages: The plan's stages.

    Attributes:
        stages: The plan's stages; empty where the layers of one unit alone are asked for.
        hops: Costs of its hops.
    """

    def __init__(
        self,
        units: Sequence[UnitPlan],
        layers: Mapping[StageId, tuple[LayerRun, ...]],
        microbatches: int,
        batch: BatchCosts,
        required: RequiredGradients,
        stages: StageGraph,
    ) -> None:
        self._microbatches, self._batch, self.stages = microbatches, batch, stages
        self._graph, self._costs = batch.graph, batch.costs
        self._units = {unit.name: unit for unit in units}
        self._runs = layers
        self._required = required
        self.hops = HopCosts(units, layers, microbatches, batch, stages)

    @classmethod
    def of_plan(cls: type[T], resolved: ResolvedPlan, batch: BatchCosts) -> T:
        """Builds the layers of a whole plan."""
        plan = resolved.plan
        return cls(plan.units, resolved.layers, plan.microbatches, batch, resolved.required_gradients, resolved.stages)

    @classmethod
    def of_unit(cls: type[T], unit: UnitPlan, microbatches: int, batch: BatchCosts, trained_parts: frozenset[str]) -> T:
        """Builds the layers of one unit, wherever the others are."""
        required = RequiredGradients(batch.graph, trained_parts)
        layers = program_layers((unit,), batch.graph)
        return cls((unit,), layers, microbatches, batch, required, StageGraph({}, ()))

    def _layers(self, stage: StageId) -> tuple[LayersOfStage, ...]:
        """The layers of a stage.

        Leading layers of a module have the policy of its first layer on the stage, trailing layers of its last.
        """
        unit = self._units[stage[0]]
        policies = unit.program_recompute(stage[1])
        layers: list[LayersOfStage] = []
        for module, first, last in self._runs[stage]:
            ranks, start = module_parallelism(unit, module), first
            run_policies, policies = policies[: last - first], policies[last - first :]
            for policy, count in policy_runs(run_policies):
                end = start + count
                layers += [
                    LayersOfStage(module, *layer_gradients, policy, ranks)
                    for layer_gradients in self._required.of_layers(module, start, end)
                ]
                start = end
        return tuple(layers)

    def _layer_costs(self, run: LayersOfStage) -> LayerCosts:
        own_rows, microbatches = self.hops.own_rows(run.module), self._microbatches
        return self._batch.layer(
            run.module, run.layer.name, run.count, run.gradients, run.ranks, run.recompute, microbatches, own_rows
        )

    def _weight_exchanges(
        self, layers: tuple[LayersOfStage, ...], unit: UnitPlan, number: int
    ) -> tuple[WeightExchange, ...]:
        """Seconds of the collectives of each layer whenever it computes; none where replicas have whole weights."""
        if unit.parallelism.fsdp == 1:
            return (NO_EXCHANGE,) * len(layers)
        parts = {run.module: self._parameter_ranks(unit, number, run.ranks).parts for run in layers}
        return tuple(weight_exchange(run, parts[run.module], self._costs) for run in layers)

    def _stage_key(
        self, layers: tuple[LayersOfStage, ...], exchanges: tuple[WeightExchange, ...], unit: UnitPlan
    ) -> tuple:
        """Everything that the costs of a stage's layers depend on, whatever plan the unit belongs to."""
        own_rows = tuple(self.hops.own_rows(module) for module in unit.modules)
        taken_by = unit.schedule_hints.replica_of_microbatch
        trained = self._required.trained_parts
        return (layer_key(layers), exchanges, unit.parallelism, taken_by, self._microbatches, own_rows, trained)

    def _parameter_ranks(self, unit: UnitPlan, number: int, ranks: LayerParallelism) -> ParameterRanks:
        devices, tp = unit.stage_devices(number), ranks.tp
        if unit.is_compiled:  # pipeline ranks hold different parameters, as tensor ranks do
            by_pipeline_rank = device_array(unit.devices).reshape(unit.pp, -1, unit.parallelism.tp)
            devices, tp = by_pipeline_rank.swapaxes(0, 1).ravel().tolist(), unit.pp * unit.parallelism.tp
        dp, per_node = unit.parallelism.pipeline_replicas * ranks.dp, self._costs.devices_per_node
        return parameter_ranks(devices, per_node, dp=dp, cp=ranks.cp, tp=tp, ep=ranks.ep, fsdp=ranks.fsdp)

    def _once_per_step(self, unit: UnitPlan, number: int, layers: tuple[LayersOfStage, ...]) -> OncePerStep:
        def placed(ranks: LayerParallelism) -> tuple[NodePlacement, ...]:
            return self._parameter_ranks(unit, number, ranks).same

        return once_per_step(layers, unit.parallelism.pipeline_replicas, placed, self._costs)
