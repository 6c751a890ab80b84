"""A published measurement, the simulated seconds at its setting, and the half of the runs to which it belongs."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Literal

from benchmarks.validation.settings.setting import Setting, simulated_step
from configs.cost_effects import CostEffects
from sharding.costs.published_errors import Family

Half = Literal["calibration", "testing"]
"""`calibration` runs may decide the constants of `CostEffects`; `testing` runs only test them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A measurement.

    Attributes:
        name: The run.
        family: What it is an example of.
        source: Where it is published.
        width: Model width; of models of several, the widest.
        seconds: Measured seconds of a step, or of a layer.
        setting: How it was trained.
        measure: Simulated seconds of what was measured, at a setting.
    """

    name: str
    family: Family
    source: str
    width: int
    seconds: float
    setting: Setting
    measure: Callable[[Setting], float] = simulated_step

    @property
    def half(self) -> Half:
        """The half of the runs to which it belongs, by a hash of its name."""
        return "testing" if hashlib.sha256(self.name.encode()).digest()[0] % 2 else "calibration"

    def simulate(self, effects: CostEffects | None = None) -> float:
        """Simulated seconds by the analytic costs of the setting's devices, or by these with other effects."""
        return self.measure(self.setting if effects is None else self.setting.with_effects(effects))

    def error(self, effects: CostEffects | None = None) -> float:
        """Share by which the simulated seconds are longer than the measured ones."""
        return self.simulate(effects) / self.seconds - 1
