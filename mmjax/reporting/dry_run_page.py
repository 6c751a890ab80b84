"""The page of a dry run: memory by pipeline rank, programs, and what covers every collective."""

from typing import TYPE_CHECKING

from mmjax.reporting.dry_run_tables import Figures, collective_figures, in_words, memory_figures, program_figures
from sharding.html.elements import Html, element, figures, table
from sharding.html.numbers import count, percent, seconds, size
from sharding.html.page import page

if TYPE_CHECKING:  # it imports jax
    from mmjax.training.dry_run.dry_run import DryRun

_READING = (
    "A program stands for all stages whose layers, mesh and shapes are the same. XLA allocates temporaries for each "
    "program; what microbatches in flight hold follows from the simulated step. Nothing ran: no matmul is tuned by "
    "trying, and what may overlap is known, not how long it takes."
)


def dry_run_page(run: "DryRun", title: str) -> str:
    """The page.

    Args:
        run: The dry run.
        title: Its title, such as the model and the plan.
    """
    return page(
        f"{title}, for {run.target}",
        element("p", in_words(run)),
        _headline(run),
        element("p", _READING, class_="note"),
        element("h2", "Memory of a device"),
        _table(memory_figures(run)),
        element("h2", "Programs"),
        _table(program_figures(run)),
        element("h2", "Collectives"),
        _table(collective_figures(run)),
    )


def dry_run_fragment(run: "DryRun") -> Html:
    """The dry run for a notebook: nothing in it depends on a style sheet."""
    return element("div", element("p", in_words(run)), _table(memory_figures(run)), _table(program_figures(run)))


def _headline(run: "DryRun") -> Html:
    fullest = run.fullest
    return figures(
        [
            ("of the fullest device", percent(fullest.compiled_bytes / fullest.room)),
            ("allocated by XLA", size(fullest.compiled_bytes)),
            ("counted by planners", size(fullest.planned_bytes)),
            ("distinct programs", count(len(run.programs))),
            ("to compile them", seconds(run.compile_seconds)),
        ]
    )


def _table(shown: Figures) -> Html:
    return table(shown.columns, shown.rows, shown.caption)
