"""`python -m mmjax.report`: writes the page of a run, whether it is finished, going on, or was killed."""

import dataclasses
import functools
import pathlib
from typing import TYPE_CHECKING

from mmjax import cli

if TYPE_CHECKING:
    from mmjax.reporting.predicted_step import PredictedTimeline
    from mmjax.reporting.run_folder import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Flags of the command."""

    workdir: str = cli.flag("", "Folder that python -m mmjax.train wrote to.", metavar="FOLDER")
    page: str = cli.flag(
        "",
        "HTML file to write; without the flag, report.html in the folder.",
        metavar="FILE",
        parse=cli.output_file,
    )


def prepare(arguments: ReportArguments) -> cli.Work:
    """Opens the run's folder."""
    if not arguments.workdir:
        raise cli.UserError("--workdir is missing: the folder that python -m mmjax.train wrote to")
    from mmjax.reporting.run_folder import open_run

    return functools.partial(report, arguments, open_run(arguments.workdir))


def report(arguments: ReportArguments, run: "Run") -> None:
    """Writes the page, and prints its path."""
    from mmjax.reporting.run_page import PAGE_FILE, write_run_page

    path = pathlib.Path(arguments.page) if arguments.page else run.workdir / PAGE_FILE
    try:
        write_run_page(run, _predicted(run), path)
    except OSError as error:
        raise cli.UserError(f"the page cannot be written to {path}: {error.strerror}") from error
    print(f"Written to {path}")


def _predicted(run: "Run") -> "PredictedTimeline | str":
    """Returns the step simulated by the configuration in the workdir, or the reason why there is none."""
    from mmjax.reporting.predicted_step import predict_timeline

    try:
        return predict_timeline(run, cli.run_config(run.workdir))
    except cli.UserError as error:  # such as a module of the user's that is not here
        return str(error)


COMMAND = cli.Command(
    name="mmjax.report",
    summary="Writes the page of a run, finished, going on, or killed.",
    examples=("--workdir=runs/short",),
    arguments=ReportArguments,
    prepare=prepare,
)
