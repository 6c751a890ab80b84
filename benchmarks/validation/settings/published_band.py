"""Published MFU that is a band, or whose setting is open: what is simulated at several settings that fit it.

Such figures enter no mean error: a band has no middle that was measured, and an open setting no one simulated figure.
"""

import dataclasses
from typing import NamedTuple

from benchmarks.validation.settings.setting import Setting, simulated_step
from configs.cost_effects import CostEffects


class AssumedSetting(NamedTuple):
    """A setting that fits what is published.

    Attributes:
        assumption: What it takes for granted, in words.
        setting: How the run was trained.
        flops: FLOPs of a step by the source's own counting.
    """

    assumption: str
    setting: Setting
    flops: float

    def mfu(self, effects: CostEffects | None = None) -> float:
        """Simulated MFU by the source's counting, on all devices."""
        setting = self.setting if effects is None else self.setting.with_effects(effects)
        return self.flops / (simulated_step(setting) * setting.devices * setting.costs.cluster.peak_flops)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedBand:
    """A published MFU.

    Attributes:
        name: The run.
        source: Where it is published.
        least: Lower end of the published MFU.
        most: Upper end; of a single figure, the same.
        assumed: Settings that fit what is published, of which the first seems the likeliest.
    """

    name: str
    source: str
    least: float
    most: float
    assumed: tuple[AssumedSetting, ...]

    def outside(self, mfu: float) -> float:
        """Points by which a simulated MFU is above the band, or, negative, below it; 0 within."""
        return max(mfu - self.most, 0.0) or min(mfu - self.least, 0.0)
