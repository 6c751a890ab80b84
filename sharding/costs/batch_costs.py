"""Costs of layers for the rows of a global batch: equal loads and equal layers are costed once, for all plans.

`plan_costs` reads these costs for the rows of a step.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.cost_model import (
    CostModel,
    LayerParallelism,
    LayerSeconds,
    Times,
    beside_transfer,
    masked_flops,
    useful_flops,
)
from sharding.costs.memory import offloaded_bytes, saved_activation_bytes, workspace_bytes
from sharding.costs.own_rows import OwnRows, capacity_numbers, dealt_loads, executed_loads, largest_over_needed
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.trained_parts import Gradient, RequiredGradients
from sharding.recently_used import RecentlyUsed
from sharding.specs.layers.layer import LayerSpec, LoadColumn, Loads, RecomputePolicy
from sharding.specs.layers.recomputed_kernels import RecomputedFlops, recomputed_flops
from sharding.specs.modules import ModuleGraph

# Of which a batch keeps what it has summed; of 100,000 rows each takes megabytes.
_STAGES, _UNITS, _HOPS = 64, 16, 128

LoadsByModule = Mapping[str, Float[np.ndarray, "n 4"]]
"""For every module, the load of each row of the global batch."""


def replica_loads(rows: Loads, microbatches: int, dp: int) -> Float[np.ndarray, "m i 4"]:
    """The load of every replica in every microbatch; a view of the rows where each replica has one.

    Rows go to replicas in order. Where there are more replicas than rows, each row's items are divided among several
    replicas (as in Megatron-LM's replicated encoders), and its tokens and squared lengths in proportion.

    Args:
        rows: Loads of the global batch's rows, [rows, 4].
        microbatches: Number of microbatches m.
        dp: Number of replicas i.
    """
    microbatch_rows = len(rows) // microbatches
    if microbatch_rows * microbatches != len(rows):
        raise PlanError(
            f"{len(rows)} rows of the global batch are not divisible by {microbatches} microbatches; use a multiple of "
            f"{microbatches} rows, or another number of microbatches"
        )
    if microbatch_rows % dp == 0:
        of_replicas = rows.reshape(microbatches, dp, microbatch_rows // dp, len(LoadColumn))
        return of_replicas[:, :, 0] if microbatch_rows == dp else of_replicas.sum(axis=2)
    if dp % microbatch_rows:
        raise PlanError(f"dp {dp} neither divides the {microbatch_rows} rows of a microbatch nor is a multiple of them")
    replicas = dp // microbatch_rows
    items = rows[:, None, LoadColumn.ITEMS]
    dealt = np.floor((items + np.arange(replicas)[::-1]) / replicas)
    share = dealt / np.maximum(items, 1)
    return (rows[:, None, :] * share[:, :, None]).reshape(microbatches, dp, len(LoadColumn))


class ReplicaLoads(NamedTuple):
    """The loads of a module's replicas.

    Attributes:
        distinct: The loads that differ, padding included.
        useful: Each of them without padding.
        index: The number of the distinct load that each replica has in each microbatch.
    """

    distinct: Float[np.ndarray, "d 4"]
    useful: Float[np.ndarray, "d 4"]
    index: Int[np.ndarray, "m i"]


def distinct_loads(loads: Float[np.ndarray, "n c"]) -> tuple[Float[np.ndarray, "d c"], Int[np.ndarray, " n"]]:
    """Returns the loads that differ, and for each load the number of the equal one among them."""
    # Equal loads have equal keys, so that one sort brings them together. Unlike loads hardly ever have equal keys: such
    # loads may come by turns, and are then listed more than once.
    weights = np.sqrt(2.0 + np.arange(loads.shape[1]))
    keys = sum(weight * column for weight, column in zip(weights, loads.T, strict=True))
    order = np.argsort(keys)
    ordered = loads[order]
    is_new = np.ones(len(loads), bool)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    index = np.empty(len(loads), int)
    index[order] = np.cumsum(is_new) - 1
    return ordered[is_new], index


class LayerCosts(NamedTuple):
    """Costs of one of a stack of equal layers, for every distinct load.

    Attributes:
        forward: Seconds of the forward.
        backward: Seconds of the backward.
        flops: Useful FLOPs of both.
        saved_bytes: Bytes saved on a device from the forward to the backward.
        offloaded_bytes: Bytes saved in its host's memory.
        workspace_bytes: Bytes that are there while the layer runs, and no longer.
    """

    forward: LayerSeconds
    backward: LayerSeconds
    flops: Times
    saved_bytes: Times
    offloaded_bytes: Times
    workspace_bytes: Times


class BatchCosts:
    """Costs of layers for the rows of a global batch.

    Planners cost tens of plans for the same rows. Which rows a replica takes depends only on how many shares all
    microbatches and replicas divide the batch into, so plans that agree in that share what their layers take.

    Args:
        graph: The modules with their layers.
        costs: The cost model.
        rows: Loads of the global batch's rows, in the order in which the step takes them.

    Attributes:
        of_stages: What the layers of the last stages sum up to; plans that differ in some stages share the others.
        of_units: Costs and bounds of all stages of the last units.
        of_hops: Seconds of the last hops.
    """

    def __init__(self, graph: ModuleGraph, costs: CostModel, rows: LoadsByModule) -> None:
        self.graph, self.costs, self.rows = graph, costs, rows
        self.of_stages = RecentlyUsed[Any](_STAGES)
        self.of_units = RecentlyUsed[Any](_UNITS)
        self.of_hops = RecentlyUsed[Any](_HOPS)
        self._totals: dict[tuple[str, int], Float[np.ndarray, "m 4"]] = {}
        self._distinct: dict[tuple, ReplicaLoads] = {}
        self._layers: dict[tuple, LayerCosts] = {}
        self._masked_flops: dict[frozenset[str], float] = {}
        self._recomputed: dict[tuple[str, str, RecomputePolicy], RecomputedFlops] = {}

    def loads(self, module: str, microbatches: int, dp: int, own_rows: OwnRows | None = None) -> ReplicaLoads:
        """The loads of a module's replicas; raises PlanError if they cannot divide the rows.

        Args:
            module: The module.
            microbatches: Number of microbatches.
            dp: Number of replicas.
            own_rows: The rows over which items are dealt, if the module has some.
        """
        key = (module, microbatches, dp, own_rows) if own_rows else (module, microbatches * dp)
        if key not in self._distinct or len(self.rows[module]) % microbatches:
            self._distinct[key] = self._divide(module, microbatches, dp, own_rows)
        distinct, useful, index = self._distinct[key]
        return ReplicaLoads(distinct, useful, index.reshape(microbatches, dp))

    def masked_flops(self, required: RequiredGradients) -> float:
        """FLOPs of the masked squares of all rows (`StepCosts.masked_flops`), which do not depend on the plan."""
        if required.trained_parts not in self._masked_flops:
            self._masked_flops[required.trained_parts] = sum(
                count * masked_flops(layer, self.rows[module.name].sum(axis=0), gradients)
                for module in self.graph.modules
                for layer, count, gradients in required.of_layers(module.name, 0, module.layer_count)
            )
        return self._masked_flops[required.trained_parts]

    def recomputed_flops(self, module: str, layer: LayerSpec, recompute: RecomputePolicy) -> RecomputedFlops:
        """Forward FLOPs that the backward of one layer computes again for all rows."""
        key = (module, layer.name, recompute)
        if key not in self._recomputed:
            self._recomputed[key] = recomputed_flops(layer, self.rows[module].sum(axis=0), recompute)
        return self._recomputed[key]

    def _divide(self, module: str, microbatches: int, dp: int, own_rows: OwnRows | None) -> ReplicaLoads:
        if own_rows is None:
            loads = replica_loads(self.rows[module], microbatches, dp)
            distinct, index = distinct_loads(loads.reshape(-1, len(LoadColumn)))
            return ReplicaLoads(distinct, distinct, index.reshape(microbatches, dp))
        totals = self._microbatch_loads(module, microbatches)
        dealt, kind = dealt_loads(totals, dp)  # [m, 3, 4], [m, i]
        executed = dealt
        if own_rows.capacities:
            executed = np.broadcast_to(executed_loads(totals, own_rows, dp, self.graph[module])[:, None], dealt.shape)
        both, index = distinct_loads(np.concatenate([executed, dealt], axis=2).reshape(-1, 2 * len(LoadColumn)))
        distinct, useful = np.split(both, 2, axis=1)
        return ReplicaLoads(distinct, useful, np.take_along_axis(index.reshape(microbatches, -1), kind, axis=1))

    def _microbatch_loads(self, module: str, microbatches: int) -> Float[np.ndarray, "m 4"]:
        """The loads of whole microbatches of a module."""
        if (module, microbatches) not in self._totals:
            self._totals[module, microbatches] = replica_loads(self.rows[module], microbatches, 1)[:, 0]
        return self._totals[module, microbatches]

    def largest_over_needed(self, module: str, microbatches: int, own_rows: OwnRows) -> float:
        """See `sharding.costs.own_rows.largest_over_needed`."""
        totals = self._microbatch_loads(module, microbatches)
        return largest_over_needed(totals, own_rows, self.graph[module])

    def capacity_numbers(self, module: str, microbatches: int, own_rows: OwnRows) -> Int[np.ndarray, " m"]:
        """The number of the capacity with which each microbatch runs; the largest for one that fits into none."""
        totals = self._microbatch_loads(module, microbatches)
        numbers = capacity_numbers(totals, own_rows, self.graph[module])
        return np.minimum(numbers, max(len(own_rows.capacities) - 1, 0))

    def layer(
        self,
        module: str,
        name: str,
        stack: int,
        gradients: tuple[Gradient, ...],
        ranks: LayerParallelism,
        recompute: RecomputePolicy,
        microbatches: int,
        own_rows: OwnRows | None = None,
    ) -> LayerCosts:
        """Costs of one of `stack` equal layers of a module on `ranks.dp` replicas, as `loads` divides its loads."""
        stack = stack if self.costs.depends_on_stack else 1
        parts = (microbatches, own_rows) if own_rows else microbatches * ranks.dp
        key = (module, name, stack, gradients, ranks, recompute, parts)
        if key not in self._layers:
            layer, costs = self.graph[module].layer_named(name), self.costs
            loads, useful, _ = self.loads(module, microbatches, ranks.dp, own_rows)
            forward = costs.forward(layer, loads, ranks, stack)
            backward = costs.backward(layer, loads, ranks, gradients, recompute, stack)
            saved = offloaded = np.zeros(len(loads))
            workspace = workspace_bytes(layer, loads, ranks, recompute if gradients else "none", costs)
            if gradients:
                saved = saved_activation_bytes(layer, loads, ranks, recompute, costs)
                if recompute == "offload":
                    offloaded = offloaded_bytes(layer, loads, ranks, costs)
                    forward, backward = (beside_transfer(seconds, offloaded, costs) for seconds in (forward, backward))
            self._layers[key] = LayerCosts(
                forward, backward, useful_flops(layer, useful, gradients), saved, offloaded, workspace
            )
        return self._layers[key]
