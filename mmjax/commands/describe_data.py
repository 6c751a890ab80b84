"""`python -m mmjax.describe_data`: what a run's samples hold, how grouping balances them, what rows should hold.

    python -m mmjax.describe_data --gin_file=quickstart.gin --samples=4096 --page=data.html

It reads metadata without decoding, and needs neither jax nor an accelerator.
"""

import json
import pathlib

from absl import flags

from mmjax import cli

_SAMPLES = flags.DEFINE_integer(
    "samples", 4096, "Number of samples to draw, of every kind in the proportion of training.", 1
)
_BUCKETS = flags.DEFINE_integer("buckets", 4, "Largest number of sizes to which samples would be padded.", 1)
_PAGE = flags.DEFINE_string("page", "", "HTML file to write histograms and tables to; it needs no other file.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON document instead of tables.")

DEFAULT_GIN_FILE = "quickstart.gin"


def main() -> None:
    """Draws samples, reads their metadata, and shows a description."""
    cli.parse_gin(DEFAULT_GIN_FILE)
    if not cli.is_bound("TrainConfig.dataset"):
        raise cli.UserError("the configuration binds no TrainConfig.dataset; give the gin file of a training run")
    from data.datasets.dataset import SampleIndex
    from data.packing.global_batch import capacity_for_model
    from data.report.dataset_statistics import collect_statistics, flops_per_unit
    from data.report.description import describe_dataset, description_json
    from data.report.presentation import description_html, print_description
    from data.samples.sample_format import SampleFormat
    from mmjax.planning.report import report_console
    from mmjax.training.config import TrainConfig

    config = cli.configured(TrainConfig)
    sample_format = SampleFormat.for_model(config.model, config.data.patches, config.data.frames)
    sample_index = SampleIndex(config.dataset("train"), sample_format)
    capacity = capacity_for_model(config.data.capacity, sample_format)
    shares = config.data.shares(sample_index.counts)
    statistics = collect_statistics(sample_index, capacity, shares, _SAMPLES.value, config.data.seed)
    costs = flops_per_unit(config.model, sample_format)
    description = describe_dataset(statistics, config.data, capacity, costs, _BUCKETS.value)
    if _JSON.value:
        print(json.dumps(description_json(description)))
    else:
        print_description(description, report_console())
    if _PAGE.value:
        title = f"Data of {', '.join(flags.FLAGS.gin_file or [DEFAULT_GIN_FILE])}"
        pathlib.Path(_PAGE.value).write_text(description_html(description, title), encoding="utf-8")
        if not _JSON.value:
            print(f"Written to {_PAGE.value}")
