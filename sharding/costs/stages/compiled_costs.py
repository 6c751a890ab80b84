"""Costs of a unit whose step is one program: what its ticks take, and what its ranks hold."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.costs.stages.stage_parameters import LayersOfStage
from sharding.costs.step_costs import WgradCosts
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.lockstep import TickOps, tick_table
from sharding.specs.modules import ModuleGraph

Sums = Mapping[str, Float[np.ndarray, "m _"]]
"""The fields `PER_MICROBATCH` of some layers."""


class CompiledLayers(NamedTuple):
    """The layers of a compiled unit.

    Attributes:
        chunk: Those of a chunk.
        rank: Those of the stack on a pipeline rank.
        around: Those before and behind the stack, which all pipeline ranks divide as tensor ranks do.
    """

    chunk: tuple[LayersOfStage, ...]
    rank: tuple[LayersOfStage, ...]
    around: tuple[LayersOfStage, ...]


def compiled_layers(layers: tuple[LayersOfStage, ...], unit: UnitPlan, graph: ModuleGraph) -> CompiledLayers:
    """Divides the layers of a compiled unit, given all of them."""
    (name,) = unit.modules
    names = {layer.name for layer in (*graph[name].leading_layers, *graph[name].trailing_layers)}
    stack = [of for of in layers if of.layer.name not in names]
    around = (
        of._replace(ranks=dataclasses.replace(of.ranks, tp=of.ranks.tp * unit.pp, collectives="reduce"))
        for of in layers
        if of.layer.name in names
    )
    return CompiledLayers(
        tuple(of._replace(count=of.count // unit.stage_count) for of in stack),
        tuple(of._replace(count=of.count // unit.pp) for of in stack),
        tuple(around),
    )


def lockstep_sums(
    chunk: Sums, around: Sums, unit: UnitPlan, wgrad: WgradCosts | None = None
) -> dict[str, Float[np.ndarray, "m _"]]:
    """The fields of the whole unit, as those of one stage.

    A tick lasts as long as its slowest forward, its slowest backward and its slowest wgrad. The whole step counts as
    the forward of the last microbatch, which is when it can start: the other forwards and the backwards take no time.
    What ranks send to each other takes none either, since they compute meanwhile.

    Args:
        chunk: Of a chunk.
        around: Of the layers around the stack.
        unit: The unit.
        wgrad: Of a chunk, where its wgrads are apart from its backwards.
    """
    microbatches = len(chunk["forward"])
    has_backward = bool(np.any(chunk["backward"]))
    table = tick_table(unit.pp, unit.chunks, microbatches, has_backward=has_backward, splits_backward=wgrad is not None)
    sums = {name: np.zeros_like(values) for name, values in chunk.items()}
    if wgrad is not None:
        chunk = {**chunk, "backward": chunk["backward"] - wgrad.seconds}
        sums["forward"][-1] += _ticks_seconds(table.wgrads, wgrad.seconds)
    for suffix in ("", "_communication"):
        passes = (("forward", table.forwards), ("backward", table.backwards))
        sums["forward" + suffix][-1] += sum(
            _ticks_seconds(ops, chunk[kind + suffix]) + around[kind + suffix].sum(axis=0) for kind, ops in passes
        )
    sums["forward_communication"] = np.minimum(sums["forward"], sums["forward_communication"])
    sums["flops"] = unit.stage_count * chunk["flops"] + around["flops"]
    slots = max(1, table.residuals.size) / microbatches
    held = slots * chunk["saved_bytes"].max(axis=0)
    if wgrad is not None:
        held = held + table.wgrad_operands.size / microbatches * wgrad.saved_bytes.max(axis=0)
    sums["saved_bytes"] = np.broadcast_to(held, sums["saved_bytes"].shape)
    return sums


def _ticks_seconds(ops: TickOps, seconds: Float[np.ndarray, "m i"]) -> Float[np.ndarray, " i"]:
    """Seconds of all ticks on each replica, each as long as on the rank that takes longest."""
    return (seconds[ops.microbatch] * ops.runs[:, :, None]).max(axis=1).sum(axis=0)
