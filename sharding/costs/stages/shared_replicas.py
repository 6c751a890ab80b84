"""Modules of one stage with unlike replicas (`Parallelism.module_tp`): what they cost together, and between each other.

The replicas of a stage are the ones that all modules of its unit share: `Parallelism.shared_replicas` groups of
consecutive devices, each of which holds one or more replicas of every module. Within a group, each module waits for the
slowest replica of the one before, because rows are gathered from all.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.cost_model import LayerSeconds
from sharding.costs.step_costs import HELD
from sharding.plans.resolved.stage_axes import row_reshard, stage_axes
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import LayerSpec

ModuleFigures = Mapping[str, Float[np.ndarray, "_ _"]]
"""Fields of `StageCosts` of one module, by microbatch and replica of the module."""


def on_replicas(
    seconds: LayerSeconds, layer: LayerSpec, index: Int[np.ndarray, "m i"], ep: int, shared: int
) -> LayerSeconds:
    """Returns the seconds [m, i] of a layer on every replica of its module, from the seconds of the distinct loads.

    Args:
        seconds: Seconds of each distinct load.
        layer: The layer.
        index: The number of the distinct load that each replica has in each microbatch.
        ep: Expert ranks.
        shared: Shared replicas of the unit.
    """
    replica_seconds = LayerSeconds(np.asarray(seconds.compute)[index], np.asarray(seconds.communication)[index])
    return _wait_for_slowest(replica_seconds, ep, shared) if layer.expert_parameters else replica_seconds


def _wait_for_slowest(seconds: LayerSeconds, ep: int, shared: int) -> LayerSeconds:
    """Seconds [m, i] of a layer with experts: replicas that exchange tokens wait for the slowest of them.

    They are of `ep` consecutive shared replicas; where a module has several in each, every one has its own experts'
    peers there.
    """
    total = np.asarray(seconds.total)
    by_rank = total.reshape(len(total), shared // ep, ep, -1)
    slowest = np.broadcast_to(by_rank.max(axis=2, keepdims=True), by_rank.shape).reshape(total.shape)
    return LayerSeconds(seconds.compute, seconds.communication + slowest - total)


def on_shared_replicas(figures: ModuleFigures, unit: UnitPlan, module: str) -> dict[str, Float[np.ndarray, "m _"]]:
    """A module's figures on the replicas that it shares with others.

    Seconds are of the slowest of its replicas, and FLOPs their sum. Bytes are given by `finest_replicas`, because each
    microbatch may have the most on other devices of a shared replica.
    """
    shared = unit.parallelism.shared_replicas
    shared_figures = {"flops": figures["flops"].reshape(len(figures["flops"]), shared, -1).sum(axis=2)}
    shared_figures |= {name: figures[name][:, finest_replicas(unit)[module]] for name in HELD}
    for name in ("forward", "backward"):
        grouped = figures[name].reshape(len(figures[name]), shared, -1)
        slowest = grouped.argmax(axis=2)[:, :, None]
        for field in (name, f"{name}_communication"):
            shared_figures[field] = np.take_along_axis(figures[field].reshape(grouped.shape), slowest, axis=2)[:, :, 0]
    return shared_figures


def finest_replicas(unit: UnitPlan) -> dict[str, Int[np.ndarray, " f"]]:
    """By module, its replica on every group of consecutive devices that hold the same replica of each module."""
    axes = stage_axes(unit)
    divided = [name for name in axes.sizes if any(name in module_axes.data for module_axes in axes.modules.values())]
    places = dict(zip(divided, np.indices([axes.sizes[name] for name in divided]), strict=True))
    replicas = {}
    for module, module_axes in axes.modules.items():
        numbers = [places[name].ravel() for name in module_axes.data]
        replicas[module] = np.ravel_multi_index(numbers, [axes.sizes[name] for name in module_axes.data])
    return replicas


def slowest_of_shared(values: Float[np.ndarray, "*m i"], shared: int) -> Float[np.ndarray, "*m s"]:
    """The largest value of each shared replica."""
    return values.reshape(*values.shape[:-1], shared, -1).max(axis=-1)


class RowGathers(NamedTuple):
    """How many devices gather rows between two modules of a stage, one of which feeds the other.

    Attributes:
        replicas: Groups of consecutive devices within which rows are gathered.
        forward: Devices from which each gathers activations; 1 where rows are only split.
        backward: Devices from which each gathers gradients.
    """

    replicas: int
    forward: int
    backward: int


def row_gathers(unit: UnitPlan, sender: str, receiver: str) -> RowGathers:
    """The gathers between two modules of a unit; none where their tensor-parallel sizes are equal."""
    axes = stage_axes(unit)

    def size(names: tuple[str, ...]) -> int:
        return math.prod(axes.sizes[name] for name in names)

    gather, split = (size(names) for names in row_reshard(axes.modules[sender], axes.modules[receiver]))
    return RowGathers(unit.replicas_of(sender) // gather, gather, split)
