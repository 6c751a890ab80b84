"""Costs of a unit whose step is one program (`UnitPlan.executor`): seconds of its ticks, and bytes on its ranks."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.costs.batch_costs import ReplicaLoads
from sharding.costs.cost_model import CostModel
from sharding.costs.stages.stage_parameters import LayersOfStage
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.lockstep import TickOps, TickOrder, TickTable, tick_table
from sharding.specs.modules import ModuleGraph

Sums = Mapping[str, Float[np.ndarray, "m _"]]
"""The fields `PER_MICROBATCH` of `StageCosts`, summed over some layers."""


class CompiledLayers(NamedTuple):
    """The layers of a compiled unit.

    Attributes:
        chunk: Layers of a chunk.
        rank: Layers of the stack on a pipeline rank.
        before, behind: Layers before and behind the stack, which all pipeline ranks divide as tensor ranks do.
    """

    chunk: tuple[LayersOfStage, ...]
    rank: tuple[LayersOfStage, ...]
    before: tuple[LayersOfStage, ...]
    behind: tuple[LayersOfStage, ...]


def compiled_layers(layers: tuple[LayersOfStage, ...], unit: UnitPlan, graph: ModuleGraph) -> CompiledLayers:
    """Divides the layers of a compiled unit, given all of them."""
    (name,) = unit.modules
    before, behind = (
        {layer.name for layer in module_layers}
        for module_layers in (graph[name].leading_layers, graph[name].trailing_layers)
    )

    def around(names: set[str]) -> tuple[LayersOfStage, ...]:
        return tuple(
            run._replace(ranks=dataclasses.replace(run.ranks, tp=run.ranks.tp * unit.pp, collectives="all_reduce"))
            for run in layers
            if run.layer.name in names
        )

    stack = [run for run in layers if run.layer.name not in before | behind]
    return CompiledLayers(
        tuple(run._replace(count=run.count // unit.stage_count) for run in stack),
        tuple(run._replace(count=run.count // unit.pp) for run in stack),
        around(before),
        around(behind),
    )


class CompiledSums(NamedTuple):
    """Summed costs of the layers of a compiled unit.

    Attributes:
        chunk: Sums over the layers of a chunk.
        before, behind: Sums over the layers before and behind the stack.
        activation_bytes: Bytes of the activations between chunks.
    """

    chunk: Sums
    before: Sums
    behind: Sums
    activation_bytes: Float[np.ndarray, "m i"]


def activation_bytes(
    layers: tuple[LayersOfStage, ...], loads: ReplicaLoads, costs: CostModel
) -> Float[np.ndarray, "m i"]:
    """Bytes of the activations behind some layers, on each device of each replica."""
    layer, ranks = layers[-1].layer, layers[-1].ranks
    elements = layer.output_elements.evaluate(loads.distinct)[loads.index]
    return costs.element_bytes * elements / (ranks.cp * ranks.for_layer(layer).sequence_shards)


def training_order(layers: CompiledLayers, unit: UnitPlan, graph: ModuleGraph) -> TickOrder:
    """The order of forwards and backwards in a step of a compiled unit; with "gpipe" they are a program each."""
    if not any(run.gradients for run in (*layers.chunk, *layers.before, *layers.behind)):
        return "forward_only"
    return "gpipe" if any(source in unit.modules for source, _ in graph.edges) else "1f1b"


def lockstep_sums(unit_sums: CompiledSums, unit: UnitPlan, order: TickOrder) -> dict[str, Float[np.ndarray, "m _"]]:
    """Returns the fields of the whole unit, in the form of one stage.

    A tick lasts as long as its slowest forward and its slowest backward. The whole step counts as
    the forward of the last microbatch, which is when it can start: the other forwards and the backwards take no time.
    Where backwards are a program of their own, that counts as the backward of the last microbatch. What ranks send to
    each other takes no time either, since they compute meanwhile.

    Args:
        unit_sums: Sums over its layers.
        unit: The unit.
        order: `training_order`.
    """
    chunk, microbatches = unit_sums.chunk, len(unit_sums.chunk["forward"])
    table = tick_table(unit.pp, unit.parallelism.chunks, microbatches, order)
    sums = {name: np.zeros_like(values) for name, values in chunk.items()}
    program_of_backwards = "backward" if order == "gpipe" else "forward"
    for suffix in ("", "_communication"):
        forward, backward = f"forward{suffix}", f"backward{suffix}"
        behind = unit_sums.behind[forward] + unit_sums.behind[backward]  # both in the tick of a forward
        forward_sum = _ticks_seconds(table.forwards, chunk[forward]) + (unit_sums.before[forward] + behind).sum(axis=0)
        backward_sum = _ticks_seconds(table.backwards, chunk[backward]) + unit_sums.before[backward].sum(axis=0)
        sums[forward][-1] += forward_sum
        sums[program_of_backwards + suffix][-1] += backward_sum
    for kind in ("forward", "backward"):
        sums[f"{kind}_communication"] = np.minimum(sums[kind], sums[f"{kind}_communication"])
    sums["flops"] = unit.stage_count * chunk["flops"] + unit_sums.before["flops"] + unit_sums.behind["flops"]
    sums["saved_bytes"] = np.broadcast_to(_held_bytes(unit_sums, table) / microbatches, sums["saved_bytes"].shape)
    return sums


def _held_bytes(unit_sums: CompiledSums, table: TickTable) -> Float[np.ndarray, " h"]:
    """Bytes of all slots on each device, which have room for the largest microbatch."""
    activations = unit_sums.activation_bytes.max(axis=0)
    held = max(1, table.residuals.size) * unit_sums.chunk["saved_bytes"].max(axis=0)
    if table.order != "forward_only":
        held = held + (table.inputs.size + table.gradients.size) * activations
    if table.order == "gpipe":
        held = held + 2 * table.kept_size * activations  # what leaves the stack, and the gradient of the losses
    return held


def _ticks_seconds(ops: TickOps, seconds: Float[np.ndarray, "m i"]) -> Float[np.ndarray, " i"]:
    """Seconds of all ticks on each replica, each as long as on the rank that takes longest."""
    return (seconds[ops.microbatch] * ops.runs[:, :, None]).max(axis=1).sum(axis=0)
