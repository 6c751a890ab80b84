"""`mmjax.describe_data`: descriptions of data sets, for programs, notebooks and the command of that name."""

import functools

from data.datasets.dataset import SampleIndex
from data.packing.global_batch import capacity_for_model
from data.report.dataset_statistics import (
    collect_statistics,
    flops_per_unit,
    modules_of_units,
    quadratic_cost_weights,
)
from data.report.description import DatasetDescription, describe_dataset
from data.report.examples import decode_examples
from data.samples.sample_format import SampleFormat
from mmjax.training.config import TrainConfig
from mmjax.training.metrics.activity import GROUPING, READING, display_call


def describe_data(
    config: TrainConfig, samples: int = 4096, buckets: int = 4, examples: bool = True, microbatch_rows: int = 0
) -> DatasetDescription:
    """Describes what a run's samples hold, how grouping balances them, and which capacities suit its rows.

    After two seconds it shows its progress on standard error.

    Args:
        config: The run.
        samples: Number of samples to draw, of every kind in the proportion of training; their sizes alone are read.
        buckets: Largest number of sizes to which samples would be padded.
        examples: Whether a few typical and extreme samples are decoded, to be shown.
        microbatch_rows: Rows of a microbatch, for capacities of a module's own rows; 0 for the rows of a step.

    Raises:
        DataError: The data set does not fit the model or the data configuration.
    """
    sample_format = SampleFormat.for_model(config.model, config.data.encoder_capacities)
    sample_index = SampleIndex(config.dataset("train"), sample_format)
    capacity = capacity_for_model(config.data.capacity, sample_format)
    shares = config.data.shares(sample_index.counts)
    with display_call() as display:
        callback = functools.partial(display.show, READING)
        statistics = collect_statistics(sample_index, capacity, shares, samples, config.data.seed, callback)
        display.show(GROUPING, 0, len(statistics.sample_ids))
        return describe_dataset(
            statistics,
            config.data,
            capacity,
            flops_per_unit(config.model, sample_format),
            modules_of_units(config.model, sample_format),
            quadratic_cost_weights(config.model, sample_format),
            buckets,
            microbatch_rows,
            decode_examples(sample_index, statistics) if examples else (),
        )
