"""The devices of an edited plan: units that shared devices still do, the others have consecutive ones."""

import numpy as np

from benchmarks.planner.edits.drafts import PlanDraft, UnitDraft
from sharding.plans.device_numbers import Devices


def place_devices(draft: PlanDraft) -> dict[str, Devices]:
    """The devices of every unit by its name; as before where no unit has another shape.

    Groups of units that share devices are on consecutive devices, the ones with larger replicas first, so that a
    replica seldom spans two nodes.
    """
    if draft.keeps_shapes:
        return {unit.name: unit.original.devices for unit in draft.units}
    placed: dict[str, Devices] = {}
    first = 0
    for group in sorted(sharing_groups(draft), key=lambda group: -max(_replica_size(unit) for unit in group)):
        devices = _place_group(group, first)
        placed |= devices
        first = 1 + max(max(owned) for owned in devices.values())
    return placed


def sharing_groups(draft: PlanDraft) -> list[list[UnitDraft]]:
    """The units in groups of which no two had devices in common before the edit."""
    groups: list[list[UnitDraft]] = []
    for unit in draft.units:
        mine = set(unit.original.devices)
        touching = [group for group in groups if any(not mine.isdisjoint(other.original.devices) for other in group)]
        groups = [group for group in groups if group not in touching]
        groups.append([*(other for group in touching for other in group), unit])
    return groups


def host_of(group: list[UnitDraft]) -> UnitDraft:
    """The unit on whose devices the others of a group are: the one that had the most, with the largest replicas."""
    return max(group, key=lambda unit: (len(unit.original.devices), unit.original.parallelism.replica_size))


def _place_group(group: list[UnitDraft], first: int) -> dict[str, Devices]:
    host = host_of(group)
    host_devices = range(first, first + host.device_count)
    placed: dict[str, Devices] = {host.name: host_devices}
    for unit in group:
        if unit is not host:
            placed[unit.name] = _place_guest(unit, host, host_devices)
    return placed


def _place_guest(unit: UnitDraft, host: UnitDraft, host_devices: Devices) -> Devices:
    """The devices of a unit that shares those of another.

    The same places among them if both have the shapes that they had; else pipeline replicas that fill the other's
    pipeline ranks where its shape allows that, and otherwise the first ones.
    """
    if not unit.is_reshaped and not host.is_reshaped:
        place = {device: number for number, device in enumerate(host.original.devices)}
        return tuple(host_devices[place[device]] for device in unit.original.devices)
    nested = host["dp"] == unit["dp"] and host["cp"] == unit["cp"] == 1
    if nested and not host.pp % unit.pp and not host["tp"] % unit["tp"]:
        shape = (host.pp // unit.pp, unit.pp, unit["dp"], host["tp"] // unit["tp"], unit["tp"])
        ordered = np.array(host_devices[: np.prod(shape)]).reshape(shape).transpose(0, 3, 1, 2, 4).ravel().tolist()
        if len(ordered) >= unit.device_count:
            return tuple(ordered[: unit.device_count])
    return range(host_devices[0], host_devices[0] + unit.device_count)


def _replica_size(unit: UnitDraft) -> int:
    return unit["cp"] * unit["tp"]
