"""How the layers of modules on the same devices recompute: the least seconds that fit the memory, in whole layers.

    minimize    sum_mp seconds_mp * n_mp
    subject to  sum_p n_mp = layers_m
                sum_mp device_bytes_mp * n_mp <= room of a device,  sum_mp host_bytes_mp * n_mp <= room of its host

`n_mp` is how many layers of module m have policy p, and all layers of a module count alike.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy.optimize

from sharding.specs.layers.layer import RECOMPUTE_POLICIES, RecomputePolicy

ModulePolicies = Mapping[str, tuple[RecomputePolicy, ...]]
"""By module, the recomputation policy of every layer."""

_GAP = 1e-3  # share by which the seconds may be longer than the shortest


class PolicyNeeds(NamedTuple):
    """What a module takes of a step if all its layers have one policy.

    Attributes:
        seconds: Seconds of forwards and backwards.
        device_bytes: Bytes that a device holds from the forward to the backward of a microbatch.
        host_bytes: Bytes that its host's memory holds.
        static_bytes: Bytes that a device holds at all times.
    """

    seconds: float
    device_bytes: float
    host_bytes: float
    static_bytes: float = 0.0


def least_seconds(
    layers: Mapping[str, int],
    needs: Mapping[str, Mapping[RecomputePolicy, PolicyNeeds]],
    device_room: float,
    host_room: float,
) -> ModulePolicies | None:
    """The policies of the layers of every module, the ones that save least memory last; None if nothing fits.

    Args:
        layers: Number of layers of each module.
        needs: By module, what every policy that may be chosen takes.
        device_room: Bytes of a device that there are for what the forwards save.
        host_room: Bytes of its host.
    """
    columns: list[tuple[str, RecomputePolicy]] = [(module, policy) for module in layers for policy in needs[module]]
    per_layer = np.array([needs[module][policy][:3] for module, policy in columns])
    per_layer /= np.array([[layers[module]] for module, _ in columns])
    scale = np.maximum(per_layer[:, 1:].max(axis=0), 1.0)  # solvers expect figures near one
    rooms = np.array([device_room, host_room]) / scale
    of_module = np.array([[name == module for name, _ in columns] for module in layers], float)
    count = np.array(list(layers.values()))
    found = scipy.optimize.milp(
        per_layer[:, 0],
        integrality=np.ones(len(columns)),
        constraints=[(of_module, count, count), ((per_layer[:, 1:] / scale).T, [-np.inf, -np.inf], rooms)],
        options={"mip_rel_gap": _GAP},
    )
    if found.x is None:
        return None
    counts = dict(zip(columns, np.rint(found.x).astype(int).tolist(), strict=True))
    return {module: _in_order({policy: counts[module, policy] for policy in needs[module]}) for module in layers}


def _in_order(counts: Mapping[RecomputePolicy, int]) -> tuple[RecomputePolicy, ...]:
    return tuple(policy for policy in reversed(RECOMPUTE_POLICIES) for _ in range(counts.get(policy, 0)))
