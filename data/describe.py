"""`python -m data.describe`: what a training run's samples hold, how to balance them, and what rows should hold.

    python -m data.describe --gin_file=quickstart.gin --samples=4096 --page=data.html

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
    from data.batch import batch_capacity
    from data.description import describe, document
    from data.description_page import html_page
    from data.description_report import print_description
    from data.formats import SampleFormat
    from data.source import Catalogue
    from data.survey import survey
    from data.unit_work import unit_work
    from mmjax.plan_report import report_console
    from mmjax.training.config import TrainConfig

    config = cli.configured(TrainConfig)
    catalogue = Catalogue(
        config.source("train"), SampleFormat.of(config.model, config.data.patches, config.data.frames)
    )
    capacity = batch_capacity(config.data.capacity, catalogue.form)
    found = survey(catalogue, capacity, config.data.shares(catalogue.counts), _SAMPLES.value, config.data.seed)
    description = describe(found, config.data, capacity, unit_work(config.model, catalogue.form), _BUCKETS.value)
    if _JSON.value:
        print(json.dumps(document(description)))
    else:
        print_description(description, report_console())
    if _PAGE.value:
        title = f"Data of {', '.join(flags.FLAGS.gin_file or [DEFAULT])}"
        pathlib.Path(_PAGE.value).write_text(html_page(description, title), encoding="utf-8")
        if not _JSON.value:
            print(f"Written to {_PAGE.value}")


if __name__ == "__main__":
    cli.run(main, joins=False)
