"""`python -m mmjax.describe_data`: describes a run's samples, their balance after grouping, and suitable capacities.

It reads metadata, decodes only the samples that a page shows, and needs neither jax nor an accelerator.
"""

import dataclasses
import functools
import json
import pathlib
from typing import TYPE_CHECKING

from configs.common.whole_files import naming
from mmjax import cli

if TYPE_CHECKING:
    from mmjax.training.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class DescribeDataArguments(cli.GinArguments, cli.JsonArguments):
    """Flags of the command."""

    samples: int = cli.flag(
        4096,
        "Number of samples to draw, of every kind in the proportion of training.",
        metavar="N",
        parse=cli.integer(1),
    )
    buckets: int = cli.flag(
        4, "Largest number of sizes to which samples would be padded.", metavar="N", parse=cli.integer(1)
    )
    microbatch_rows: int = cli.flag(
        0,
        "Rows of a microbatch, for capacities of rows of its own for a module; 0 for the rows of a step.",
        metavar="N",
        parse=cli.integer(0),
    )
    page: str = cli.flag(
        "",
        "HTML file for histograms, tables and typical samples; it needs no other file.",
        metavar="FILE",
        parse=cli.output_file,
    )


def prepare(arguments: DescribeDataArguments) -> cli.Work:
    """Reads the configuration of the run."""
    return functools.partial(describe_data, arguments, cli.training_config(arguments))


def describe_data(arguments: DescribeDataArguments, config: "TrainConfig") -> None:
    """Draws samples, reads their metadata, and shows a description."""
    from configs.common.console import plain_console
    from data.report.console import print_description
    from data.report.html_page import html_page
    from data.report.json_document import description_json
    from mmjax.api import data

    description = data.describe_data(
        config,
        arguments.samples,
        arguments.buckets,
        examples=bool(arguments.page),
        microbatch_rows=arguments.microbatch_rows,
    )
    if arguments.json:
        print(json.dumps(description_json(description)))
    else:
        print_description(description, plain_console())
    if arguments.page:
        title = f"Data of {', '.join(arguments.gin_file or (cli.QUICKSTART,))}"
        with naming(arguments.page):
            pathlib.Path(arguments.page).write_text(html_page(description, title), encoding="utf-8")
        if not arguments.json:
            print(f"Written to {arguments.page}")


COMMAND = cli.Command(
    name="mmjax.describe_data",
    summary="Describes a run's samples, their balance and their rows.",
    examples=("--gin_file=quickstart.gin --samples=4096 --page=data.html",),
    arguments=DescribeDataArguments,
    prepare=prepare,
)
