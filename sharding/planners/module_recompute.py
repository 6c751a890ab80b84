"""How the layers of modules on the same devices recompute: the least seconds that fit the memory, in whole layers.

    minimize    sum_m seconds_m
    subject to  sum_m device_bytes_m <= room of a device,  sum_m host_bytes_m <= room of its host

Each module has one policy in all layers, or one in the first layers and another in the rest; all layers of a module
count alike. Modules are joined one after another, and of the choices so far the ones are kept that no other beats in
both bytes and seconds. So the minimum is exact where hosts have enough room; where they have not, the bytes that each
module offloads are rounded up to sixteenths of it.
"""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sharding.specs.layers.layer import RECOMPUTE_POLICIES, RecomputePolicy

ModulePolicies = Mapping[str, tuple[RecomputePolicy, ...]]
"""By module, the recomputation policy of every layer."""

_HOST_PARTS = 16  # of a host's room, to which bytes are rounded up where it does not hold all


class PolicyNeeds(NamedTuple):
    """What a module takes of a step if all its layers have one policy.

    Attributes:
        seconds: Seconds of forwards and backwards.
        device_bytes: Bytes that a device holds from the forward to the backward of a microbatch.
        host_bytes: Bytes that its host's memory holds.
        static_bytes: Bytes that a device holds at all times. Policies differ by what one layer needs while it runs.
    """

    seconds: float
    device_bytes: float
    host_bytes: float
    static_bytes: float


NeedsByPolicy = Mapping[RecomputePolicy, PolicyNeeds]
"""What a module takes of a step with every policy that may be chosen."""


def modelled_bytes(needs: Mapping[str, NeedsByPolicy], policies: ModulePolicies) -> float:
    """Bytes that a device holds at most with these policies of the layers."""
    bytes_ = 0.0
    for module, of_layers in policies.items():
        of_module = needs[module]
        bytes_ += max(of_module[policy].static_bytes for policy in set(of_layers))
        bytes_ += sum(of_module[policy].device_bytes for policy in of_layers) / len(of_layers)
    return bytes_


def least_seconds(
    layers: Mapping[str, int], needs: Mapping[str, NeedsByPolicy], device_room: float, host_room: float
) -> ModulePolicies | None:
    """The policies of the layers of every module, the ones that save least memory last; None if nothing fits.

    Args:
        layers: Number of layers of each module.
        needs: By module, what it takes of a step.
        device_room: Bytes of a device.
        host_room: Bytes of its host.
    """
    mixtures = [_mixtures(count, needs[module]) for module, count in layers.items()]
    figures = [
        np.array([mixture.needs(needs[module]) for mixture in of_module])
        for module, of_module in zip(layers, mixtures, strict=True)
    ]
    chosen = _shortest([_choices(of_module) for of_module in figures], device_room)
    if chosen and sum(of_module[number, 2] for of_module, number in zip(figures, chosen, strict=True)) > host_room:
        chosen = _shortest([_choices_on_host(of_module, host_room) for of_module in figures], device_room)
    if chosen is None:
        return None
    return {module: mixtures[number][chosen[number]].layers for number, module in enumerate(layers)}


class _Mixture(NamedTuple):
    """One policy in the first layers of a module, and another in the rest."""

    first: RecomputePolicy
    rest: RecomputePolicy
    number: int
    count: int

    @property
    def layers(self) -> tuple[RecomputePolicy, ...]:
        """The policy of every layer."""
        return (self.first,) * self.number + (self.rest,) * (self.count - self.number)

    def needs(self, of_module: NeedsByPolicy) -> tuple[float, float, float]:
        """Seconds, bytes of a device and bytes of its host."""
        first, rest, share = of_module[self.first], of_module[self.rest], self.number / self.count
        static = max(first.static_bytes if self.number else 0.0, rest.static_bytes)
        seconds, device, host = (share * one + (1 - share) * other for one, other in zip(first[:3], rest, strict=False))
        return seconds, device + static, host


def _mixtures(count: int, needs: NeedsByPolicy) -> list[_Mixture]:
    """All mixtures of two policies, the one that saves more memory first."""
    policies = sorted(needs, key=RECOMPUTE_POLICIES.index, reverse=True)
    mixed = itertools.combinations(policies, 2)
    return [
        *(_Mixture(policy, policy, 0, count) for policy in policies),
        *(_Mixture(first, rest, number, count) for first, rest in mixed for number in range(1, count)),
    ]


class _Choices(NamedTuple):
    """Choices of some modules' mixtures; entry i of all arrays belongs to one choice.

    Attributes:
        seconds: Seconds.
        device: Bytes of a device.
        host_parts: Parts of the host's room of which there are `_HOST_PARTS`; 0 where its room is not looked at.
        chosen: The number of the mixture of each module.
    """

    seconds: Float[np.ndarray, " n"]
    device: Float[np.ndarray, " n"]
    host_parts: Int[np.ndarray, " n"]
    chosen: Int[np.ndarray, "n m"]

    def select(self, numbers: Int[np.ndarray, " k"]) -> "_Choices":
        """Some of the choices."""
        return _Choices(*(array[numbers] for array in self))


def _choices(figures: Float[np.ndarray, "n 3"]) -> _Choices:
    """All mixtures of a module, given seconds, bytes of a device and bytes of its host."""
    numbers = np.arange(len(figures))
    return _Choices(figures[:, 0], figures[:, 1], host_parts=0 * numbers, chosen=numbers[:, None])


def _choices_on_host(figures: Float[np.ndarray, "n 3"], host_room: float) -> _Choices:
    """The mixtures that fit a host, with the parts of its room that they take."""
    parts = np.ceil(figures[:, 2] * _HOST_PARTS / max(host_room, 1.0) - 1e-9).astype(int)
    return _choices(figures)._replace(host_parts=parts).select(np.flatnonzero(figures[:, 2] <= host_room))


def _shortest(choices: list[_Choices], device_room: float) -> tuple[int, ...] | None:
    """The numbers of the mixtures with the least seconds that fit."""
    joined = _front(choices[0].select(np.flatnonzero(choices[0].device <= device_room)))
    for of_module in choices[1:]:
        joined = _front(_joined(joined, _front(of_module), device_room))
    if not len(joined.seconds):
        return None
    return tuple(joined.chosen[int(np.argmin(joined.seconds))].tolist())


def _joined(first: _Choices, second: _Choices, device_room: float) -> _Choices:
    """Every choice of the first with every one of the second, as far as they fit."""
    fits = np.add.outer(first.device, second.device) <= device_room
    fits &= np.add.outer(first.host_parts, second.host_parts) <= _HOST_PARTS
    rows, columns = np.nonzero(fits)
    one, other = first.select(rows), second.select(columns)
    return _Choices(
        seconds=one.seconds + other.seconds,
        device=one.device + other.device,
        host_parts=one.host_parts + other.host_parts,
        chosen=np.concatenate([one.chosen, other.chosen], axis=1),
    )


def _front(choices: _Choices) -> _Choices:
    """The choices that no other with as many parts of the host beats in both bytes of a device and seconds."""
    order = np.lexsort([choices.seconds, choices.device, choices.host_parts])
    ordered = choices.select(order)
    kept = []
    for first, end in itertools.pairwise(np.searchsorted(ordered.host_parts, np.arange(_HOST_PARTS + 2))):
        seconds = ordered.seconds[first:end]
        before = np.minimum.accumulate(np.concatenate([[np.inf], seconds]))[:-1]
        kept.append(first + np.flatnonzero(seconds < before))
    return ordered.select(np.concatenate(kept))
