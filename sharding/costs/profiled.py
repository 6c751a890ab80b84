"""A cost model from times measured on this hardware (`python -m mmjax.profile`), interpolated between sizes."""

import dataclasses
import json
import os
from typing import NamedTuple

import numpy as np

from configs.common.errors import UserError
from configs.common.strict_json import parse_json
from configs.cost_effects import CostEffects
from sharding.axes import ContextTransfer
from sharding.costs.cost_model import LayerParallelism, LayerSeconds, Times, useful_flops
from sharding.costs.node_placement import NodePlacement
from sharding.costs.optimizer_memory import OptimizerMemory
from sharding.plans.parallelism import CollectivesName
from sharding.plans.resolved.trained_parts import Gradient
from sharding.plans.text.json_fields import read_file, read_record
from sharding.specs.layers.layer import LayerSpec, LoadColumn, Loads, RecomputePolicy
from sharding.specs.layers.recomputed_kernels import runs_again


class ProfileError(UserError):
    """A profile that cannot be read, is of other hardware, or lacks a measurement that is needed."""


class TimedRanks(NamedTuple):
    """The ranks of a replica on one of which a layer is timed.

    Attributes:
        tp: Tensor ranks.
        cp: Context-parallel ranks.
        context_transfer: How these reach each other's positions; `ring` if there is one.
    """

    tp: int = 1
    cp: int = 1
    context_transfer: ContextTransfer = "ring"

    @classmethod
    def of(cls, ranks: LayerParallelism) -> "TimedRanks":
        """Returns the tensor and context-parallel ranks among the ranks of a layer."""
        return cls(ranks.tp, ranks.cp, ranks.context_transfer if ranks.cp > 1 else "ring")

    @property
    def devices(self) -> int:
        """Number of devices of a replica."""
        return self.tp * self.cp

    @property
    def words(self) -> str:
        """The ranks in words, such as `tp 2, cp 4 (ring)`."""
        return f"tp {self.tp}" + (f", cp {self.cp} ({self.context_transfer})" if self.cp > 1 else "")

    @property
    def flags(self) -> str:
        """The flags by which `python -m mmjax.profile` times them."""
        context = f" --cp={self.cp} --context_transfer={self.context_transfer}" if self.cp > 1 else ""
        return f"--tp={self.tp}{context}"


@dataclasses.dataclass(frozen=True)
class PassTimes:
    """Times of the forward, or of the backward, of one kind of layer.

    Attributes:
        single_layer: Seconds of a stack of one layer, at each measured size; XLA compiles it without a loop.
        additional_layer: Seconds of each further layer of a stack, at each measured size.
        contention: Slowdown while 1, 2, 4... replicas compute at once.
    """

    single_layer: tuple[float, ...]
    additional_layer: tuple[float, ...]
    contention: tuple[float, ...] = (1.0,)

    def per_layer(self, measured: tuple[float, ...], sizes: Times, dp: int, stack: int) -> Times:
        """Seconds of one of a stack of layers.

        Args:
            measured: The measured sizes.
            sizes: The sizes to cost.
            dp: Replicas that compute at once.
            stack: Number of layers of the stack.
        """
        times = (np.array(self.single_layer) + (stack - 1) * np.array(self.additional_layer)) / stack
        # Linear between powers of two, constant beyond the last one.
        contention = np.interp(np.log2(dp), np.arange(len(self.contention)), self.contention)
        return contention * _interpolate(np.array(measured), times, np.asarray(sizes))


def _interpolate(measured: np.ndarray, times: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Piecewise linear through the measurements, extrapolated from the outermost two; proportional if there is one."""
    if len(measured) == 1:
        return times[0] * sizes / measured[0]
    segment = np.clip(np.searchsorted(measured, sizes) - 1, 0, len(measured) - 2)
    slope = np.diff(times)[segment] / np.diff(measured)[segment]
    return np.maximum(times[segment] + slope * (sizes - measured[segment]), 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """Times of one kind of layer on one of `tp` tensor ranks of one of `cp` context-parallel ranks.

    Attributes:
        layer: Its part and name, as `part/name`.
        tp: Number of tensor ranks.
        cp: Number of context-parallel ranks.
        context_transfer: How these reach each other's positions (`Parallelism.context_transfer`).
        gradients: Gradients that the backward computed.
        recompute: Recomputation policy of the backward.
        sizes: Measured sizes in tokens, or in items for a layer that has no tokens; ascending. They count a whole
            replica, all of its ranks together.
        forward: Times of the forward at each size.
        backward: Times of the backward at each size.
    """

    layer: str
    tp: int
    cp: int = 1
    context_transfer: ContextTransfer = "ring"
    gradients: tuple[Gradient, ...]
    recompute: RecomputePolicy
    sizes: tuple[float, ...]
    forward: PassTimes
    backward: PassTimes

    def __post_init__(self) -> None:
        passes = (self.forward, self.backward)
        counts = {len(times) for times_of in passes for times in (times_of.single_layer, times_of.additional_layer)}
        if counts != {len(self.sizes)} or not self.sizes:
            raise ProfileError(
                f"profile of {self.layer}: sizes, forward and backward must have equally many entries, at least one"
            )
        if list(self.sizes) != sorted(set(self.sizes)):
            raise ProfileError(f"profile of {self.layer}: sizes {list(self.sizes)} must ascend")

    @property
    def ranks(self) -> TimedRanks:
        """The ranks of a replica."""
        return TimedRanks(self.tp, self.cp, self.context_transfer)


@dataclasses.dataclass(frozen=True)
class LinearFit:
    """A time that is linear in size and participants: `fixed + per_participant * participants + rate * size`.

    Attributes:
        fixed: Seconds that it takes in any case.
        per_participant: Seconds for each participating device, replica or stage.
        rate: Seconds per byte or per parameter.
    """

    fixed: float
    per_participant: float
    rate: float

    def seconds(self, size: Times, participants: int) -> Times:
        """Seconds for a size; 0 for size 0."""
        size = np.asarray(size, float)
        seconds = self.fixed + self.per_participant * participants + self.rate * size
        return np.asarray(np.where(size > 0, seconds, 0.0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Everything that was measured on one machine.

    Attributes:
        device_kind: `jax.Device.device_kind` of its devices.
        devices_per_node: Devices of a host.
        peak_flops: Peak FLOP/s of a device; 0 where it is not known.
        element_bytes: Bytes of an element in compute precision.
        versions: Versions of Python and of the packages that matter.
        layers: Times of layers.
        gather: Gathering weights, by the ranks that divide them and parameters of a device.
        reduce: Reducing gradients, by the ranks that divide them and parameters of a device.
        update: The optimizer, by the ranks that divide its state and parameters of a device.
        hop: A hop, by devices of both ends and bytes.
        norm: The norm of the gradients, by stages; it has no size.
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
    def from_json(text: str | bytes) -> "Profile":
        """Reads the format of `to_json`; ProfileError names a key that is unknown, missing or of another type."""
        return read_record(parse_json(text, "the profile", ProfileError), Profile, "the profile", ProfileError)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Profile":
        """Reads a profile; errors name the file."""
        return read_file(path, Profile.from_json, ProfileError)

    def check_device(self, device_kind: str) -> None:
        """Raises ProfileError if the profile is of other hardware."""
        if device_kind != self.device_kind:
            raise ProfileError(
                f"the profile was measured on {self.device_kind}, and the device is {device_kind}: measure this one by "
                "python -m mmjax.profile, or allow the other with --allow_other_device"
            )


def _check_measured(ranks: LayerParallelism) -> None:
    """Raises ProfileError if no profile has times for such ranks."""
    if ranks.ep > 1:
        raise ProfileError(
            f"a profile has no times of layers on {ranks.ep} expert ranks (ep {ranks.ep}); leave --profile out to use "
            "the analytic costs, or give ep 1"
        )
    if ranks.tp > 1 and ranks.collectives != "all_reduce":
        raise ProfileError(
            f'a profile has times of layers with collectives "all_reduce" alone, not "{ranks.collectives}"; leave '
            '--profile out to use the analytic costs, or give the unit "all_reduce"'
        )


class ProfiledCostModel:
    """A profile as a cost model (`CostModel`).

    Times between measured sizes are interpolated linearly, times beyond are extrapolated from the nearest two. The time
    in which the ranks of a replica wait for each other is contained in the measured times and not reported apart. So is
    what an update takes, with the optimizer that was profiled.

    Args:
        profile: The measurements.
        optimizer: Bytes of the optimizer's state, and where it lies.
    """

    def __init__(self, profile: Profile, optimizer: OptimizerMemory = OptimizerMemory()) -> None:  # noqa: B008 frozen
        self.profile, self.optimizer = profile, optimizer
        self.collectives: CollectivesName = "all_reduce"  # as layers are timed
        self.element_bytes, self.peak_flops = profile.element_bytes, profile.peak_flops
        self.fp8_rate = 1.0  # a profile has the peak of the model that was measured
        self.devices_per_node = profile.devices_per_node
        self._forwards = {(entry.layer, entry.ranks): entry for entry in reversed(profile.layers)}
        self._backwards = {
            (entry.layer, entry.ranks, entry.gradients, entry.recompute): entry for entry in profile.layers
        }

    @property
    def effects(self) -> CostEffects:
        """See `CostModel.effects`."""
        return CostEffects()

    @property
    def depends_on_stack(self) -> bool:
        """See `CostModel.depends_on_stack`; XLA compiles a single layer without a loop."""
        return True

    @property
    def has_row_gathers(self) -> bool:
        """See `CostModel.has_row_gathers`; they are not timed."""
        return False

    @property
    def has_all_policies(self) -> bool:
        """See `CostModel.has_all_policies`."""
        return False

    def forward(self, layer: LayerSpec, loads: Loads, ranks: LayerParallelism, stack: int = 1) -> LayerSeconds:
        """See `CostModel.forward`."""
        _check_measured(ranks)
        key, timed = f"{layer.part}/{layer.name}", TimedRanks.of(ranks)
        profile = self._forwards.get((key, timed))
        if profile is None:
            raise ProfileError(
                f"the profile has no {key} at {timed.words}; measure it by python -m mmjax.profile {timed.flags}, or "
                "leave --profile out to use the analytic costs"
            )
        return _layer_seconds(profile.sizes, profile.forward, loads, ranks.dp, stack)

    def backward(
        self,
        layer: LayerSpec,
        loads: Loads,
        ranks: LayerParallelism,
        gradients: tuple[Gradient, ...],
        recompute: RecomputePolicy,
        stack: int = 1,
    ) -> LayerSeconds:
        """See `CostModel.backward`.

        Where only dgrad and wgrad together are measured, the seconds without the wgrad are estimated by their share of
        the FLOPs.
        """
        _check_measured(ranks)
        key, timed = f"{layer.part}/{layer.name}", TimedRanks.of(ranks)
        if not gradients:
            return LayerSeconds(np.zeros(loads.shape[:-1]), np.zeros(loads.shape[:-1]))
        profile, share = self._backwards.get((key, timed, gradients, recompute)), 1.0
        if profile is None and gradients == ("dgrad",):
            profile = self._backwards.get((key, timed, ("dgrad", "wgrad"), recompute))
            share = _dgrad_share(layer, loads, recompute)
        if profile is None:
            raise ProfileError(
                f"the profile has no backward of {key} at {timed.words} that computes {' and '.join(gradients)} with "
                f"recompute {recompute}; measure it by python -m mmjax.profile {timed.flags} --recompute={recompute}, "
                "with the same parts trainable"
            )
        seconds = _layer_seconds(profile.sizes, profile.backward, loads, ranks.dp, stack)
        return LayerSeconds(share * seconds.compute, seconds.communication)

    def gather_weights(self, parameters: float, ranks: NodePlacement) -> float:
        """See `CostModel.gather_weights`."""
        return float(self.profile.gather.seconds(parameters, ranks.ranks))

    def reduce_gradients(self, parameters: float, ranks: NodePlacement) -> float:
        """See `CostModel.reduce_gradients`."""
        return float(self.profile.reduce.seconds(parameters, ranks.ranks))

    def gather_rows(self, size: Times, ranks: int, devices: int) -> Times:
        """Raises ProfileError: rows that are gathered between modules of a stage are not timed."""
        raise ProfileError(
            "a profile has no times of rows gathered between modules of one stage with unlike tensor-parallel sizes "
            "(module_tp); leave --profile out to use the analytic costs, or give the unit's modules one tp"
        )

    def gradient_norm(self, stages: int) -> float:
        """See `CostModel.gradient_norm`."""
        return self.profile.norm.fixed + self.profile.norm.per_participant * stages

    def optimizer_update(self, parameters: float, dp: int) -> float:
        """See `CostModel.optimizer_update`."""
        return float(self.profile.update.seconds(parameters, dp))

    def host_transfer(self, size: Times) -> Times:
        """See `CostModel.host_transfer`; measured seconds contain it."""
        return np.zeros_like(np.asarray(size, float))

    def hop(self, size: Times, inside: bool, devices: int) -> Times:
        """See `CostModel.hop`."""
        return self.profile.hop.seconds(size, devices)


def _dgrad_share(layer: LayerSpec, loads: Loads, recompute: RecomputePolicy) -> Times:
    """Which share of a backward's FLOPs, recomputation included, is needed for the gradient of the input."""
    repeated = (kernel.flops.evaluate(loads) for kernel in layer.kernels if runs_again(kernel, recompute))
    again = sum(repeated, start=np.zeros(()))
    without = again - useful_flops(layer, loads, ())
    dgrad = without + useful_flops(layer, loads, ("dgrad",))
    whole = without + useful_flops(layer, loads, ("dgrad", "wgrad"))
    return np.asarray(dgrad / np.maximum(whole, 1.0))


def _layer_seconds(measured: tuple[float, ...], times: PassTimes, loads: Loads, dp: int, stack: int) -> LayerSeconds:
    tokens, items = loads[..., LoadColumn.TOKENS], loads[..., LoadColumn.ITEMS]
    sizes = np.where(tokens > 0, tokens, items)
    return LayerSeconds(np.asarray(times.per_layer(measured, sizes, dp, stack)), np.zeros(sizes.shape))
