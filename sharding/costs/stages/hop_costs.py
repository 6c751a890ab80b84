"""Bytes and seconds of the hops of a plan, from the loads of the modules at both ends.

`plan_costs` and planners of chains read the seconds of hops and of gathered rows from `HopCosts`.
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from sharding.costs.batch_costs import BatchCosts, ReplicaLoads
from sharding.costs.cost_model import LayerParallelism
from sharding.costs.own_rows import OwnRows
from sharding.costs.stages.shared_replicas import row_gathers, slowest_of_shared
from sharding.costs.stages.stage_parameters import module_parallelism
from sharding.plans.resolved.device_groups import latest_of_sources
from sharding.plans.resolved.stage_graph import PipelineRank, StageGraph, StageId
from sharding.plans.unit_layers import LayerRun
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import ZERO, PerLoad


class HopCosts:
    """Seconds and bytes of the hops between stages.

    Args:
        units: The plan's units.
        layers: The runs of layers of their stages.
        microbatches: Microbatches of a step.
        batch: The rows of a global batch, and the cost model.
        stages: The plan's stages.
    """

    def __init__(
        self,
        units: Sequence[UnitPlan],
        layers: Mapping[StageId, tuple[LayerRun, ...]],
        microbatches: int,
        batch: BatchCosts,
        stages: StageGraph,
    ) -> None:
        self._microbatches, self._batch, self._stages = microbatches, batch, stages
        self._graph, self._costs = batch.graph, batch.costs
        self._units = {unit.name: unit for unit in units}
        self._runs = layers
        self._own_rows = {
            module: OwnRows(unit.phase_rows, unit.capacities)
            for unit in units
            for module in unit.modules
            if unit.phase_rows
        }
        self._nodes: dict[PipelineRank, int | None] = {}

    def own_rows(self, module: str) -> OwnRows | None:
        """The rows over which the items of a module are dealt; None where they stay in the rows of the global batch."""
        return self._own_rows.get(module)

    def replica_loads(self, module: str, dp: int, exchanged: bool = False) -> ReplicaLoads:
        """A module's loads on `dp` replicas; an exchange sends items alone, dealt over the replicas of either end."""
        own_rows = OwnRows(dp) if exchanged else self.own_rows(module)
        return self._batch.loads(module, self._microbatches, dp, own_rows)

    def seconds(self, source: StageId, target: StageId, back: bool = False) -> Float[np.ndarray, "m _"]:
        """Seconds of an activation's hop, or of its gradient's hop back, for each replica that receives."""
        key = (back, *self._edge_key(source, target))
        return self._batch.of_hops.get(key, lambda: self._seconds(source, target, back))

    def _edge_key(self, source: StageId, target: StageId) -> tuple:
        """Everything that the hops between two stages depend on, whatever else the plan has."""
        stages, units = self._stages, [self._units[name] for name, _ in (source, target)]
        return (
            *(source, target, self._runs[source][-1], self._runs[target][0]),
            *((unit.modules, unit.parallelism, unit.phase_rows, unit.capacities) for unit in units),
            *(stages.rank_devices[rank] for stage in (source, target) for rank in stages.ranks_of[stage]),
            *(unit.replica_of_microbatches(self._microbatches) for unit in units),
            stages.is_exchange(source, target),
        )

    def _seconds(self, source: StageId, target: StageId, back: bool) -> Float[np.ndarray, "m _"]:
        ends = (target, source) if back else (source, target)
        ranks = [self.end_ranks(source, target, end) for end in ends]
        sent, received = (self.bytes_on(source, target, end_ranks.dp) for end_ranks in ranks)
        within_module = self._is_within_module(target)
        shards = [end_ranks.cp * (end_ranks.sequence_shards if within_module else 1) for end_ranks in ranks]
        exchanged = self._stages.is_exchange(source, target)
        slowest = latest_of_sources(sent / shards[0], received.shape[1], exchanged)
        seconds = self._link_seconds(source, target, np.maximum(slowest, received / shards[1]))
        return slowest_of_shared(seconds, self._units[ends[1][0]].parallelism.shared_replicas)

    def row_gather_seconds(
        self, unit: UnitPlan, sender: str, receiver: str, has_gradients: bool
    ) -> Float[np.ndarray, "2 m s"]:
        """Seconds of gathering rows between two modules of one stage in the forward and in the backward.

        Devices wait for each other in them. They are 0 where the tensor-parallel sizes are equal, and where rows are
        only split.

        Args:
            unit: The unit of the stage.
            sender: The module before.
            receiver: The module after it.
            has_gradients: Whether gradients go back from one to the other.
        """
        replicas, *counts = row_gathers(unit, sender, receiver)
        seconds = np.zeros((2, self._microbatches, unit.parallelism.shared_replicas))
        for number, count in enumerate(counts if has_gradients else counts[:1]):
            if count > 1:
                last = self._graph[sender].layer_count
                size = self.bytes_between(LayerRun(sender, 0, last), LayerRun(receiver, 0, 1), replicas)
                gathered = np.asarray(
                    self._costs.gather_rows(size, count, unit.parallelism.dp * unit.parallelism.tp // replicas)
                )
                seconds[number] = slowest_of_shared(gathered, unit.parallelism.shared_replicas)
        return seconds

    def end_ranks(self, source: StageId, target: StageId, end: StageId) -> LayerParallelism:
        """The ranks of the module at one end of a hop: the last of the source, or the first of the target."""
        runs = self._runs[end]
        return module_parallelism(self._units[end[0]], runs[-1 if end == source else 0].module)

    def least_seconds(self, source: StageId, target: StageId, back: bool = False) -> float:
        """A lower bound of `seconds`: what receiving the smallest activation takes."""
        key = ("least", back, *self._edge_key(source, target))
        return self._batch.of_hops.get(key, lambda: self._least_seconds(source, target, back))

    def _least_seconds(self, source: StageId, target: StageId, back: bool) -> float:
        ranks = self.end_ranks(source, target, source if back else target)
        shards = ranks.cp * (ranks.sequence_shards if self._is_within_module(target) else 1)
        output, extra = self._hop_elements(source, target)
        exchanged = self._stages.is_exchange(source, target)
        elements = sum(
            float(quantity.evaluate(self.replica_loads(module, ranks.dp, exchanged).distinct).min())
            for module, quantity in (output, extra)
        )
        size = np.full((self._microbatches, 1), self._costs.element_bytes * elements / shards)
        return float(self._link_seconds(source, target, size).min())

    def _is_within_module(self, target: StageId) -> bool:
        """Whether a hop to a stage is between stages of one module; between modules all ranks have all positions."""
        return self._runs[target][0].first > 0

    def _link_seconds(
        self, source: StageId, target: StageId, size: Float[np.ndarray, "m i"]
    ) -> Float[np.ndarray, "m i"]:
        """Seconds of sending so many bytes of each microbatch between the pipeline replicas that take it."""
        ranks = (*self._stages.ranks_of[source], *self._stages.ranks_of[target])
        if len(ranks) == 2:  # neither has several pipeline replicas
            return self._rank_link_seconds(*ranks, size)
        rank_of_microbatch, numbers = self._stages.rank_of_microbatch, range(self._microbatches)
        ends = [(rank_of_microbatch(source, number), rank_of_microbatch(target, number)) for number in numbers]
        pair_seconds = {pair: self._rank_link_seconds(*pair, size) for pair in dict.fromkeys(ends)}
        return np.stack([pair_seconds[pair][number] for number, pair in enumerate(ends)])

    def _rank_link_seconds(
        self, source: PipelineRank, target: PipelineRank, size: Float[np.ndarray, "m i"]
    ) -> Float[np.ndarray, "m i"]:
        node, devices = self._node_of(source), self._stages.rank_devices
        count = _count_in_either(devices[source], devices[target])
        inside = node is not None and node == self._node_of(target)
        return np.asarray(self._costs.hop(size, inside, count))

    def bytes_on(self, source: StageId, target: StageId, dp: int) -> Float[np.ndarray, "m i"]:
        """Bytes of the activation between two stages at each of `dp` replicas."""
        before, after = self._runs[source][-1], self._runs[target][0]
        return self.bytes_between(before, after, dp, self._stages.is_exchange(source, target))

    def bytes_between(
        self, before: LayerRun, after: LayerRun, dp: int, exchanged: bool = False
    ) -> Float[np.ndarray, "m i"]:
        """Bytes of the activation from some layers to the layers after them, at each of `dp` replicas."""
        output, extra = self._elements_between(before, after)
        return self._costs.element_bytes * (self._at(*output, dp, exchanged) + self._at(*extra, dp, exchanged))

    def _hop_elements(self, source: StageId, target: StageId) -> tuple[tuple[str, PerLoad], tuple[str, PerLoad]]:
        return self._elements_between(self._runs[source][-1], self._runs[target][0])

    def _elements_between(self, before: LayerRun, after: LayerRun) -> tuple[tuple[str, PerLoad], tuple[str, PerLoad]]:
        """Elements sent between layers, from the loads of the module before and of the module after."""
        module, _, last = before
        last_layer, _ = self._graph[module].layers_between(max(last - 1, 0), last)[-1]
        target_module, first, _ = after
        extra_input = ZERO if first else self._graph[target_module].extra_input
        return (module, last_layer.output_elements), (target_module, extra_input)

    def _at(self, module: str, quantity: PerLoad, dp: int, exchanged: bool) -> Float[np.ndarray, "m i"]:
        """Evaluates a quantity at each of `dp` replicas of a module."""
        loads = self.replica_loads(module, dp, exchanged)
        return quantity.evaluate(loads.distinct)[loads.index]

    def _node_of(self, rank: PipelineRank) -> int | None:
        """The node that has all devices of a pipeline rank; None if several do."""
        if rank not in self._nodes:
            devices, size = self._stages.rank_devices[rank], self._costs.devices_per_node
            first, last = min(devices) // size, max(devices) // size
            self._nodes[rank] = first if first == last else None
        return self._nodes[rank]


@functools.lru_cache(maxsize=64)
def _count_in_either(devices: frozenset[int], others: frozenset[int]) -> int:
    """Number of devices in one of two sets or in both."""
    return len(devices | others)
