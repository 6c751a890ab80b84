"""The rows that a grouping makes of the samples of a step, with how full they are and how alike their loads are."""

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from sharding.costs.batch_costs import LoadsByModule
from sharding.specs.layers.layer import LoadColumn, Loads
from sharding.specs.row_load_statistics import RowLoadStatistics

MOST_BATCHES, MOST_SAMPLES = 4, 8192
"""Global batches that are simulated at most, and about how many samples they have together at most."""

MOST_OTHER_ROWS = 1 / 16
"""Share of rows that may be added or left out so that more devices divide them."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SampleRows:
    """Rows of whole steps, as a grouping makes them of samples.

    Attributes:
        grouping: Name of the grouping policy (`DataConfig.grouping`).
        rows: Rows of a step.
        statistics: Loads of the rows, step by step; of shorter steps where a step has too many samples to group.
        positions: By module, positions of a row, where they are known.
        backbone: Name of the backbone, whose items are samples.
    """

    grouping: str
    rows: int
    statistics: RowLoadStatistics
    positions: Mapping[str, int]
    backbone: str

    @functools.cached_property
    def samples_per_row(self) -> float:
        """Mean number of samples of a row."""
        return float(self.statistics.loads[self.backbone][:, LoadColumn.ITEMS].mean())

    @property
    def samples_per_step(self) -> float:
        """Mean number of samples of a step."""
        return self.samples_per_row * self.rows

    @functools.cached_property
    def fill(self) -> dict[str, float]:
        """By module whose positions of a row are known, the share of them that samples use."""
        return {
            name: float(self.statistics.mean_load(name)[LoadColumn.TOKENS]) / positions
            for name, positions in self.positions.items()
        }

    @functools.cached_property
    def imbalance(self) -> dict[str, float]:
        """By module, the largest load of a row over the mean row's, in the mean over steps; 1 without a load.

        Loads are positions; of a module without positions they are items.
        """
        return {name: self._imbalance(loads) for name, loads in self.statistics.loads.items()}

    def _imbalance(self, loads: Loads) -> float:
        column = LoadColumn.TOKENS if loads[:, LoadColumn.TOKENS].any() else LoadColumn.ITEMS
        steps: Float[np.ndarray, "steps rows"] = loads[:, column].reshape(-1, self.statistics.step_rows)
        means = steps.mean(axis=1)
        return float(np.divide(steps.max(axis=1), means, out=np.ones_like(means), where=means > 0).mean())

    @property
    def batches(self) -> tuple[LoadsByModule, ...]:
        """The loads of one to `MOST_BATCHES` global batches: of the first steps that were grouped."""
        enough = math.ceil(MOST_SAMPLES / self.samples_per_step)
        steps = min(MOST_BATCHES, enough, self.statistics.rows // self.statistics.step_rows)
        return tuple(self.statistics.sample_batch(self.rows, number) for number in range(steps))

    @property
    def gin(self) -> tuple[str, ...]:
        """The rows and their grouping as lines of a gin file of a training run."""
        lines = (f"rows = {self.rows}", f"tokens = {self.positions[self.backbone]}", f"grouping = {self.grouping!r}")
        return ("data_config.DataConfig:", *(f"  {line}" for line in lines))


def suited_rows(needed: float, devices: int) -> int:
    """The number of rows within `MOST_OTHER_ROWS` of the needed ones that most devices divide; the nearest of several.

    Where there is no whole number among them, it is the next one.
    """
    least = max(1, math.ceil(needed * (1 - MOST_OTHER_ROWS)))
    most = max(least, math.floor(needed * (1 + MOST_OTHER_ROWS)))
    return max(range(least, most + 1), key=lambda rows: (math.gcd(rows, devices), -abs(rows - needed)))
