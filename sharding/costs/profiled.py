"""Costs measured on the hardware at hand (`python -m mmjax.profile`), between the sizes that were measured by lines."""

import dataclasses
import json
import os

import numpy as np

from configs.errors import UserError
from sharding.costs.cost_model import LayerParallelism, LayerSeconds, Times
from sharding.plans.json_fields import parse_json, read_file, read_record
from sharding.specs.layer import LayerSpec, Loads


class ProfileError(UserError):
    """A profile that cannot be read, is of other hardware, or lacks what is asked of it."""


@dataclasses.dataclass(frozen=True)
class PassTimes:
    """Forwards or backwards of a kind of layer.

    Attributes:
        alone: Seconds of a stack of one layer at each size; XLA makes straight code of it.
        further: Seconds of each layer more.
        crowding: How many times as long they take while 1, 2, 4... instances compute at once.
    """

    single_layer: tuple[float, ...]
    additional_layer: tuple[float, ...]
    contention: tuple[float, ...] = (1.0,)

    def per_layer(self, known: tuple[float, ...], sizes: Times, dp: int, stack: int) -> Times:
        """Seconds of one of a stack of layers, measured at the `known` sizes."""
        times = (np.array(self.single_layer) + (stack - 1) * np.array(self.additional_layer)) / stack
        # Between powers of two on a line, beyond the last one as there.
        crowding = np.interp(np.log2(dp), np.arange(len(self.contention)), self.contention)
        return crowding * _between(np.array(known), times, np.asarray(sizes))


def _between(known: np.ndarray, times: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    if len(known) == 1:
        return times[0] * sizes / known[0]
    segment = np.clip(np.searchsorted(known, sizes) - 1, 0, len(known) - 2)
    slope = np.diff(times)[segment] / np.diff(known)[segment]
    return np.maximum(times[segment] + slope * (sizes - known[segment]), 0.0)


@dataclasses.dataclass(frozen=True)
class LayerProfile:
    """Times of one kind of layer on one of `tp` tensor ranks.

    Attributes:
        layer: Its part and name, `part/name`.
        tp: Tensor ranks.
        turns: What the backward found, `data` or `weights` or both.
        recompute: What the backward computed again.
        sizes: Tokens of the load, or its items where it has no tokens; ascending.
        forward, backward: Seconds at each size.
    """

    layer: str
    tp: int
    gradients: tuple[str, ...]
    recompute: str
    sizes: tuple[float, ...]
    forward: PassTimes
    backward: PassTimes

    def __post_init__(self) -> None:
        counts = {
            len(times) for of in (self.forward, self.backward) for times in (of.single_layer, of.additional_layer)
        }
        if counts != {len(self.sizes)} or not self.sizes:
            raise ProfileError(f"profile of {self.layer}: sizes, forward and backward must be as many, at least one")
        if list(self.sizes) != sorted(set(self.sizes)):
            raise ProfileError(f"profile of {self.layer}: sizes {list(self.sizes)} must ascend")


@dataclasses.dataclass(frozen=True)
class LinearFit:
    """Seconds of something of a size: `fixed + each * count + rate * size`.

    Attributes:
        fixed: Seconds of the smallest.
        each: Seconds of each further device, instance or stage that takes part.
        rate: Seconds of each byte or parameter more.
    """

    fixed: float
    per_participant: float
    rate: float

    def seconds(self, size: Times, count: int) -> Times:
        """Seconds of a size, with so many that take part; nothing takes none."""
        size = np.asarray(size, float)
        return np.asarray(np.where(size > 0, self.fixed + self.per_participant * count + self.rate * size, 0.0))


@dataclasses.dataclass(frozen=True)
class Profile:
    """All that was measured on one machine.

    Attributes:
        device_kind: `jax.Device.device_kind` of its devices.
        devices_per_node: Devices of a host.
        peak_flops: Of a device; 0 where it is not known.
        element_bytes: Bytes of a number in compute precision.
        versions: Of Python and of the packages that matter.
        layers: Times of layers.
        gather, reduce, update: By the number of instances, and parameters of a device.
        hop: By the devices of both ends, and bytes.
        norm: By the number of stages; it has no size.
    """

    device_kind: str
    devices_per_node: int
    peak_flops: float
    element_bytes: int
    versions: dict[str, str]
    layers: tuple[LayerProfile, ...]
    gather: LinearFit
    reduce: LinearFit
    update: LinearFit
    hop: LinearFit
    norm: LinearFit

    def to_json(self) -> str:
        """The profile as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> "Profile":
        """Reads the format of `to_json`; raises ProfileError naming a key that is unknown, missing or of another type."""
        return read_record(parse_json(text, "the profile", ProfileError), Profile, "the profile", ProfileError)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Profile":
        """Reads a profile; errors name the file."""
        return read_file(path, "profile", Profile.from_json, ProfileError)

    def check_device(self, device_kind: str) -> None:
        """Raises ProfileError if the profile is of other hardware."""
        if device_kind != self.device_kind:
            raise ProfileError(
                f"the profile was measured on {self.device_kind}, and the device is {device_kind}: measure this one by "
                "python -m mmjax.profile, or allow the other with --allow_other_device"
            )


def _check_measured(of: LayerParallelism) -> None:
    for key, ranks, count in (("cp", "sequence", of.cp), ("ep", "expert", of.ep)):
        if count > 1:
            raise ProfileError(
                f"a profile has no times of layers on {count} {ranks} ranks ({key} {count}); leave --profile out and "
                f"let the roofline cost them, or give {key} 1"
            )
    if of.tp > 1 and of.collectives != "reduce":
        raise ProfileError(
            f'a profile has times of layers with collectives "reduce" alone, not "{of.collectives}"; leave --profile '
            'out and let the roofline cost them, or give the unit "reduce"'
        )


class ProfiledCostModel:
    """A profile as a cost model (`Costs`).

    Times between measured sizes lie on the line between them, times beyond on the line through the nearest two. What
    tensor ranks wait for each other is part of the times and not told apart.

    Args:
        profile: What was measured.

    Attributes:
        collectives: As layers were timed.
    """

    collectives = "reduce"

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.element_bytes, self.peak_flops = profile.element_bytes, profile.peak_flops
        self.devices_per_node = profile.devices_per_node
        self._layers = {(each.layer, each.tp, each.gradients, each.recompute): each for each in profile.layers}

    def forward(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, stack: int = 1) -> LayerSeconds:
        """See `Costs.forward`."""
        _check_measured(ranks)
        key, tp = f"{layer.part}/{layer.name}", ranks.tp
        found = [each for each in self.profile.layers if (each.layer, each.tp) == (key, tp)]
        if not found:
            raise ProfileError(f"the profile has no {key} at tp {tp}; measure it by python -m mmjax.profile --tp={tp}")
        return _seconds(found[0].sizes, found[0].forward, loads, ranks.dp, stack)

    def backward(
        self,
        layer: LayerSpec,
        loads: Loads,
        ranks: LayerParallelism,
        turns: tuple[str, ...],
        recompute: str,
        stack: int = 1,
    ) -> LayerSeconds:
        """See `Costs.backward`."""
        _check_measured(ranks)
        tp = ranks.tp
        key = (f"{layer.part}/{layer.name}", tp, turns, recompute)
        if not turns:
            return LayerSeconds(np.zeros(loads.shape[:-1]), np.zeros(loads.shape[:-1]))
        if key not in self._layers:
            raise ProfileError(
                f"the profile has no backward of {key[0]} at tp {tp} that finds {' and '.join(turns)} with recompute "
                f"{recompute}; measure it by python -m mmjax.profile --tp={tp} --recompute={recompute}, with the same "
                "parts trainable"
            )
        found = self._layers[key]
        return _seconds(found.sizes, found.backward, loads, ranks.dp, stack)

    def gather_weights(self, parameters: float, dp: int, inside: bool) -> float:
        """See `Costs.gather`."""
        return float(self.profile.gather.seconds(parameters, dp))

    def reduce_gradients(self, parameters: float, dp: int, inside: bool) -> float:
        """See `Costs.reduce`."""
        return float(self.profile.reduce.seconds(parameters, dp))

    def gradient_norm(self, stages: int) -> float:
        """See `Costs.norm`."""
        return self.profile.norm.fixed + self.profile.norm.per_participant * stages

    def optimizer_update(self, parameters: float, dp: int) -> float:
        """See `Costs.update`."""
        return float(self.profile.update.seconds(parameters, dp))

    def hop(self, size: Times, inside: bool, devices: int) -> Times:
        """See `Costs.hop`."""
        return self.profile.hop.seconds(size, devices)


def _seconds(known: tuple[float, ...], passes: PassTimes, loads: Loads, dp: int, stack: int) -> LayerSeconds:
    sizes = np.where(loads[..., 0] > 0, loads[..., 0], loads[..., 2])
    return LayerSeconds(np.asarray(passes.per_layer(known, sizes, dp, stack)), np.zeros(sizes.shape))
