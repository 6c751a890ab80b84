"""Lower bounds of the ops of a plan's step, from the costs of its layers; planners read them before they simulate."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.costs.batch_costs import BatchCosts
from sharding.costs.stages.compiled_costs import compiled_layers
from sharding.costs.stages.plan_layers import PlanLayers
from sharding.costs.stages.sharded_weights import WeightExchange, exposed
from sharding.costs.stages.shared_replicas import on_replicas, slowest_of_shared
from sharding.costs.stages.stage_parameters import LayersOfStage
from sharding.costs.step_costs import StageWork, StepWork
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.plans.unit_plan import UnitPlan


def plan_work(resolved: ResolvedPlan, batch: BatchCosts) -> StepWork:
    """Returns the lower bounds of a plan's ops; takes the arguments of `plan_costs` and a fraction of its time."""
    builder, stages = _PlanWork.of_plan(resolved, batch), resolved.stages
    return StepWork(
        stages={(name, number): builder.of_unit_named(name)[number] for name, number in stages.stages},
        hops={(source, target): builder.hops.least_seconds(source, target) for source, target in stages.edges},
        gradient_hops={
            (source, target): builder.hops.least_seconds(source, target, back=True) for source, target in stages.edges
        },
        global_norm=batch.costs.gradient_norm(len(stages.stages)),
    )


def unit_work(
    unit: UnitPlan, microbatches: int, batch: BatchCosts, trained_parts: frozenset[str]
) -> tuple[StageWork, ...]:
    """Returns the lower bounds of every stage of one unit, wherever the others are."""
    builder = _PlanWork.of_unit(unit, microbatches, batch, trained_parts)
    return builder.of_unit_named(unit.name)


class _PassWork(NamedTuple):
    """Seconds of a stage's forwards, or of its backwards.

    Attributes:
        total: Seconds of all microbatches, on each replica of every pipeline replica.
        slowest: Seconds of each microbatch, on the replica that takes longest for it.
        least: Seconds that no microbatch takes less than.
    """

    total: Float[np.ndarray, " i"]
    slowest: Float[np.ndarray, " m"]
    least: float


class _PlanWork(PlanLayers):
    """Computes the lower bounds of a plan's stages; equal stages share them."""

    def of_unit_named(self, name: str) -> tuple[StageWork, ...]:
        """Returns the lower bounds of every stage of a unit."""
        unit = self._units[name]
        return self._batch.of_units.get(
            ("work", unit, self._microbatches, self._required.trained_parts),
            lambda: tuple(self._work((name, number)) for number in range(unit.program_count)),
        )

    def _work(self, stage: StageId) -> StageWork:
        name, number = stage
        unit, layers = self._units[name], self._layers(stage)
        if unit.is_compiled:
            layers = compiled_layers(layers, unit, self._graph).rank
        exchanges = self._weight_exchanges(layers, unit, number)
        key = ("work", *self._stage_key(layers, exchanges, unit))
        forward, backward, computing = self._batch.of_stages.get(key, lambda: self._add_work(layers, exchanges, unit))
        return StageWork(
            forward=forward.total,
            backward=backward.total,
            computing=computing,
            slowest=forward.slowest + backward.slowest,
            least_forward=forward.least,
            least_backward=backward.least,
            **self._once_per_step(unit, number, layers)._asdict(),
        )

    def _add_work(
        self, layers: tuple[LayersOfStage, ...], exchanges: tuple[WeightExchange, ...], unit: UnitPlan
    ) -> tuple[_PassWork, _PassWork, Float[np.ndarray, " i"]]:
        """Seconds of all microbatches' forwards and backwards on each replica, and without waits (`StageWork`).

        What modules of unlike tensor-parallel sizes gather between each other is left out.
        """
        least, shared = np.zeros(2), unit.parallelism.shared_replicas
        by_load: dict[tuple[str, int], Float[np.ndarray, "3 d"]] = {}  # forward, backward, waits in both
        waiting: dict[tuple[str, int], Float[np.ndarray, "3 m i"]] = {}  # of experts, on every replica
        for run, exchange in zip(layers, exchanges, strict=True):
            module, layer, count, ranks = run.module, run.layer, run.count, run.ranks
            layer_costs, key = self._layer_costs(run), (module, ranks.dp)
            passes = (layer_costs.forward, layer_costs.backward)
            least += [count * np.min(seconds.total) for seconds in passes]
            loads = self.hops.replica_loads(module, ranks.dp)
            by_load.setdefault(key, np.zeros((3, len(loads.distinct))))
            if layer.expert_parameters:
                passes = tuple(
                    on_replicas(pass_seconds, layer, loads.index, ranks.ep, shared) for pass_seconds in passes
                )
            per_layer = np.stack([pass_seconds.total for pass_seconds in passes])
            is_first, is_last = run is layers[0], run is layers[-1]
            waits = exposed(exchange, per_layer, count, self._costs.effects, is_first=is_first, is_last=is_last)
            communication = count * sum(pass_seconds.communication for pass_seconds in passes) + waits.sum(axis=0)
            layer_seconds = np.concatenate([count * per_layer + waits, communication[None]])
            if layer.expert_parameters:
                waiting[key] = layer_seconds + waiting.get(key, 0.0)
            else:
                by_load[key] += layer_seconds
        seconds = np.zeros((3, self._microbatches, shared))
        for (module, dp), load_seconds in by_load.items():
            # All of a module's layers are added before its slowest replica is taken: another one may be in each.
            by_replica = load_seconds[:, self.hops.replica_loads(module, dp).index] + waiting.get((module, dp), 0.0)
            seconds += slowest_of_shared(by_replica, shared)
        taken_by = np.array(unit.replica_of_microbatches(self._microbatches))
        pipeline_replica_sums = [
            seconds[:, taken_by == pipeline_replica].sum(axis=1)
            for pipeline_replica in range(unit.parallelism.pipeline_replicas)
        ]
        totals = np.concatenate(pipeline_replica_sums, axis=1)
        forward, backward = (
            _PassWork(total, pass_seconds.max(axis=1), float(least_seconds))
            for total, pass_seconds, least_seconds in zip(totals[:2], seconds[:2], least, strict=True)
        )
        # The slowest replica that shares others' devices may wait less than another of them, but no longer.
        return forward, backward, totals[0] + totals[1] - totals[2]
