"""A plan's costs from those of its layers: what every op of a step takes, for given rows of the global batch."""

import functools
from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Float

from sharding.costs import Costs, useful_flops
from sharding.device_groups import feeders
from sharding.layer_spec import NOTHING, Loads
from sharding.memory import held_bytes, state_bytes
from sharding.plan import Plan, PlanError, stage_layers
from sharding.specs import ModuleGraph
from sharding.stage_graph import Node, StageGraph, stage_graph
from sharding.step_costs import StageCosts, StepCosts
from sharding.trainable import Turns, trained_stages

Rows = Mapping[str, Float[np.ndarray, "n 3"]]
"""The load that every row of the global batch brings to each module."""


def plan_costs(plan: Plan, graph: ModuleGraph, costs: Costs, rows: Rows, trains: frozenset[str]) -> StepCosts:
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
    builder = _Builder(plan, graph, costs, rows, Turns(graph, trains), stages)
    return StepCosts(
        {node: builder.stage(node, node in backward) for node in stages.nodes},
        {(source, target): builder.hop(source, target) for source, target in stages.edges},
        {(s, t): builder.hop(s, t, back=True) for s, t in stages.edges if s in backward},
        costs.peak_flops,
        float(rows[graph.backbone.name][:, 0].sum()),
    )


def instance_loads(rows: Loads, microbatches: int, dp: int) -> Float[np.ndarray, "m i 3"]:
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


class _Builder:
    """Costs of a plan's stages and hops."""

    def __init__(
        self, plan: Plan, graph: ModuleGraph, costs: Costs, rows: Rows, turns: Turns, stages: StageGraph
    ) -> None:
        self._plan, self._graph, self._stages = plan, graph, stages
        self._costs, self._rows, self._turns = costs, rows, turns
        self._units = {unit.name: unit for unit in plan.units}
        self._runs = {unit.name: stage_layers(unit, graph) for unit in plan.units}

    @functools.cache  # noqa: B019  lives as long as one call of plan_costs
    def _loads(self, module: str, dp: int) -> Float[np.ndarray, "m i 3"]:
        return instance_loads(self._rows[module], self._plan.microbatches, dp)

    @functools.cache  # noqa: B019
    def _layer(self, module: str, name: str, turns: tuple[str, ...], dp: int, tp: int, recompute: str) -> dict:
        """One layer's seconds, useful FLOPs and bytes held, [m, i] each; equal layers of all stages share them."""
        layer, loads = self._graph[module].named(name), self._loads(module, dp)
        forward = self._costs.forward(layer, loads, tp)
        backward = self._costs.backward(layer, loads, tp, turns, recompute)
        crowding = self._costs.crowding(dp * tp) / self._costs.crowding(tp)
        return {
            "forward": crowding * forward.total,
            "forward_tensor": crowding * forward.tensor,
            "backward": crowding * backward.total,
            "backward_tensor": crowding * backward.tensor,
            "flops": useful_flops(layer, loads, turns),
            "held": held_bytes(layer, loads, tp, recompute, self._costs) if turns else np.zeros(loads.shape[:-1]),
        }

    def stage(self, node: Node, backward: bool) -> StageCosts:
        """Costs of one stage."""
        unit, recompute = self._units[node[0]], self._units[node[0]].recompute[node[1]]
        shape = (self._plan.microbatches, unit.dp)
        names = ("forward", "forward_tensor", "backward", "backward_tensor", "flops", "held")
        sums = {name: np.zeros(shape) for name in names}
        sums["forward"] += self._costs.launch
        sums["backward"] += self._costs.launch * backward
        parameters = trained = workspace = 0.0
        for module, first, last in self._runs[node[0]][node[1]]:
            for layer, count, turns in self._turns.of(module, first, last):
                of_layer = self._layer(module, layer.name, turns, unit.dp, unit.tp, recompute)
                for name in names:
                    sums[name] = sums[name] + count * of_layer[name]
                local = count * layer.on_rank(unit.tp)
                parameters += local
                trained += local if "weights" in turns else 0.0
                if turns and recompute != "none":  # one layer at a time is computed again
                    again = held_bytes(layer, self._loads(module, unit.dp), unit.tp, "none", self._costs)
                    workspace = max(workspace, float(again.max()))
        exposed = float(node[1] < unit.pp)  # behind the first chunk's, other chunks' collectives hide beside work
        inside = self._inside(unit.stage_devices(node[1]))
        return StageCosts(
            **sums,
            gather=exposed * self._costs.gather(parameters, unit.dp, inside),
            reduce=exposed * self._costs.reduce(trained, unit.dp, inside) if trained else 0.0,
            update=self._costs.update(trained / unit.dp) if trained else 0.0,
            static=workspace + float(state_bytes(parameters, trained, unit.dp, self._costs)),
        )

    def hop(self, source: Node, target: Node, back: bool = False) -> Float[np.ndarray, "m _"]:
        """Seconds of an activation's way, or of its gradient's way back, for each instance that receives."""
        ends = [self._units[node[0]] for node in (source, target)]
        ends = ends[::-1] if back else ends
        sent, received = (self._sizes(source, target, unit.dp) for unit in ends)
        ranks = [unit.tp if self._costs.sequence_parallel else 1 for unit in ends]
        slowest = (sent / ranks[0])[:, feeders(sent.shape[1], received.shape[1])].max(axis=2)
        devices = self._stages.lanes[source] | self._stages.lanes[target]
        return self._costs.hop(np.maximum(slowest, received / ranks[1]), self._inside(devices))

    def _sizes(self, source: Node, target: Node, dp: int) -> Float[np.ndarray, "m i"]:
        """Bytes of the activation between two stages at each of `dp` instances."""
        module, _, last = self._runs[source[0]][source[1]][-1]
        layer = self._graph[module].run(max(last - 1, 0), last)[-1][0]
        goal, first, _ = self._runs[target[0]][target[1]][0]
        takes = NOTHING if first else self._graph[goal].takes
        numbers = layer.output.of(self._loads(module, dp)) + takes.of(self._loads(goal, dp))
        return self._costs.element_bytes * numbers

    def _inside(self, devices: Iterable[int]) -> bool:
        size = self._costs.node_devices
        return len({device // size for device in devices}) == 1
