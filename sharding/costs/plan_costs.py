"""A plan's costs from those of its layers: what every op of a step takes, for given rows of the global batch."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.batch_costs import BatchCosts, LayerCosts, ReplicaLoads
from sharding.costs.cost_model import LayerParallelism, LayerSeconds, masked_flops
from sharding.costs.memory import train_state_bytes
from sharding.costs.own_rows import OwnRows
from sharding.costs.recomputed_flops import RecomputedFlops, recomputed_flops
from sharding.costs.step_costs import PER_MICROBATCH, StageCosts, StageWork, StepCosts, StepWork
from sharding.plans.device_groups import latest_of_sources
from sharding.plans.plan import Plan
from sharding.plans.stage_graph import StageGraph, StageId, stage_graph
from sharding.plans.trained_parts import Gradient, RequiredGradients, trained_stages
from sharding.plans.unit_layers import stage_layers
from sharding.plans.unit_plan import UnitPlan
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
    required = RequiredGradients(graph, trained_parts)
    builder = _PlanCosts(plan, batch, required, stages)
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
        masked_flops=_masked_flops(batch, required),
        recomputed=builder.recomputed(),
    )


def _masked_flops(batch: BatchCosts, required: RequiredGradients) -> float:
    """`StepCosts.masked_flops`, which do not depend on the plan."""
    return sum(
        count * masked_flops(layer, batch.rows[module.name].sum(axis=0), gradients)
        for module in batch.graph.modules
        for layer, count, gradients in required.of_layers(module.name, 0, module.layer_count)
    )


def plan_work(plan: Plan, batch: BatchCosts, trained_parts: frozenset[str]) -> StepWork:
    """What bounds a step from below; the arguments are those of `plan_costs`, and it takes a fraction of its time."""
    stages = stage_graph(plan, batch.graph)
    builder = _PlanCosts(plan, batch, RequiredGradients(batch.graph, trained_parts), stages)
    return StepWork(
        stages={stage: builder.work(stage) for stage in stages.stages},
        hops={(source, target): builder.least_hop(source, target) for source, target in stages.edges},
        hops_back={(source, target): builder.least_hop(source, target, back=True) for source, target in stages.edges},
        norm=batch.costs.gradient_norm(len(stages.stages)),
    )


def unit_work(
    unit: UnitPlan, microbatches: int, batch: BatchCosts, trained_parts: frozenset[str]
) -> tuple[StageWork, ...]:
    """What bounds a step from below of every stage of one unit, wherever the others are."""
    plan, required = Plan((unit,), microbatches), RequiredGradients(batch.graph, trained_parts)
    builder = _PlanCosts(plan, batch, required, StageGraph({}, ()))
    return tuple(builder.work((unit.name, number)) for number in range(unit.stage_count))


def _parallelism(unit: UnitPlan) -> LayerParallelism:
    return LayerParallelism(unit.tp, unit.cp, unit.ep, unit.dp, unit.collectives)


def _on_replicas(
    seconds: LayerSeconds, layer: LayerSpec, index: Int[np.ndarray, "m i"], ranks: LayerParallelism
) -> LayerSeconds:
    """Seconds of a layer on every replica, from those of the distinct loads."""
    of_replicas = LayerSeconds(np.asarray(seconds.compute)[index], np.asarray(seconds.communication)[index])
    return _wait_for_slowest(of_replicas, ranks.ep) if layer.expert_parameters else of_replicas


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
    """Equal consecutive layers of a stage that have one recomputation policy.

    Attributes:
        module: Their module.
        layer: One of them.
        count: How many there are.
        gradients: What their backward computes.
        recompute: Their recomputation policy.
    """

    module: str
    layer: LayerSpec
    count: int
    gradients: tuple[Gradient, ...]
    recompute: RecomputePolicy


class _PassWork(NamedTuple):
    """Seconds of a stage's forwards, or of its backwards.

    Attributes:
        total: Of all microbatches, on each replica.
        slowest: Of each microbatch, on the replica that takes longest for it.
        least: What none of a microbatch takes less than.
    """

    total: Float[np.ndarray, " i"]
    slowest: Float[np.ndarray, " m"]
    least: float


class _OncePerStep(NamedTuple):
    """Seconds of a stage's ops that run once a step."""

    gather: float
    reduce: float
    update: float


def _layer_key(layers: tuple[_LayersOfStage, ...]) -> tuple:
    return tuple((of.module, of.layer.name, of.count, of.gradients, of.recompute) for of in layers)


def _same_parameter_ranks(unit: UnitPlan) -> Int[np.ndarray, " 2"]:
    """How many ranks have the same parameters: all but experts', and experts'."""
    return np.array([unit.dp, unit.dp // unit.ep]) * unit.cp


class _PlanCosts:
    """Costs of a plan's stages and hops."""

    def __init__(self, plan: Plan, batch: BatchCosts, required: RequiredGradients, stages: StageGraph) -> None:
        self._plan, self._batch, self._stages = plan, batch, stages
        self._graph, self._costs = batch.graph, batch.costs
        self._units = {unit.name: unit for unit in plan.units}
        self._runs = {unit.name: stage_layers(unit, batch.graph) for unit in plan.units}
        self._required = required
        self._nodes: dict[StageId, int | None] = {}
        self._work: dict[tuple, tuple[_PassWork, _PassWork]] = {}
        self._sums: dict[tuple, tuple[dict[str, Float[np.ndarray, "m i"]], float]] = {}

    def _layers(self, stage: StageId) -> tuple[_LayersOfStage, ...]:
        """What precedes a module's stack has the policy of the stage's first layer of it, what follows, of its last."""
        policies = iter(self._units[stage[0]].layer_recompute(stage[1]))
        layers: list[_LayersOfStage] = []
        for module, first, last in self._runs[stage[0]][stage[1]]:
            start = first
            for policy, group in itertools.groupby(itertools.islice(policies, last - first)):
                end = start + len(list(group))
                layers += [_LayersOfStage(module, *of, policy) for of in self._required.of_layers(module, start, end)]
                start = end
        return tuple(layers)

    def _own_rows(self, module: str) -> OwnRows | None:
        unit = self._plan.unit_of(module)
        return OwnRows(unit.rows, unit.capacities) if unit.rows else None

    def _replica_loads(self, module: str, dp: int, exchanged: bool = False) -> ReplicaLoads:
        """A module's loads on `dp` replicas; an exchange sends items alone, dealt over the replicas of either end."""
        own = OwnRows(dp) if exchanged else self._own_rows(module)
        return self._batch.loads(module, self._plan.microbatches, dp, own)

    def _layer_costs(self, of: _LayersOfStage, ranks: LayerParallelism) -> LayerCosts:
        own, microbatches = self._own_rows(of.module), self._plan.microbatches
        return self._batch.layer(
            of.module, of.layer.name, of.count, of.gradients, ranks, of.recompute, microbatches, own
        )

    def _layer_sums(
        self, layers: tuple[_LayersOfStage, ...], ranks: LayerParallelism
    ) -> tuple[dict[str, Float[np.ndarray, "m i"]], float]:
        """The PER_MICROBATCH fields of a stage with these layers, and its workspace; equal stages share them."""
        key = (_layer_key(layers), ranks)
        if key not in self._sums:
            self._sums[key] = self._add_layers(layers, ranks)
        return self._sums[key]

    def _add_layers(
        self, layers: tuple[_LayersOfStage, ...], ranks: LayerParallelism
    ) -> tuple[dict[str, Float[np.ndarray, "m i"]], float]:
        microbatches = self._plan.microbatches
        sums = {field: np.zeros((microbatches, ranks.dp)) for field in PER_MICROBATCH}
        workspace = 0.0
        for of_stage in layers:
            module, layer, count = of_stage.module, of_stage.layer, of_stage.count
            of = self._layer_costs(of_stage, ranks)
            index = self._replica_loads(module, ranks.dp).index
            forward, backward = (_on_replicas(seconds, layer, index, ranks) for seconds in (of.forward, of.backward))
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
        sums, workspace = self._layer_sums(layers, _parallelism(unit))
        (parameters, trained), replicas = self._parameters(unit, layers).T, _same_parameter_ranks(unit)
        state_bytes = np.sum(train_state_bytes(parameters, trained, replicas, self._costs))
        once = self._once_per_step(unit, number, layers)
        growth = self._largest_over_needed(unit)
        of_largest = growth * (workspace + self._exchange_bytes(stage)) + (growth - 1) * float(
            sums["saved_bytes"].max()
        )
        return StageCosts(**sums, **once._asdict(), static_bytes=float(state_bytes) + of_largest)

    def recomputed(self) -> RecomputedFlops:
        """What the backwards of all stages compute again."""
        flops, masked = 0.0, 0.0
        for of in itertools.chain.from_iterable(map(self._layers, self._stages.stages)):
            if of.gradients:
                again = recomputed_flops(of.layer, self._batch.rows[of.module].sum(axis=0), of.recompute)
                flops, masked = flops + of.count * again.flops, masked + of.count * again.masked
        return RecomputedFlops(flops, masked)

    def _largest_over_needed(self, unit: UnitPlan) -> float:
        """How much larger a microbatch of the largest capacity is than those of this step; one is in flight at most."""
        own = self._own_rows(unit.modules[0])
        return self._batch.largest_over_needed(unit.modules[0], self._plan.microbatches, own) if own else 1.0

    def _exchange_bytes(self, stage: StageId) -> float:
        """Bytes of what a stage exchanges of the largest microbatch: activations, or gradients on their way back."""
        edges = (edge for edge in self._stages.exchanges if stage in edge)
        dp, cp = self._units[stage[0]].dp, self._units[stage[0]].cp
        return sum((float(self._hop_bytes(*edge, dp).max()) / cp for edge in edges), start=0.0)

    def work(self, stage: StageId) -> StageWork:
        """What bounds the step from below of one stage."""
        name, number = stage
        unit, layers = self._units[name], self._layers(stage)
        key = (_layer_key(layers), name)
        if key not in self._work:
            self._work[key] = self._add_work(layers, _parallelism(unit))
        forward, backward = self._work[key]
        return StageWork(
            forward=forward.total,
            backward=backward.total,
            slowest=forward.slowest + backward.slowest,
            least_forward=forward.least,
            least_backward=backward.least,
            **self._once_per_step(unit, number, layers)._asdict(),
        )

    def _add_work(self, layers: tuple[_LayersOfStage, ...], ranks: LayerParallelism) -> tuple[_PassWork, _PassWork]:
        """Seconds of all microbatches' forwards and backwards on each replica, and of the shortest of each."""
        total, slowest, least = np.zeros((2, ranks.dp)), np.zeros((2, self._plan.microbatches)), np.zeros(2)
        by_module: dict[str, Float[np.ndarray, "2 d"]] = {}
        for of_stage in layers:
            module, layer, count = of_stage.module, of_stage.layer, of_stage.count
            of = self._layer_costs(of_stage, ranks)
            passes = (of.forward, of.backward)
            least += [count * np.min(seconds.total) for seconds in passes]
            if layer.expert_parameters:
                index = self._replica_loads(module, ranks.dp).index
                of_replicas = np.stack([count * _on_replicas(each, layer, index, ranks).total for each in passes])
                total, slowest = total + of_replicas.sum(axis=1), slowest + of_replicas.max(axis=2)
            else:
                seconds = count * np.stack([each.total for each in passes])
                by_module[module] = by_module.get(module, np.zeros((2, 1))) + seconds
        for module, seconds in by_module.items():
            of_replicas = seconds[:, self._replica_loads(module, ranks.dp).index]
            total, slowest = total + of_replicas.sum(axis=1), slowest + of_replicas.max(axis=2)
        forward, backward = (_PassWork(total[way], slowest[way], float(least[way])) for way in range(2))
        return forward, backward

    def _parameters(self, unit: UnitPlan, layers: tuple[_LayersOfStage, ...]) -> Float[np.ndarray, "2 2"]:
        """Elements of parameters on a device: [all but experts', experts'] by [all, those that train]."""
        sizes = np.zeros((2, 2))
        for of in layers:
            per_rank = [of.layer.parameters_per_rank(unit.tp), of.layer.expert_parameters_per_rank(unit.tp, unit.ep)]
            sizes += of.count * np.outer(per_rank, [1.0, "wgrad" in of.gradients])
        return sizes

    def _once_per_step(self, unit: UnitPlan, number: int, layers: tuple[_LayersOfStage, ...]) -> _OncePerStep:
        exposed = float(number < unit.pp)  # those of a rank's other chunks are hidden by its computation
        inside = self._node_of(unit.name, number) is not None
        (parameters, trained), counts = self._parameters(unit, layers).T, _same_parameter_ranks(unit).tolist()
        gather = _total_seconds(lambda size, n: self._costs.gather_weights(size, n, inside), parameters, counts)
        reduce = _total_seconds(lambda size, n: self._costs.reduce_gradients(size, n, inside), trained, counts)
        update = _total_seconds(lambda size, n: self._costs.optimizer_update(size / n, n), trained, counts)
        return _OncePerStep(exposed * gather, exposed * reduce, update)

    def hop(self, source: StageId, target: StageId, back: bool = False) -> Float[np.ndarray, "m _"]:
        """Seconds of an activation's hop, or of its gradient's hop back, for each replica that receives."""
        ends = [self._units[unit] for unit, _ in (source, target)]
        ends = ends[::-1] if back else ends
        sent, received = (self._hop_bytes(source, target, unit.dp) for unit in ends)
        within_module = self._is_within_module(target)
        shards = [unit.cp * (_parallelism(unit).sequence_shards if within_module else 1) for unit in ends]
        exchanged = self._stages.is_exchange(source, target)
        slowest = latest_of_sources(sent / shards[0], received.shape[1], exchanged)
        return self._hop_seconds(source, target, np.maximum(slowest, received / shards[1]))

    def least_hop(self, source: StageId, target: StageId, back: bool = False) -> float:
        """A lower bound of `hop`: what receiving the smallest activation takes."""
        unit = self._units[(source if back else target)[0]]
        shards = unit.cp * (_parallelism(unit).sequence_shards if self._is_within_module(target) else 1)
        output, extra = self._hop_elements(source, target)
        exchanged = self._stages.is_exchange(source, target)
        elements = sum(
            float(quantity.at(self._replica_loads(module, unit.dp, exchanged).distinct).min())
            for module, quantity in (output, extra)
        )
        return float(self._hop_seconds(source, target, np.asarray(self._costs.element_bytes * elements / shards)))

    def _is_within_module(self, target: StageId) -> bool:
        """Whether a hop to a stage is between stages of one module; between modules all ranks have all positions."""
        return self._runs[target[0]][target[1]][0].first > 0

    def _hop_seconds(
        self, source: StageId, target: StageId, size: Float[np.ndarray, "..."]
    ) -> Float[np.ndarray, "..."]:
        node, devices = self._node_of(*source), self._stages.devices
        count = len(devices[source]) + len(devices[target])
        if not devices[source].isdisjoint(devices[target]):
            count = len(devices[source] | devices[target])
        inside = node is not None and node == self._node_of(*target)
        return np.asarray(self._costs.hop(size, inside, count))

    def _hop_bytes(self, source: StageId, target: StageId, dp: int) -> Float[np.ndarray, "m i"]:
        """Bytes of the activation between two stages at each of `dp` replicas."""
        output, extra = self._hop_elements(source, target)
        exchanged = self._stages.is_exchange(source, target)
        return self._costs.element_bytes * (self._at(*output, dp, exchanged) + self._at(*extra, dp, exchanged))

    def _hop_elements(self, source: StageId, target: StageId) -> tuple[tuple[str, PerLoad], tuple[str, PerLoad]]:
        """What a hop sends, by the loads of the module before it and of the module after it."""
        module, _, last = self._runs[source[0]][source[1]][-1]
        last_layer, _ = self._graph[module].layers_between(max(last - 1, 0), last)[-1]
        target_module, first, _ = self._runs[target[0]][target[1]][0]
        extra_input = ZERO if first else self._graph[target_module].extra_input
        return (module, last_layer.output_elements), (target_module, extra_input)

    def _at(self, module: str, quantity: PerLoad, dp: int, exchanged: bool) -> Float[np.ndarray, "m i"]:
        """A quantity at each of `dp` replicas of a module."""
        loads = self._replica_loads(module, dp, exchanged)
        return quantity.at(loads.distinct)[loads.index]

    def _node_of(self, unit: str, stage: int) -> int | None:
        """The node that has all devices of a stage; None if several do."""
        if (unit, stage) not in self._nodes:
            devices, size = self._units[unit].stage_devices(stage), self._costs.devices_per_node
            first, last = min(devices) // size, max(devices) // size
            self._nodes[unit, stage] = first if first == last else None
        return self._nodes[unit, stage]
