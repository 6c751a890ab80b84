"""A plan's costs from those of its layers: what every op of a step takes, for given rows of the global batch."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from sharding.costs.cost_model import CostModel, LayerParallelism, LayerSeconds, useful_flops
from sharding.costs.memory import saved_activation_bytes, train_state_bytes
from sharding.costs.step_costs import StageCosts, StepCosts
from sharding.plans.device_groups import source_replicas
from sharding.plans.plan import Plan
from sharding.plans.stage_graph import StageGraph, StageId, stage_graph
from sharding.plans.trained_parts import RequiredGradients, trained_stages
from sharding.plans.unit_plan import PlanError, UnitPlan, stage_layers
from sharding.specs.layer import ZERO, Loads
from sharding.specs.modules import ModuleGraph

LoadsByModule = Mapping[str, Float[np.ndarray, "n 3"]]
"""The load that every row of the global batch brings to each module."""


def plan_costs(
    plan: Plan, graph: ModuleGraph, costs: CostModel, rows: LoadsByModule, trains: frozenset[str]
) -> StepCosts:
    """Costs of every op of a step.

    Args:
        plan: The plan.
        graph: The modules with their layers.
        costs: The cost model.
        rows: Loads of the global batch's rows, in the order in which the step takes them.
        trains: Parts that train.
    """
    stages = stage_graph(plan, graph)
    backward = stages.with_descendants(trained_stages(plan, graph, trains))
    builder = _Builder(plan, graph, costs, rows, RequiredGradients(graph, trains), stages)
    return StepCosts(
        {node: builder.stage(node, node in backward) for node in stages.stages},
        {(source, target): builder.hop(source, target) for source, target in stages.edges},
        {(s, t): builder.hop(s, t, back=True) for s, t in stages.edges if s in backward},
        costs.peak_flops,
        float(rows[graph.backbone.name][:, 0].sum()),
        costs.gradient_norm(len(stages.stages)),
    )


def _ranks(unit: UnitPlan) -> LayerParallelism:
    return LayerParallelism(unit.tp, unit.cp, unit.ep, unit.dp, unit.collectives)


def replica_loads(rows: Loads, microbatches: int, dp: int) -> Float[np.ndarray, "m i 3"]:
    """What every instance gets of every microbatch.

    Rows go to instances in order. Where there are more instances than rows, each row's items are dealt out to several
    (Megatron-LM's replicated encoders, each on other images), and its tokens and squares in proportion.
    """
    each = len(rows) // microbatches
    if each * microbatches != len(rows):
        raise PlanError(f"{len(rows)} rows of the global batch are not divisible by {microbatches} microbatches")
    if each % dp == 0:
        return rows.reshape(microbatches, dp, each // dp, 3).sum(axis=2)
    if dp % each:
        raise PlanError(f"dp {dp} neither divides the {each} rows of a microbatch nor is a multiple of them")
    ranks = dp // each
    dealt = np.floor((rows[:, None, 2] + np.arange(ranks)[::-1]) / ranks)
    share = dealt / np.maximum(rows[:, None, 2], 1)
    return (rows[:, None, :] * share[:, :, None]).reshape(microbatches, dp, 3)


def _together(seconds: LayerSeconds, ep: int) -> LayerSeconds:
    """Of a layer with experts, [m, i]: instances that exchange tokens wait for the slowest of them."""
    total = np.asarray(seconds.total)
    slowest = total.reshape(len(total), -1, ep).max(axis=2)
    return LayerSeconds(seconds.compute, seconds.communication + np.repeat(slowest, ep, axis=1) - total)


def _each(seconds: Callable[[float, int], float], sizes: Float[np.ndarray, " 2"], groups: Sequence[int]) -> float:
    """What takes seconds for parameters that so many ranks have alike: of all but experts, and of experts."""
    return sum((seconds(size, of) for size, of in zip(sizes.tolist(), groups, strict=True) if size), start=0.0)


class _Builder:
    """Costs of a plan's stages and hops."""

    def __init__(
        self,
        plan: Plan,
        graph: ModuleGraph,
        costs: CostModel,
        rows: LoadsByModule,
        turns: RequiredGradients,
        stages: StageGraph,
    ) -> None:
        self._plan, self._graph, self._stages = plan, graph, stages
        self._costs, self._rows, self._turns = costs, rows, turns
        self._units = {unit.name: unit for unit in plan.units}
        self._runs = {unit.name: stage_layers(unit, graph) for unit in plan.units}

    @functools.cache  # noqa: B019  lives as long as one call of plan_costs
    def _loads(self, module: str, dp: int) -> Float[np.ndarray, "m i 3"]:
        return replica_loads(self._rows[module], self._plan.microbatches, dp)

    @functools.cache  # noqa: B019
    def _layer(
        self, module: str, name: str, stack: int, turns: tuple[str, ...], ranks: LayerParallelism, recompute: str
    ) -> dict:
        """One layer's seconds, useful FLOPs and bytes held, [m, i] each; equal stacks of all stages share them."""
        layer, loads = self._graph[module].layer_named(name), self._loads(module, ranks.dp)
        forward = self._costs.forward(layer, loads, ranks, stack)
        backward = self._costs.backward(layer, loads, ranks, turns, recompute, stack)
        if layer.expert_parameters:
            forward, backward = (_together(seconds, ranks.ep) for seconds in (forward, backward))
        held = (
            saved_activation_bytes(layer, loads, ranks, recompute, self._costs) if turns else np.zeros(loads.shape[:-1])
        )
        return {
            "forward": forward.total,
            "forward_communication": forward.communication,
            "backward": backward.total,
            "backward_communication": backward.communication,
            "flops": useful_flops(layer, loads, turns),
            "saved_bytes": held,
        }

    def stage(self, node: StageId, backward: bool) -> StageCosts:
        """Costs of one stage."""
        unit, recompute = self._units[node[0]], self._units[node[0]].recompute[node[1]]
        shape = (self._plan.microbatches, unit.dp)
        names = ("forward", "forward_communication", "backward", "backward_communication", "flops", "saved_bytes")
        sums = {name: np.zeros(shape) for name in names}
        ranks = _ranks(unit)
        sizes, workspace = np.zeros((2, 2)), 0.0  # of all but experts, and of experts; all, and those that train
        for module, first, last in self._runs[node[0]][node[1]]:
            for layer, count, turns in self._turns.of_layers(module, first, last):
                of_layer = self._layer(module, layer.name, count, turns, ranks, recompute)
                for name in names:
                    sums[name] = sums[name] + count * of_layer[name]
                local = np.array(
                    [layer.parameters_per_rank(unit.tp), layer.expert_parameters_per_rank(unit.tp, unit.ep)]
                )
                sizes += count * np.outer(local, [1.0, "wgrad" in turns])
                if turns and recompute != "none":  # one layer at a time is computed again
                    again = saved_activation_bytes(layer, self._loads(module, unit.dp), ranks, "none", self._costs)
                    workspace = max(workspace, float(again.max()))
        exposed = float(node[1] < unit.pp)  # behind the first chunk's, other chunks' collectives hide beside work
        inside = self._inside(unit.stage_devices(node[1]))
        alike = np.array([unit.dp, unit.dp // unit.ep]) * unit.cp  # ranks with the same parameters
        (parameters, trained), groups = sizes.T, alike.tolist()
        return StageCosts(
            **sums,
            gather=exposed * _each(lambda size, of: self._costs.gather_weights(size, of, inside), parameters, groups),
            reduce=exposed * _each(lambda size, of: self._costs.reduce_gradients(size, of, inside), trained, groups),
            update=_each(lambda size, of: self._costs.optimizer_update(size / of, of), trained, groups),
            static_bytes=workspace + float(train_state_bytes(parameters, trained, alike, self._costs).sum()),
        )

    def hop(self, source: StageId, target: StageId, back: bool = False) -> Float[np.ndarray, "m _"]:
        """Seconds of an activation's way, or of its gradient's way back, for each instance that receives."""
        ends = [self._units[node[0]] for node in (source, target)]
        ends = ends[::-1] if back else ends
        sent, received = (self._sizes(source, target, unit.dp) for unit in ends)
        inside = self._runs[target[0]][target[1]][0][1] > 0  # between modules all ranks have all positions
        ranks = [unit.cp * (_ranks(unit).sequence_shards if inside else 1) for unit in ends]
        slowest = (sent / ranks[0])[:, source_replicas(sent.shape[1], received.shape[1])].max(axis=2)
        devices = self._stages.devices[source] | self._stages.devices[target]
        return self._costs.hop(np.maximum(slowest, received / ranks[1]), self._inside(devices), len(devices))

    def _sizes(self, source: StageId, target: StageId, dp: int) -> Float[np.ndarray, "m i"]:
        """Bytes of the activation between two stages at each of `dp` instances."""
        module, _, last = self._runs[source[0]][source[1]][-1]
        layer = self._graph[module].layers_between(max(last - 1, 0), last)[-1][0]
        goal, first, _ = self._runs[target[0]][target[1]][0]
        takes = ZERO if first else self._graph[goal].extra_input
        numbers = layer.output_elements.at(self._loads(module, dp)) + takes.at(self._loads(goal, dp))
        return self._costs.element_bytes * numbers

    def _inside(self, devices: Iterable[int]) -> bool:
        size = self._costs.devices_per_node
        return len({device // size for device in devices}) == 1
