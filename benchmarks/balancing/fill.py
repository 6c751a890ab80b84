"""How full and how even backbone rows are, post-balanced and packed first-fit.

The samples are the quickstart's, in the order in which training draws them, and the description of OrchMLLM's data
(`configs/data/speech_mix.gin`) for MLLM-10B. They are grouped window by window, as in training. `fill` is the share of
the capacity of which rows hold most; `max / mean` is the fullest row of a step over the mean row, by backbone tokens,
by which `post_balanced` evens rows out.
"""

import typing
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from benchmarks.balancing.postbalancing import row
from benchmarks.dispatch.samples import DATA
from configs.architectures import ModelConfig
from configs.workloads import SyntheticData
from data.data_config import DataConfig
from data.packing.grouping.comparison import GroupingSettings, packed_groups
from data.packing.grouping.grouping_policies import row_limits
from data.packing.pipeline import training_pipeline
from mmjax import cli
from mmjax.training.config import TrainConfig
from sharding.specs.layers.layer import LoadColumn
from sharding.specs.row_load_statistics import draw_sample_loads

SAMPLES = 10_000
ROWS = (2, 8, 64)
ALLOWED_LOSS = 0.02
"""By how much of the capacity rows may be less full than those of first-fit."""

Row = dict[str, Any]


class RowSamples(NamedTuple):
    """Samples to group.

    Attributes:
        name: What they are.
        sizes: Their sizes in every quantity, backbone tokens first.
        limits: Capacity of a row in every quantity, and in samples.
    """

    name: str
    sizes: Float[np.ndarray, "n k"]
    limits: Float[np.ndarray, " _"]


def measure() -> list[Row]:
    """Returns all rows of this section."""
    data_sets = (quickstart(SAMPLES), *described(SAMPLES))
    return [entry for samples in data_sets for rows in ROWS for entry in fill_rows(samples, rows)]


def quickstart(count: int) -> RowSamples:
    """The first samples of the quickstart; those of any seed are alike."""
    cli.parse_gin(("quickstart.gin",))
    config = cli.configured(TrainConfig)
    planner = training_pipeline(config.data, config.model, config.dataset("train")).planner
    stream = (typing.cast(int, planner.sample_stream[place]) for place in range(count))
    units = [planner.sample_index.sizes(sample).row_units for sample in stream]
    names = [name for name, most in planner.capacity.units.items() if most]
    sizes = np.array([[sample[name] for name in names] for sample in units], float)
    return RowSamples("quickstart", sizes, row_limits(planner.capacity))


def described(count: int) -> list[RowSamples]:
    """Samples of the description, in rows of its length and of half of it, to which longer samples are cut."""
    cli.parse_gin(("models/mllm_10b.gin", DATA))
    model, data = cli.configured(ModelConfig), cli.configured(SyntheticData)
    loads = draw_sample_loads(data, model, count).loads[model.backbone.name]
    return [
        RowSamples(
            f"speech_mix, rows of {length:,}",
            loads[:, [LoadColumn.TOKENS]].clip(max=length),
            np.array([length, np.inf]),
        )
        for length in (data.row_tokens, data.row_tokens // 2)
    ]


def fill_rows(samples: RowSamples, rows: int) -> list[Row]:
    """Fill and evenness of steps of some rows, with first-fit's in the place of the reference."""
    (fill, evenness), (first_fit, first_fit_evenness) = (
        fill_and_evenness(samples, rows, policy) for policy in ("post_balanced", "first_fit")
    )
    title = f"post-balanced rows, {samples.name}, {rows} rows a step"
    least = first_fit - ALLOWED_LOSS
    return [
        {"name": f"{title}: fill", "value": fill, "goal": least, "met": fill >= least, "reference": first_fit},
        row(f"{title}: max / mean", evenness, None, first_fit_evenness),
    ]


def fill_and_evenness(samples: RowSamples, rows: int, policy: str) -> tuple[float, float]:
    """Fill of the rows in the quantity of which they hold most, and the fullest row of a step over the mean one."""
    modalities = samples.sizes.shape[1]
    settings = GroupingSettings(
        modalities=tuple(map(str, range(modalities))),
        flops_per_unit=(1.0,) * modalities,
        rows=rows,
        window=DataConfig().window,
        seed=0,
    )
    sums = packed_groups(policy, samples.sizes, samples.limits, settings).sums(samples.sizes)
    tokens = sums[:, 0].reshape(-1, rows)
    return (
        float((sums.mean(axis=0) / samples.limits[:-1]).max()),
        float((tokens.max(axis=1) / tokens.mean(axis=1)).mean()),
    )
