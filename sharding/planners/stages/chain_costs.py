"""The layers of a chain as arrays, from the costs of its layers for the rows of a global batch.

Where a module has several replicas on the devices that its unit shares, each layer takes what its slowest of them does,
as in `sharding/costs/stages/plan_costs.py`. There the sum over the stage's layers of the module is taken on one
replica; so the two are equal where one is the slowest in all layers, as with items of equal size, and else this is an
upper bound.
"""

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.costs.batch_costs import BatchCosts, ReplicaLoads
from sharding.costs.cost_model import LayerParallelism, LayerSeconds
from sharding.costs.memory import train_state_bytes
from sharding.costs.stages.hop_costs import HopCosts
from sharding.costs.stages.shared_replicas import on_replicas, slowest_of_shared
from sharding.costs.stages.stage_parameters import module_parallelism
from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.layer_chain import LayerChain
from sharding.plans.resolved.stage_graph import StageGraph
from sharding.plans.resolved.trained_parts import LayerGradients, RequiredGradients
from sharding.plans.unit_layers import program_layers
from sharding.specs.layers.layer import ZERO, LayerSpec, RecomputePolicy
from sharding.specs.layers.module_spec import ModuleSpec


class _LayerArrays(NamedTuple):
    """The entries of `LayerChain` for one layer."""

    forward: Float[np.ndarray, " k"]
    backward: Float[np.ndarray, " k"]
    held_bytes: Float[np.ndarray, "k f"]
    workspace: Float[np.ndarray, " k"]
    static_bytes: float
    parameters: float
    handed_on: float
    hop_seconds: float
    gather_seconds: float


def layer_chain(
    batch: BatchCosts,
    trained_parts: frozenset[str],
    layout: ChainLayout,
    policies: tuple[RecomputePolicy, ...],
    most_in_flight: int,
) -> LayerChain:
    """The layers of a chain under a layout, for microbatches of a global batch.

    Args:
        batch: Costs of layers for the rows of the global batch.
        trained_parts: Parts that train.
        layout: The layout.
        policies: Recomputation policies that layers may have.
        most_in_flight: For how many microbatches in flight bytes are computed.

    Raises:
        PlanError: The replicas of a module cannot divide the rows of a microbatch.
    """
    builder = _Builder(batch, trained_parts, layout, policies, most_in_flight)
    kinds: list[int] = []
    layers: list[int] = []
    arrays: list[_LayerArrays] = []
    for name in layout.modules:
        for key, count in _runs(batch.graph[name]):
            arrays += [builder.layer(name, key)] * count
            kinds += [len(set(kinds))] * count
            layers += [1 if batch.graph[name].divisible else batch.graph[name].layer_count] * count
    modules = [name for name in layout.modules for _, count in _runs(batch.graph[name]) for _ in range(count)]
    return LayerChain(
        policies=policies,
        modules=tuple(modules),
        kinds=np.array(kinds),
        layers=np.array(layers),
        **{
            field: np.array([getattr(layer_arrays, field) for layer_arrays in arrays], float)
            for field in _LayerArrays._fields
        },
    )


class _Place(NamedTuple):
    """Where a layer is in its module's stack.

    Attributes:
        layer: Number of the layer, or of a layer like it; 0 for all layers of a module that is one stage.
        is_last: Whether it is the last.
    """

    layer: int
    is_last: bool


def _runs(module: ModuleSpec) -> tuple[tuple[_Place, int], ...]:
    """Kinds of a module's layers, and how many of each follow each other."""
    if not module.divisible or module.layer_count == 1:
        return ((_Place(0, True), 1),)
    last = module.layer_count - 1
    starts = itertools.accumulate((count for _, count in module.stack), initial=0)
    bounds = sorted({1, last, *starts})
    return tuple(
        (_Place(first, first == last), end - first) for first, end in itertools.pairwise([0, *bounds]) if end > first
    )


class _Builder:
    """Sums the costs of what belongs to each layer of a chain."""

    def __init__(
        self,
        batch: BatchCosts,
        trained_parts: frozenset[str],
        layout: ChainLayout,
        policies: tuple[RecomputePolicy, ...],
        most_in_flight: int,
    ) -> None:
        self._batch, self._layout, self._policies = batch, layout, policies
        self._required = RequiredGradients(batch.graph, trained_parts)
        self._in_flight = np.arange(1, min(most_in_flight, layout.microbatches) + 1)
        one_stage = dataclasses.replace(layout, pp=1, chunks=1)
        self._unit = one_stage.unit((sum(batch.graph[name].layer_count for name in layout.modules),), ("none",))
        layers = program_layers((self._unit,), batch.graph)
        self._hops = HopCosts((self._unit,), layers, layout.microbatches, batch, StageGraph({}, ()))

    def layer(self, name: str, place: _Place) -> _LayerArrays:
        """The arrays of a layer at a place of a module's stack."""
        module, ranks, batch = self._batch.graph[name], module_parallelism(self._unit, name), self._batch
        loads = batch.loads(name, self._layout.microbatches, ranks.dp)
        parameters, state = 0.0, 0.0
        forward, backward = np.zeros((2, len(self._policies)))
        saved = np.zeros((len(self._policies), *loads.index.shape))
        workspace = np.zeros(len(self._policies))
        stack = max(2, module.layer_count // self._layout.stage_count)
        for layer, count, gradients in self._layers_at(module, place):
            parameters += count * layer.parameter_count
            state += count * self._state_bytes(LayerGradients(layer, count, gradients), ranks)
            for number, policy in enumerate(self._policies):
                layer_costs = batch.layer(name, layer.name, stack, gradients, ranks, policy, self._layout.microbatches)
                forward[number] += count * self._mean_seconds(layer_costs.forward, layer, loads, ranks)
                backward[number] += count * self._mean_seconds(layer_costs.backward, layer, loads, ranks)
                saved[number] += count * np.asarray(layer_costs.saved_bytes)[loads.index]
                workspace[number] = max(workspace[number], float(np.max(layer_costs.workspace_bytes)))
        output, sent = self._output(module, place)
        return _LayerArrays(
            forward,
            backward,
            np.stack([self._held(saved[number]) for number in range(len(saved))]),
            workspace,
            state,
            parameters,
            output,
            sent,
            self._gather_seconds(name) if place.is_last else 0.0,
        )

    def _mean_seconds(
        self, seconds: LayerSeconds, layer: LayerSpec, loads: ReplicaLoads, ranks: LayerParallelism
    ) -> float:
        """The mean over microbatches and shared replicas, of which each waits for the slowest of a module's there."""
        shared = self._unit.parallelism.shared_replicas
        replica_seconds = on_replicas(seconds, layer, loads.index, ranks.ep, shared)
        return float(slowest_of_shared(np.asarray(replica_seconds.total), shared).mean())

    def _gather_seconds(self, sender: str) -> float:
        """Mean seconds of gathering rows between a module and the next in one stage, forward and backward."""
        following = self._layout.modules[self._layout.modules.index(sender) + 1 :]
        if not following:
            return 0.0
        has_gradients = self._required.trains_upstream(following[0])
        gathers = self._hops.row_gather_seconds(self._unit, sender, following[0], has_gradients)
        return float(gathers.sum(axis=0).mean())

    def _layers_at(self, module: ModuleSpec, place: _Place) -> tuple[LayerGradients, ...]:
        """Pairs (layer, count) that belong to a layer: itself, adapters, and what precedes or follows the stack."""
        every = self._required.of_layers(module.name, 0, module.layer_count)
        if not module.divisible:
            return every
        here = {layer.name for layer, _ in module.layers_between(place.layer, place.layer + 1)}
        return tuple(run._replace(count=1) for run in every if run.layer.name in here)

    def _held(self, saved: Float[np.ndarray, "m i"]) -> Float[np.ndarray, " f"]:
        """The most bytes that any f consecutive microbatches save on a replica."""
        before = np.concatenate([np.zeros((1, saved.shape[1])), np.cumsum(saved, axis=0)])
        return np.array([float((before[count:] - before[:-count]).max()) for count in self._in_flight.tolist()])

    def _state_bytes(self, run: LayerGradients, ranks: LayerParallelism) -> float:
        """Bytes of weights, gradients and optimizer state of one layer on a device."""
        trains = "wgrad" in run.gradients
        shared = run.layer.parameters_per_rank(ranks.tp)
        experts = run.layer.expert_parameters_per_rank(ranks.tp, ranks.ep)
        replicas, costs = ranks.dp * ranks.cp, self._batch.costs
        shared_bytes = train_state_bytes(shared, trains * shared, replicas, costs)
        expert_bytes = train_state_bytes(experts, trains * experts, replicas / ranks.ep, costs)
        return float(shared_bytes + expert_bytes)

    def _output(self, module: ModuleSpec, place: _Place) -> tuple[float, float]:
        """Elements that a layer hands on of a mean microbatch, and seconds of sending them from a device to one."""
        layout, rows = self._layout, self._batch.rows
        last = self._layers_at(module, place)[-1].layer
        elements = float(last.output_elements.evaluate(rows[module.name].sum(axis=0) / layout.microbatches))
        following = layout.modules[layout.modules.index(module.name) + 1 :]
        if place.is_last and following:
            extra = self._batch.graph[following[0]].extra_input
            if extra != ZERO:
                elements += float(extra.evaluate(rows[following[0]].sum(axis=0) / layout.microbatches))
        ranks = module_parallelism(self._unit, module.name)
        shards = ranks.dp * ranks.cp * (1 if place.is_last else ranks.sequence_shards)
        size = np.asarray(self._batch.costs.element_bytes * elements / shards)
        return elements, float(self._batch.costs.hop(size, False, 2 * layout.stage_devices))
