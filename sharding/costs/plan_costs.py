"""A plan's costs from those of its layers: what every op of a step takes, for given rows of the global batch."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from sharding.costs.cost_model import CostModel, LayerParallelism, LayerSeconds, Times, useful_flops
from sharding.costs.memory import saved_activation_bytes, train_state_bytes
from sharding.costs.step_costs import PER_MICROBATCH, StageCosts, StepCosts
from sharding.plans.device_groups import source_replicas
from sharding.plans.plan import Plan
from sharding.plans.stage_graph import StageGraph, StageId, stage_graph
from sharding.plans.trained_parts import Gradient, RequiredGradients, trained_stages
from sharding.plans.unit_plan import PlanError, UnitPlan, stage_layers
from sharding.specs.layer import ZERO, LoadColumn, Loads, RecomputePolicy
from sharding.specs.modules import ModuleGraph

LoadsByModule = Mapping[str, Float[np.ndarray, "n 3"]]
"""For every module, the load of each row of the global batch."""


def plan_costs(
    plan: Plan, graph: ModuleGraph, costs: CostModel, rows: LoadsByModule, trained_parts: frozenset[str]
) -> StepCosts:
    """Costs of every op of a step.

    Args:
        plan: The plan.
        graph: The modules with their layers.
        costs: The cost model.
        rows: Loads of the global batch's rows, in the order in which the step takes them.
        trained_parts: Parts that train.
    """
    stages = stage_graph(plan, graph)
    backward_stages = stages.with_descendants(trained_stages(plan, graph, trained_parts))
    builder = _PlanCosts(plan, graph, costs, rows, RequiredGradients(graph, trained_parts), stages)
    return StepCosts(
        stages={stage: builder.stage(stage) for stage in stages.stages},
        hops={(source, target): builder.hop(source, target) for source, target in stages.edges},
        hops_back={
            (source, target): builder.hop(source, target, back=True)
            for source, target in stages.edges
            if source in backward_stages
        },
        peak_flops=costs.peak_flops,
        tokens=float(rows[graph.backbone.name][:, LoadColumn.TOKENS].sum()),
        norm=costs.gradient_norm(len(stages.stages)),
    )


def replica_loads(rows: Loads, microbatches: int, dp: int) -> Float[np.ndarray, "m i 3"]:
    """The load of every replica in every microbatch.

    Rows go to replicas in order. Where there are more replicas than rows, each row's items are divided among several
    replicas (as in Megatron-LM's replicated encoders), and its tokens and squared lengths in proportion.

    Args:
        rows: Loads of the global batch's rows, [rows, 3].
        microbatches: Number of microbatches m.
        dp: Number of replicas i.
    """
    microbatch_rows = len(rows) // microbatches
    if microbatch_rows * microbatches != len(rows):
        raise PlanError(f"{len(rows)} rows of the global batch are not divisible by {microbatches} microbatches")
    if microbatch_rows % dp == 0:
        return rows.reshape(microbatches, dp, microbatch_rows // dp, 3).sum(axis=2)
    if dp % microbatch_rows:
        raise PlanError(f"dp {dp} neither divides the {microbatch_rows} rows of a microbatch nor is a multiple of them")
    replicas = dp // microbatch_rows
    items = rows[:, None, LoadColumn.ITEMS]
    dealt = np.floor((items + np.arange(replicas)[::-1]) / replicas)
    share = dealt / np.maximum(items, 1)
    return (rows[:, None, :] * share[:, :, None]).reshape(microbatches, dp, 3)


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


class _PlanCosts:
    """Costs of a plan's stages and hops."""

    def __init__(
        self,
        plan: Plan,
        graph: ModuleGraph,
        costs: CostModel,
        rows: LoadsByModule,
        required: RequiredGradients,
        stages: StageGraph,
    ) -> None:
        self._plan, self._graph, self._stages = plan, graph, stages
        self._costs, self._rows, self._required = costs, rows, required
        self._units = {unit.name: unit for unit in plan.units}
        self._runs = {unit.name: stage_layers(unit, graph) for unit in plan.units}

    @functools.cache  # noqa: B019  lives as long as one call of plan_costs
    def _loads(self, module: str, dp: int) -> Float[np.ndarray, "m i 3"]:
        return replica_loads(self._rows[module], self._plan.microbatches, dp)

    @functools.cache  # noqa: B019
    def _layer(
        self,
        module: str,
        name: str,
        stack: int,
        gradients: tuple[Gradient, ...],
        ranks: LayerParallelism,
        recompute: RecomputePolicy,
    ) -> dict[str, Times]:
        """The PER_MICROBATCH fields of one of `stack` equal layers; equal stacks of all stages share them."""
        layer, loads = self._graph[module].layer_named(name), self._loads(module, ranks.dp)
        forward = self._costs.forward(layer, loads, ranks, stack)
        backward = self._costs.backward(layer, loads, ranks, gradients, recompute, stack)
        if layer.expert_parameters:
            forward, backward = (_wait_for_slowest(seconds, ranks.ep) for seconds in (forward, backward))
        saved = np.zeros(loads.shape[:-1])
        if gradients:
            saved = saved_activation_bytes(layer, loads, ranks, recompute, self._costs)
        return {
            "forward": forward.total,
            "forward_communication": forward.communication,
            "backward": backward.total,
            "backward_communication": backward.communication,
            "flops": useful_flops(layer, loads, gradients),
            "saved_bytes": saved,
        }

    def stage(self, stage: StageId) -> StageCosts:
        """Costs of one stage."""
        name, number = stage
        unit, recompute, ranks = self._units[name], self._units[name].recompute[number], _parallelism(self._units[name])
        sums = {field: np.zeros((self._plan.microbatches, unit.dp)) for field in PER_MICROBATCH}
        sizes, workspace = np.zeros((2, 2)), 0.0  # [all but experts | experts, all | those that train]
        for run in self._runs[name][number]:
            for layer, count, gradients in self._required.of_layers(*run):
                layer_costs = self._layer(run.module, layer.name, count, gradients, ranks, recompute)
                for field in PER_MICROBATCH:
                    sums[field] = sums[field] + count * layer_costs[field]
                per_rank = [layer.parameters_per_rank(unit.tp), layer.expert_parameters_per_rank(unit.tp, unit.ep)]
                sizes += count * np.outer(per_rank, [1.0, "wgrad" in gradients])
                if gradients and recompute != "none":  # one layer at a time is recomputed
                    recomputed = saved_activation_bytes(
                        layer, self._loads(run.module, unit.dp), ranks, "none", self._costs
                    )
                    workspace = max(workspace, float(np.max(recomputed)))
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
        elements = last_layer.output_elements.at(self._loads(module, dp)) + extra_input.at(
            self._loads(target_module, dp)
        )
        return self._costs.element_bytes * elements

    def _on_one_node(self, devices: Iterable[int]) -> bool:
        return len({device // self._costs.devices_per_node for device in devices}) == 1
