"""A plan's costs from those of its layers: what every op of a step takes, for given rows of the global batch."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.costs.batch_costs import BatchCosts
from sharding.costs.cost_model import LayerParallelism, LayerSeconds
from sharding.costs.memory import train_state_bytes
from sharding.costs.step_costs import PER_MICROBATCH, StageCosts, StepCosts
from sharding.plans.device_groups import source_replicas
from sharding.plans.plan import Plan
from sharding.plans.stage_graph import StageGraph, StageId, stage_graph
from sharding.plans.trained_parts import Gradient, RequiredGradients, trained_stages
from sharding.plans.unit_plan import UnitPlan, stage_layers
from sharding.specs.layer import ZERO, LayerSpec, LoadColumn, PerLoad, RecomputePolicy


def plan_costs(plan: Plan, batch: BatchCosts, trained_parts: frozenset[str]) -> StepCosts:
    """Costs of every op of a step.

    Args:
        plan: The plan.
        batch: Costs of the layers for the rows of a global batch.
        trained_parts: Parts that train.
    """
    graph = batch.graph
    stages = stage_graph(plan, graph)
    backward_stages = stages.with_descendants(trained_stages(plan, graph, trained_parts))
    builder = _PlanCosts(plan, batch, RequiredGradients(graph, trained_parts), stages)
    return StepCosts(
        stages={stage: builder.stage(stage) for stage in stages.stages},
        hops={(source, target): builder.hop(source, target) for source, target in stages.edges},
        hops_back={
            (source, target): builder.hop(source, target, back=True)
            for source, target in stages.edges
            if source in backward_stages
        },
        peak_flops=batch.costs.peak_flops,
        tokens=float(batch.rows[graph.backbone.name][:, LoadColumn.TOKENS].sum()),
        norm=batch.costs.gradient_norm(len(stages.stages)),
    )


def _parallelism(unit: UnitPlan) -> LayerParallelism:
    return LayerParallelism(unit.tp, unit.cp, unit.ep, unit.dp, unit.collectives)


def _wait_for_slowest(seconds: LayerSeconds, ep: int) -> LayerSeconds:
    """Seconds [m, i] of a layer with experts: replicas that exchange tokens wait for the slowest of them."""
    total = np.asarray(seconds.total)
    slowest = total.reshape(len(total), -1, ep).max(axis=2)
    return LayerSeconds(seconds.compute, seconds.communication + np.repeat(slowest, ep, axis=1) - total)


def _total_seconds(
    seconds: Callable[[float, int], float], parameters: Float[np.ndarray, " 2"], ranks: Sequence[int]
) -> float:
    """Sum of `seconds(parameters, ranks that hold the same)` over all parameters but experts', and experts'."""
    return sum(
        (seconds(size, count) for size, count in zip(parameters.tolist(), ranks, strict=True) if size), start=0.0
    )


class _LayersOfStage(NamedTuple):
    """Equal layers of a stage.

    Attributes:
        module: Their module.
        layer: One of them.
        count: How many there are.
        gradients: What their backward computes.
    """

    module: str
    layer: LayerSpec
    count: int
    gradients: tuple[Gradient, ...]


class _PlanCosts:
    """Costs of a plan's stages and hops."""

    def __init__(self, plan: Plan, batch: BatchCosts, required: RequiredGradients, stages: StageGraph) -> None:
        self._plan, self._batch, self._stages = plan, batch, stages
        self._graph, self._costs = batch.graph, batch.costs
        self._units = {unit.name: unit for unit in plan.units}
        self._runs = {unit.name: stage_layers(unit, batch.graph) for unit in plan.units}
        self._required = required
        self._sums: dict[tuple, tuple[dict[str, Float[np.ndarray, "m i"]], float]] = {}

    def _layers(self, stage: StageId) -> tuple[_LayersOfStage, ...]:
        runs = self._runs[stage[0]][stage[1]]
        return tuple(_LayersOfStage(run.module, *of) for run in runs for of in self._required.of_layers(*run))

    def _layer_sums(
        self, layers: tuple[_LayersOfStage, ...], ranks: LayerParallelism, recompute: RecomputePolicy
    ) -> tuple[dict[str, Float[np.ndarray, "m i"]], float]:
        """The PER_MICROBATCH fields of a stage with these layers, and its workspace; equal stages share them."""
        key = (tuple((of.module, of.layer.name, of.count, of.gradients) for of in layers), ranks, recompute)
        if key not in self._sums:
            self._sums[key] = self._add_layers(layers, ranks, recompute)
        return self._sums[key]

    def _add_layers(
        self, layers: tuple[_LayersOfStage, ...], ranks: LayerParallelism, recompute: RecomputePolicy
    ) -> tuple[dict[str, Float[np.ndarray, "m i"]], float]:
        microbatches = self._plan.microbatches
        sums = {field: np.zeros((microbatches, ranks.dp)) for field in PER_MICROBATCH}
        workspace = 0.0
        for module, layer, count, gradients in layers:
            of = self._batch.layer(module, layer.name, count, gradients, ranks, recompute, microbatches)
            index = self._batch.loads(module, microbatches, ranks.dp).index
            forward, backward = (
                LayerSeconds(np.asarray(seconds.compute)[index], np.asarray(seconds.communication)[index])
                for seconds in (of.forward, of.backward)
            )
            if layer.expert_parameters:
                forward, backward = (_wait_for_slowest(seconds, ranks.ep) for seconds in (forward, backward))
            per_layer = {
                "forward": forward.total,
                "forward_communication": forward.communication,
                "backward": backward.total,
                "backward_communication": backward.communication,
                "flops": np.asarray(of.flops)[index],
                "saved_bytes": np.asarray(of.saved_bytes)[index],
            }
            for field, values in per_layer.items():
                sums[field] += count * values
            workspace = max(workspace, float(np.max(of.recomputed_bytes)))  # one layer at a time is recomputed
        return sums, workspace

    def stage(self, stage: StageId) -> StageCosts:
        """Costs of one stage."""
        name, number = stage
        unit, layers = self._units[name], self._layers(stage)
        sums, workspace = self._layer_sums(layers, _parallelism(unit), unit.recompute[number])
        sizes = np.zeros((2, 2))  # [all but experts | experts, all | those that train]
        for _, layer, count, gradients in layers:
            per_rank = [layer.parameters_per_rank(unit.tp), layer.expert_parameters_per_rank(unit.tp, unit.ep)]
            sizes += count * np.outer(per_rank, [1.0, "wgrad" in gradients])
        exposed = float(number < unit.pp)  # those of a rank's other chunks are hidden by its computation
        inside = self._on_one_node(unit.stage_devices(number))
        replicas = np.array([unit.dp, unit.dp // unit.ep]) * unit.cp  # ranks with the same parameters
        (parameters, trained), counts = sizes.T, replicas.tolist()
        gather = _total_seconds(lambda size, n: self._costs.gather_weights(size, n, inside), parameters, counts)
        reduce = _total_seconds(lambda size, n: self._costs.reduce_gradients(size, n, inside), trained, counts)
        state_bytes = np.sum(train_state_bytes(parameters, trained, replicas, self._costs))
        return StageCosts(
            **sums,
            gather=exposed * gather,
            reduce=exposed * reduce,
            update=_total_seconds(lambda size, n: self._costs.optimizer_update(size / n, n), trained, counts),
            static_bytes=workspace + float(state_bytes),
        )

    def hop(self, source: StageId, target: StageId, back: bool = False) -> Float[np.ndarray, "m _"]:
        """Seconds of an activation's hop, or of its gradient's hop back, for each replica that receives."""
        ends = [self._units[unit] for unit, _ in (source, target)]
        ends = ends[::-1] if back else ends
        sent, received = (self._hop_bytes(source, target, unit.dp) for unit in ends)
        within_module = self._runs[target[0]][target[1]][0].first > 0  # between modules all ranks have all positions
        shards = [unit.cp * (_parallelism(unit).sequence_shards if within_module else 1) for unit in ends]
        slowest = (sent / shards[0])[:, source_replicas(sent.shape[1], received.shape[1])].max(axis=2)
        devices = self._stages.devices[source] | self._stages.devices[target]
        seconds = self._costs.hop(np.maximum(slowest, received / shards[1]), self._on_one_node(devices), len(devices))
        return np.asarray(seconds)

    def _hop_bytes(self, source: StageId, target: StageId, dp: int) -> Float[np.ndarray, "m i"]:
        """Bytes of the activation between two stages at each of `dp` replicas."""
        module, _, last = self._runs[source[0]][source[1]][-1]
        last_layer, _ = self._graph[module].layers_between(max(last - 1, 0), last)[-1]
        target_module, first, _ = self._runs[target[0]][target[1]][0]
        extra_input = ZERO if first else self._graph[target_module].extra_input
        elements = self._at(last_layer.output_elements, module, dp) + self._at(extra_input, target_module, dp)
        return self._costs.element_bytes * elements

    def _at(self, quantity: PerLoad, module: str, dp: int) -> Float[np.ndarray, "m i"]:
        """A quantity at each of `dp` replicas of a module."""
        loads = self._batch.loads(module, self._plan.microbatches, dp)
        return quantity.at(loads.distinct)[loads.index]

    def _on_one_node(self, devices: Collection[int]) -> bool:
        return min(devices) // self._costs.devices_per_node == max(devices) // self._costs.devices_per_node
