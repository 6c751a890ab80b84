"""Where the samples of a workload come from: a description of data, or the data set of a training run.

Both are grouped into rows by the code by which training groups them.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import numpy as np
from jaxtyping import Int

from configs.architectures import ModelConfig
from configs.workloads import SyntheticData
from data.data_config import DataConfig, GroupingPolicyName
from data.packing.grouping.comparison import GroupingSettings, packed_groups
from data.packing.grouping.windows import WINDOW_STEPS
from mmjax.planning.samples.sample_rows import SampleRows, suited_rows
from sharding.specs.layers.layer import LoadColumn
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics, draw_fitting_sample_loads, joined_sample_loads

if TYPE_CHECKING:  # it imports the data pipeline, which described data do without
    from data.datasets.dataset import Dataset
    from mmjax.training.config import TrainConfig

AUTO_GROUPING = "auto"
"""Stands for `GROUPINGS`, of which the best is chosen."""

GROUPINGS = ("first_fit", "isf", "post_balanced")
"""Groupings that are compared: OmniBal's baselines are none of them. Plans are compared with rows of the first."""

GROUPED_SAMPLES, GROUPED_ROWS = 4096, 1024
"""About as many samples and rows has a step that is grouped at most: the rows of a longer one are a shorter one's."""

DRAWN_SAMPLES = 8192
"""Different samples that are drawn from a description; a step with more of them repeats them, as epochs do."""

LEAST_ROWS = 64
"""Rows of a data set that are grouped at least."""

_TRIAL_ROWS = 64
"""Rows of the step by which the number of samples of a row is estimated first."""

_CORRECTIONS = 3
"""How often the number of rows is corrected by the samples that its steps have."""


class GroupedSamples(abc.ABC):
    """The samples of a workload."""

    groupings: Sequence[str]
    """Groupings that are possible."""

    default_grouping: str
    """The grouping where none is named: one of these, or `AUTO_GROUPING`."""

    @abc.abstractmethod
    def rows(self, grouping: str, rows: int) -> SampleRows:
        """Whole steps of `rows` rows, as a grouping makes them of the samples.

        Raises:
            DataError: As of `data.packing.pipeline.training_batches`.
        """

    @property
    @abc.abstractmethod
    def trial_rows(self) -> int:
        """Rows of a step by which the number of samples of a row is estimated."""

    def rows_of_step(self, grouping: str, rows: int) -> SampleRows:
        """As `rows`, for any number of rows: of a shorter step, where a step has more than are grouped here."""
        return self._shortened(grouping, rows, self.rows(grouping, min(rows, self.trial_rows)))

    def rows_for(self, grouping: str, samples: int, devices: int) -> SampleRows:
        """As many rows as hold the samples of a step in the mean, or near to it, where more devices divide these."""
        made, rows = self.rows(grouping, self.trial_rows), 0
        for _ in range(_CORRECTIONS):
            suited = suited_rows(samples / made.samples_per_row, devices)
            if suited == rows:
                break
            made, rows = self._shortened(grouping, suited, made), suited
        return made

    def _shortened(self, grouping: str, rows: int, like: SampleRows) -> SampleRows:
        """Steps of so many rows, or of fewer, in which `GROUPED_SAMPLES` are about as dense as in other rows."""
        grouped = min(rows, GROUPED_ROWS, max(1, math.floor(GROUPED_SAMPLES / like.samples_per_row)))
        made = like if like.statistics.step_rows == grouped else self.rows(grouping, grouped)
        return dataclasses.replace(made, rows=rows)


@dataclasses.dataclass(frozen=True, eq=False)
class DescribedSamples(GroupedSamples):
    """Samples that are drawn from a description of data.

    Attributes:
        data: The description.
        model: The model that reads them.
        seed: Seed of the samples, of their order and of their groups.
    """

    data: SyntheticData
    model: ModelConfig
    seed: int = 0

    groupings = GROUPINGS
    default_grouping = AUTO_GROUPING

    @functools.cached_property
    def samples(self) -> RowLoadStatistics:
        """The loads of the samples; one that is longer than a row is truncated to it."""
        return draw_fitting_sample_loads(self.data, self.model, DRAWN_SAMPLES, self.seed)

    @property
    def trial_rows(self) -> int:
        """As many rows as hold some samples of the mean length."""
        tokens = float(self.samples.mean_load(self.model.backbone.name)[LoadColumn.TOKENS])
        return max(1, min(_TRIAL_ROWS, round(GROUPED_SAMPLES / 4 * tokens / self.data.row_tokens)))

    def rows(self, grouping: str, rows: int) -> SampleRows:
        """Rows of the samples drawn, epoch by epoch; a row has no capacity but for backbone tokens."""
        name, row_tokens = self.model.backbone.name, self.data.row_tokens
        stream = self.stream(rows)
        sizes = self.samples.loads[name][stream, LoadColumn.TOKENS][:, None]
        threshold = self.data.isf_threshold
        settings = GroupingSettings(
            modalities=(name,),
            flops_per_unit=(1.0,),
            rows=rows,
            window=DataConfig().window,
            seed=self.seed,
            isf_thresholds={name: threshold} if threshold else {},
        )
        groups = packed_groups(grouping, sizes, np.array([row_tokens, np.inf]), settings)
        loads = joined_sample_loads(self.samples, stream[groups.members], groups.starts[:-1], self.data, self.model)
        return SampleRows(
            grouping=grouping,
            rows=rows,
            statistics=RowLoadStatistics(loads, rows),
            positions={name: row_tokens},
            backbone=name,
        )

    def stream(self, rows: int) -> Int[np.ndarray, " n"]:
        """The samples in random order, epoch by epoch, as many as a window of steps of `rows` rows has."""
        tokens = self.samples.loads[self.model.backbone.name][:, LoadColumn.TOKENS]
        content, random = WINDOW_STEPS * rows * self.data.row_tokens, np.random.default_rng(self.seed)
        epochs = max(1, math.ceil(content / tokens.sum()))
        order = np.concatenate([random.permutation(len(tokens)) for _ in range(epochs)])
        full = int(np.searchsorted(np.cumsum(tokens[order]), content)) + 1
        return order[: max(full, DataConfig().window)]


@dataclasses.dataclass(frozen=True, eq=False)
class DatasetSamples(GroupedSamples):
    """Samples of a training run's data set, in the order in which it trains on them; none is decoded.

    Attributes:
        config: The run.
        positions: By module that has positions, positions of a row.
    """

    config: "TrainConfig"
    positions: dict[str, int]

    groupings = get_args(GroupingPolicyName)

    @property
    def default_grouping(self) -> str:
        """The run's own grouping."""
        return self.config.data.grouping

    @functools.cached_property
    def _dataset(self) -> "Dataset":
        return self.config.dataset("train")

    @property
    def trial_rows(self) -> int:
        """The run's own rows."""
        return self.config.data.rows

    def rows(self, grouping: str, rows: int) -> SampleRows:
        """Rows of the run's first steps, if it had so many rows a step and this grouping."""
        # Their import takes seconds.
        from data.packing.pipeline import training_pipeline
        from data.packing.planned_row_loads import planned_row_loads, planned_rows

        model = self.config.model
        data = dataclasses.replace(self.config.data, rows=rows, grouping=grouping)
        pipeline = training_pipeline(data, model, self._dataset)
        sizes = planned_rows(pipeline, max(WINDOW_STEPS, math.ceil(LEAST_ROWS / rows)) * rows)
        loads = planned_row_loads(sizes, pipeline.sample_index.sample_format, module_graph(model))
        return SampleRows(
            grouping=grouping,
            rows=rows,
            statistics=RowLoadStatistics(loads, rows),
            positions=self.positions,
            backbone=model.backbone.name,
        )
