"""A plan's costs, computed from the costs of its layers: seconds and bytes of every op of a step for given rows.

Problems of planners call `plan_costs` before each simulation, and the row reorderer before a run.
"""

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.costs.batch_costs import BatchCosts
from sharding.costs.memory import train_state
from sharding.costs.stages.compiled_costs import (
    CompiledLayers,
    CompiledSums,
    activation_bytes,
    compiled_layers,
    lockstep_sums,
    training_order,
)
from sharding.costs.stages.once_per_step import OncePerStep
from sharding.costs.stages.plan_layers import PlanLayers
from sharding.costs.stages.sharded_weights import (
    NO_EXCHANGE,
    WeightExchange,
    exposed,
    gathered_bytes,
    sharded_passes,
)
from sharding.costs.stages.shared_replicas import on_replicas, on_shared_replicas
from sharding.costs.stages.stage_parameters import LayersOfStage, module_parameters
from sharding.costs.stages.wgrad_costs import wgrad_costs, without_wgrads
from sharding.costs.step_costs import PER_MICROBATCH, ShardedPasses, StageCosts, StaticBytes, StepCosts, WgradCosts
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.named.split_stages import split_stages
from sharding.specs.layers.layer import LoadColumn
from sharding.specs.layers.recomputed_kernels import RecomputedFlops


def plan_costs(resolved: ResolvedPlan, batch: BatchCosts) -> StepCosts:
    """Costs of every op of a step.

    Where a unit has several pipeline replicas, the costs of a microbatch lie on the replicas of the pipeline replica
    that takes it.

    Args:
        resolved: The plan.
        batch: Costs of the layers for the rows of a global batch.
    """
    stages, trained = resolved.stages, resolved.trained_stages
    builder = _PlanCosts.of_plan(resolved, batch)
    backward_stages = stages.with_descendants(trained)
    split = split_stages(resolved, trained)
    uses_fp8 = any(layer.uses_fp8 for module in batch.graph.modules for layer, _ in module.all_layers)
    return StepCosts(
        stages={stage: builder.stage(stage, splits_backward=stage in split) for stage in stages.stages},
        hops={(source, target): builder.hops.seconds(source, target) for source, target in stages.edges},
        gradient_hops={
            (source, target): builder.hops.seconds(source, target, back=True)
            for source, target in stages.edges
            if source in backward_stages
        },
        peak_flops=batch.costs.peak_flops * (batch.costs.fp8_rate if uses_fp8 else 1.0),
        tokens=float(batch.rows[batch.graph.backbone.name][:, LoadColumn.TOKENS].sum()),
        global_norm=batch.costs.gradient_norm(len(stages.stages)),
        masked_flops=batch.masked_flops(resolved.required_gradients),
        recomputed=builder.recomputed(),
        uses_fp8=uses_fp8,
    )


def unit_costs(
    unit: UnitPlan, microbatches: int, batch: BatchCosts, trained_parts: frozenset[str]
) -> tuple[StageCosts, ...]:
    """Costs of every stage of one unit, wherever the others are, without the bytes that it exchanges with them.

    Args:
        unit: The unit.
        microbatches: Number of microbatches among which the rows are divided; it may be less than the unit has pipeline
            replicas.
        batch: Costs of the layers for the rows.
        trained_parts: Parts that train.
    """
    builder = _PlanCosts.of_unit(unit, microbatches, batch, trained_parts)
    return tuple(builder.stage((unit.name, number)) for number in range(unit.program_count))


class _LayerNeeds(NamedTuple):
    """Bytes that layers of a stage need besides their state while they run, and their collectives.

    Attributes:
        bytes_: `StaticBytes.gathered` and `StaticBytes.workspace`.
        sharded: As in `StageCosts`, empty where replicas have whole weights.
    """

    bytes_: tuple[float, float]
    sharded: ShardedPasses


class _PlanCosts(PlanLayers):
    """Costs of a plan's stages; equal stages share what they sum."""

    def _layer_sums(
        self, layers: tuple[LayersOfStage, ...], unit: UnitPlan, number: int, *, keeps_gathered: bool = False
    ) -> tuple[dict[str, Float[np.ndarray, "m _"]], _LayerNeeds]:
        """The PER_MICROBATCH fields of a stage with these layers, and what they need; equal stages share them.

        With `keeps_gathered`, gathered weights are kept from the forward to the backward, else gathered in each.
        """
        exchanges = self._weight_exchanges(layers, unit, number)
        if keeps_gathered:
            exchanges = tuple(exchange._replace(gather_again=0.0) for exchange in exchanges)
        key = ("costs", *self._stage_key(layers, exchanges, unit))
        return self._batch.of_stages.get(key, lambda: self._add_layers(layers, exchanges, unit))

    def _add_layers(
        self, layers: tuple[LayersOfStage, ...], exchanges: tuple[WeightExchange, ...], unit: UnitPlan
    ) -> tuple[dict[str, Float[np.ndarray, "m _"]], _LayerNeeds]:
        microbatches, shared = self._microbatches, unit.parallelism.shared_replicas
        by_module = {
            run.module: {field: np.zeros((microbatches, run.ranks.dp)) for field in PER_MICROBATCH} for run in layers
        }
        workspace, gathered, sharded = 0.0, 0.0, ShardedPasses()
        for run, exchange in zip(layers, exchanges, strict=True):
            module, layer, count, ranks = run.module, run.layer, run.count, run.ranks
            layer_costs = self._layer_costs(run)
            index = self.hops.replica_loads(module, ranks.dp).index
            forward, backward = (
                on_replicas(seconds, layer, index, ranks.ep, shared)
                for seconds in (layer_costs.forward, layer_costs.backward)
            )
            is_first, is_last = run is layers[0], run is layers[-1]
            waits = exposed(
                exchange,
                np.stack([forward.total, backward.total]),
                count,
                self._costs.effects,
                is_first=is_first,
                is_last=is_last,
            )
            per_layer = {
                "forward": forward.total,
                "forward_communication": forward.communication,
                "backward": backward.total,
                "backward_communication": backward.communication,
                "flops": np.asarray(layer_costs.flops)[index],
                "saved_bytes": np.asarray(layer_costs.saved_bytes)[index],
                "offloaded_bytes": np.asarray(layer_costs.offloaded_bytes)[index],
            }
            for field, values in per_layer.items():
                by_module[module][field] += count * values
            for name, seconds in zip(("forward", "backward"), waits, strict=True):
                by_module[module][name] += seconds
                by_module[module][f"{name}_communication"] += seconds
            if exchange != NO_EXCHANGE:
                sharded = sharded.plus(sharded_passes(exchange, forward.total, backward.total, waits, count))
            workspace = max(workspace, float(np.max(layer_costs.workspace_bytes)))  # one layer at a time runs
            gathered = max(gathered, gathered_bytes(run, self._costs))
        sums: dict[str, Float[np.ndarray, "m _"]] = {}
        for module, figures in by_module.items():
            shared_figures = on_shared_replicas(figures, unit, module) if unit.parallelism.module_tp else figures
            for field, values in shared_figures.items():
                sums[field] = values + sums.get(field, 0.0)
        for sender, receiver in itertools.pairwise(by_module):
            gathers = self.hops.row_gather_seconds(unit, sender, receiver, self._required.trains_upstream(receiver))
            for name, seconds in zip(("forward", "backward"), gathers, strict=True):
                sums[name] += seconds
                sums[f"{name}_communication"] += seconds
        return sums, _LayerNeeds((gathered, workspace), sharded)

    def stage(self, stage: StageId, *, splits_backward: bool = False) -> StageCosts:
        """Costs of one stage, whose gradients of weights may be apart from its backward."""
        name, number = stage
        unit = self._units[name]
        key = ("costs", unit, splits_backward, self._microbatches, self._required.trained_parts)
        known: dict[int, StageCosts] = self._batch.of_units.get(key, dict)
        if number not in known:
            known[number] = self._stage_alone(unit, number, splits_backward)
        alone = known[number]
        exchanged = self._exchange_bytes(stage)
        if unit.is_compiled or not exchanged:
            return alone
        static = alone.static._replace(exchanged=self._largest_over_needed(unit) * exchanged)
        return dataclasses.replace(alone, static=static)

    def _stage_alone(self, unit: UnitPlan, number: int, splits_backward: bool) -> StageCosts:
        """Costs of one stage without the bytes that it exchanges with other units."""
        layers = self._layers((unit.name, number))
        if unit.is_compiled:
            return self._compiled_stage(unit, compiled_layers(layers, unit, self._graph))
        sums, needs = self._layer_sums(layers, unit, number)
        once = self._once_per_step(unit, number, layers)
        growth = self._largest_over_needed(unit)
        *state, on_host = self._state_bytes(layers, unit)
        static = StaticBytes(
            *state,
            gathered=growth * needs.bytes_[0],
            workspace=max(growth * needs.bytes_[1], self._loaded_bytes(layers, unit)),
            reserved=(growth - 1) * float(sums["saved_bytes"].max()),
        )
        wgrad = self._wgrad(layers, unit) if splits_backward else None
        sharded = needs.sharded if unit.parallelism.fsdp > 1 else None
        passes = ("forward", "backward") if any(of.gradients for of in layers) else ("forward",)
        sums = sums | {name: np.maximum(sums[name], self._costs.effects.dispatch) for name in passes}
        return StageCosts(**sums, **once._asdict(), static=static, host_bytes=on_host, wgrad=wgrad, sharded=sharded)

    def _wgrad(self, layers: tuple[LayersOfStage, ...], unit: UnitPlan) -> WgradCosts:
        # What is waited for, such as the weights of fully sharded layers, counts for the backward.
        none = (NO_EXCHANGE,) * len(layers)
        whole, sent_back = (
            self._add_layers(stage_layers, none, unit)[0] for stage_layers in (layers, without_wgrads(layers))
        )
        return wgrad_costs(layers, unit, whole, sent_back, self.hops.replica_loads, self._costs)

    def _compiled_stage(self, unit: UnitPlan, layers: CompiledLayers) -> StageCosts:
        """Costs of a unit whose step is one program, or two."""
        chunk_sums, chunk_needs = self._layer_sums(layers.chunk, unit, 0)
        before, before_needs = self._layer_sums(layers.before, unit, 0, keeps_gathered=True)
        behind, behind_needs = self._layer_sums(layers.behind, unit, 0, keeps_gathered=True)
        (module,) = unit.modules
        activations = activation_bytes(layers.chunk, self.hops.replica_loads(module, unit.parallelism.dp), self._costs)
        held = (layers.rank, (*layers.before, *layers.behind))
        once = np.sum([self._once_per_step(unit, 0, held_layers) for held_layers in held], axis=0)
        *state, on_host = map(sum, zip(*(self._state_bytes(held_layers, unit) for held_layers in held), strict=True))
        around = float((before["saved_bytes"] + behind["saved_bytes"]).max())
        needs = (chunk_needs, before_needs, behind_needs)
        gathered, workspace = max((part_needs.bytes_ for part_needs in needs), key=sum)  # one of them runs at a time
        workspace = max(workspace, *(self._loaded_bytes(held_layers, unit) for held_layers in held))
        sharded = before_needs.sharded.plus(behind_needs.sharded, *[chunk_needs.sharded] * unit.parallelism.chunks)
        return StageCosts(
            **lockstep_sums(
                CompiledSums(chunk_sums, before, behind, activations),
                unit,
                training_order(layers, unit, self._graph),
            ),
            **OncePerStep(*once.tolist())._asdict(),
            static=StaticBytes(*state, gathered=gathered, workspace=workspace, reserved=around),
            host_bytes=on_host,
            sharded=sharded if unit.parallelism.fsdp > 1 else None,
        )

    def _state_bytes(self, layers: tuple[LayersOfStage, ...], unit: UnitPlan) -> list[float]:
        """Bytes of weights, gradients and optimizer state on a device, and of the last on its host (`TrainState`)."""
        states = [
            train_state(*parameters, self._costs)
            for parameters in module_parameters(layers, unit.parallelism.pipeline_replicas)
        ]
        return [float(sum(map(np.sum, kind))) for kind in zip(*states, strict=True)]

    def _loaded_bytes(self, layers: tuple[LayersOfStage, ...], unit: UnitPlan) -> float:
        """Bytes of optimizer state that an update has loaded from the host at a time: a layer's, old and new."""
        if not self._costs.optimizer.on_host:
            return 0.0
        trained = (run._replace(count=1) for run in layers if "wgrad" in run.gradients)
        return 2 * max((self._state_bytes((run,), unit)[-1] for run in trained), default=0.0)

    def recomputed(self) -> RecomputedFlops:
        """Forward FLOPs that the backwards of all stages compute again."""
        flops, masked = 0.0, 0.0
        for run in itertools.chain.from_iterable(map(self._layers, self.stages.stages)):
            if run.gradients:
                again = self._batch.recomputed_flops(run.module, run.layer, run.recompute)
                flops, masked = flops + run.count * again.flops, masked + run.count * again.masked
        return RecomputedFlops(flops, masked)

    def _largest_over_needed(self, unit: UnitPlan) -> float:
        """How much larger a microbatch of the largest capacity is than any of this step; one is in flight at most."""
        own_rows = self.hops.own_rows(unit.modules[0])
        return self._batch.largest_over_needed(unit.modules[0], self._microbatches, own_rows) if own_rows else 1.0

    def _exchange_bytes(self, stage: StageId) -> float:
        """Bytes that a stage exchanges for the largest microbatch: activations, or gradients on their way back."""
        edges = (edge for edge in self.stages.exchanges if stage in edge)
        cp = self._units[stage[0]].parallelism.cp
        replicas = {edge: self.hops.end_ranks(*edge, stage).dp for edge in edges}
        return sum((float(self.hops.bytes_on(*edge, dp).max()) / cp for edge, dp in replicas.items()), start=0.0)
