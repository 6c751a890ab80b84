"""`python -m mmjax.describe_data`: what a training run's samples hold, how to balance them, and what rows should hold.

    python -m mmjax.describe_data --gin_file=quickstart.gin --samples=4096 --page=data.html

It reads what sources know without decoding, and needs neither jax nor an accelerator.
"""

import json
import pathlib

from absl import flags

from mmjax import cli

_SAMPLES = flags.DEFINE_integer("samples", 4096, "Samples drawn, of every kind as many as training draws.", 1)
_BUCKETS = flags.DEFINE_integer("buckets", 4, "Sizes to which samples would be padded, at most.", 1)
_PAGE = flags.DEFINE_string("page", "", "File to write an HTML page with plots to.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON document instead of tables.")

DEFAULT = "quickstart.gin"


def main() -> None:
    """Draws and outlines samples, describes them and shows that."""
    cli.parse_gin(DEFAULT)
    if not cli.is_bound("TrainConfig.source"):
        raise cli.UserError("the configuration binds no TrainConfig.source; give the gin file of a training run")
    from data.datasets.dataset import SampleIndex
    from data.packing.global_batch import capacity_for_model
    from data.report.dataset_statistics import collect_statistics
    from data.report.description import describe_dataset, description_json
    from data.report.description_page import description_html
    from data.report.flops_per_unit import flops_per_unit
    from data.report.presentation import print_description
    from data.samples.sample_format import SampleFormat
    from mmjax.planning.report import report_console
    from mmjax.training.config import TrainConfig

    config = cli.configured(TrainConfig)
    catalogue = SampleIndex(
        config.source("train"), SampleFormat.for_model(config.model, config.data.patches, config.data.frames)
    )
    capacity = capacity_for_model(config.data.capacity, catalogue.sample_format)
    found = collect_statistics(
        catalogue, capacity, config.data.shares(catalogue.counts), _SAMPLES.value, config.data.seed
    )
    description = describe_dataset(
        found, config.data, capacity, flops_per_unit(config.model, catalogue.sample_format), _BUCKETS.value
    )
    if _JSON.value:
        print(json.dumps(description_json(description)))
    else:
        print_description(description, report_console())
    if _PAGE.value:
        title = f"Data of {', '.join(flags.FLAGS.gin_file or [DEFAULT])}"
        pathlib.Path(_PAGE.value).write_text(description_html(description, title), encoding="utf-8")
        if not _JSON.value:
            print(f"Written to {_PAGE.value}")


if __name__ == "__main__":
    cli.run(main, distributed=False)
