"""Effects by which a step takes longer than its kernels and transfers do one by one, of a generation of devices.

Analytic costs (`sharding.costs`) read them through `DeviceGeneration.effects`. Each can be switched off by its name, to
see what it adds and whether a choice hangs on it.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal, get_args

from configs.common.errors import UserError
from configs.common.short_repr import short_repr

EffectName = Literal["throttling", "interference", "convolutions", "jitter", "dispatch", "contention", "imbalance"]
"""An effect that can be switched off; `_FIELDS` has the fields of `CostEffects` that describe it."""

EFFECT_NAMES: tuple[EffectName, ...] = get_args(EffectName)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostEffects:
    """Effects on analytic costs; the default of each is none.

    Attributes:
        throttling: How many times as long matmuls and attention take on a device that is warm from minutes of training,
            whose clock is lower, as in a short benchmark, from which the rates of kernels are known.
        compute_slowdown: How many times as long computation takes while a collective of a layer runs beside it, because
            both use multiprocessors and the memory.
        transfer_slowdown: How many times as long the collective takes beside computation.
        convolution_share: Share of the speed of the matmul of its patches that a convolution reaches.
        jitter: Standard deviation of the normal distribution whose absolute values are the relative excess seconds of
            an op on a device; ranks that compute a layer together wait for the slowest of them.
        dispatch: Seconds in which a host dispatches one program to its devices; no op of a stage takes less.
        contention: Share of its seconds on one node's network card by which a collective of parameters takes longer for
            each doubling of the nodes.
        imbalance: Tokens of the experts of the fullest expert rank over those of a mean one.
    """

    throttling: float = 1.0
    compute_slowdown: float = 1.0
    transfer_slowdown: float = 1.0
    convolution_share: float = 1.0
    jitter: float = 0.0
    dispatch: float = 0.0
    contention: float = 0.0
    imbalance: float = 1.0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name in ("throttling", "compute_slowdown", "transfer_slowdown", "imbalance"):
            self._check(name, 1 <= getattr(self, name) < math.inf, "be finite and at least 1")
        for name in ("jitter", "dispatch", "contention"):
            self._check(name, 0 <= getattr(self, name) < math.inf, "be finite and not negative")
        self._check("convolution_share", 0 < self.convolution_share <= 1, "be above 0 and at most 1")
        if 1 / self.compute_slowdown + 1 / self.transfer_slowdown < 1:
            raise ValueError(
                f"CostEffects.compute_slowdown {self.compute_slowdown} and transfer_slowdown {self.transfer_slowdown} "
                "make computation and a transfer together slower than one after the other; give smaller ones"
            )

    def _check(self, name: str, valid: bool, must: str) -> None:
        if not valid:
            raise ValueError(f"CostEffects.{name} is {getattr(self, name)}; it must {must}")

    def without(self, names: Iterable[EffectName] | EffectName) -> "CostEffects":
        """Returns the other effects alone. Raises UserError for an unknown name."""
        effects = (names,) if isinstance(names, str) else tuple(names)
        if unknown := [name for name in effects if name not in EFFECT_NAMES]:
            raise UserError(f"there is no effect {unknown[0]!r}; choose from {', '.join(EFFECT_NAMES)}")
        none = CostEffects()
        fields = [field for name in effects for field in _FIELDS[name]]
        return dataclasses.replace(self, **{field: getattr(none, field) for field in fields})

    def twice(self, name: EffectName) -> "CostEffects":
        """Returns the effects with one of them twice as far from none."""
        none = CostEffects()

        def doubled(field: str) -> float:
            value, least = getattr(self, field), getattr(none, field)
            if field == "convolution_share":
                return 1 / (1 + 2 * (1 / value - 1))
            return least + 2 * (value - least)

        return dataclasses.replace(self, **{field: doubled(field) for field in _FIELDS[name]})


_FIELDS: dict[EffectName, tuple[str, ...]] = {
    "throttling": ("throttling",),
    "interference": ("compute_slowdown", "transfer_slowdown"),
    "convolutions": ("convolution_share",),
    "jitter": ("jitter",),
    "dispatch": ("dispatch",),
    "contention": ("contention",),
    "imbalance": ("imbalance",),
}
