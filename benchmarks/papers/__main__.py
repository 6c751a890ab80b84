"""`python -m benchmarks.papers`: the tables and figures of four papers beside what is simulated, or measured here.

Every row has what the paper states, our figure at the paper's layout, and that of our best plan, each with its range
(`benchmarks.papers.paper_rows`). All of it takes about 25 minutes of one core; `--papers` selects.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from benchmarks.command import run_benchmark
from benchmarks.papers.paper_rows import PAPER_NAMES, PaperName, PaperRow, ReportProgress
from configs.common.errors import UserError
from mmjax import cli

if TYPE_CHECKING:
    from benchmarks.papers.best_plans import BestPlans


@dataclasses.dataclass(frozen=True, kw_only=True)
class PapersArguments(cli.JsonArguments):
    """Flags of the command."""

    papers: tuple[str, ...] = cli.flag(
        PAPER_NAMES, f"Papers to show: {', '.join(PAPER_NAMES)}.", metavar="NAMES", parse=cli.list_of(str)
    )
    page: str = cli.flag("", "Writes a page: drawings (.svg), tables (.md), or both (.html).", metavar="FILE")
    rows: tuple[str, ...] = cli.flag(
        (),
        "Takes rows that --json wrote, and simulates nothing.",
        metavar="FILES",
        parse=cli.list_of(str),
    )


def main(arguments: PapersArguments) -> int:
    """Prints the rows."""
    from benchmarks.papers.tables import print_rows, rows_of_files, rows_to_json

    for name in arguments.papers:
        if name not in PAPER_NAMES:
            raise UserError(f"--papers names {name!r}, which there is not; choose from {', '.join(PAPER_NAMES)}")
    if arguments.rows:
        rows = [row for row in rows_of_files(arguments.rows) if row.paper in arguments.papers]
    else:
        from benchmarks.papers.best_plans import BestPlans

        plans = BestPlans(_report_progress)
        names: list[PaperName] = [name for name in PAPER_NAMES if name in arguments.papers]
        rows = [row for name in names for row in simulate(name, plans, _report_progress)]
    if arguments.page:
        from benchmarks.papers.page import write_page

        write_page(arguments.page, rows)
    if arguments.json:
        print(rows_to_json(rows))
    else:
        print_rows(rows)
    return 0


def simulate(paper: PaperName, plans: "BestPlans", report_progress: ReportProgress) -> Iterator[PaperRow]:
    """All rows of a paper."""
    from benchmarks.papers import (
        disttrain,
        disttrain_parts,
        lmms_engine,
        omnibal,
        omnibal_settings,
        optimus,
        orchmllm,
        text_only,
    )

    rows_of: dict[PaperName, Callable[[], Iterable[PaperRow]]] = {
        "disttrain": lambda: itertools.chain(disttrain_parts.rows(report_progress), disttrain.rows(plans)),
        "omnibal": lambda: itertools.chain(omnibal.rows(plans), omnibal_settings.rows(report_progress)),
        "optimus": lambda: optimus.rows(plans),
        "orchmllm": lambda: orchmllm.rows(plans),
        "lmms_engine": lmms_engine.rows,
        "text_only": lambda: text_only.rows(plans),
    }
    yield from rows_of[paper]()


def _report_progress(words: str) -> None:
    print(f"[{time.process_time():,.0f} s] {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_benchmark(
        main,
        PapersArguments,
        name="benchmarks.papers",
        summary="Shows the tables of four papers beside what is simulated, or measured on this machine.",
        examples=("--papers=optimus", "--json", "--papers=omnibal,orchmllm --page=papers.html"),
    )
