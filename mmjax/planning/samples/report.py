"""The table of groupings that `mmjax.plan` prints for a workload of samples, its JSON and its gin lines."""

from typing import Any

from rich.console import Console

from configs.common.tables import print_table, report_table
from mmjax.planning.samples.comparison import GroupingComparison, SimulatedGrouping
from mmjax.planning.samples.sample_rows import SampleRows
from sharding.html import numbers
from sharding.html.elements import Html, element, join, table
from sharding.planners.problem import STEP_SLACK


def groupings_document(comparison: GroupingComparison, planned: SampleRows) -> dict[str, Any]:
    """Returns the rows that were planned and the steps with each grouping as JSON, in seconds and shares.

    Args:
        comparison: Steps with the rows of several groupings.
        planned: The rows of the chosen grouping, for which the chosen plan was made.
    """
    return {
        "policy": comparison.policy,
        "reordering": comparison.choice.reordering,
        **_rows_document(planned),
        "gin": list(suggested_gin(comparison, planned)),
        "groupings": [
            {
                "reordering": one.reordering,
                **_rows_document(one.rows),
                "steps": one.steps,
                "step_seconds": one.step_seconds,
                "samples_per_second": one.samples_per_second,
                "samples_per_second_of_loads": one.samples_per_second_of_loads,
            }
            for one in comparison.simulated
        ],
        "without_plan": dict(comparison.reasons),
    }


def _rows_document(rows: SampleRows) -> dict[str, Any]:
    return {
        "grouping": rows.grouping,
        "rows": rows.rows,
        "samples_per_step": rows.samples_per_step,
        "fill": rows.fill,
        "imbalance": rows.imbalance,
    }


def suggested_gin(comparison: GroupingComparison, planned: SampleRows) -> tuple[str, ...]:
    """Returns the lines of a gin file by which a training run makes the rows that were planned."""
    return planned.gin + comparison.choice.reordering_gin


def print_groupings(comparison: GroupingComparison, planned: SampleRows, console: Console) -> None:
    """Prints the steps with each grouping, what was chosen, and its gin lines."""
    shown = report_table(_title(comparison), *_columns(planned), texts=("grouping", "reordering"))
    for one in comparison.simulated:
        shown.add_row(*_cells(one), style="bold" if one is comparison.choice else None)
    print_table(shown, console, keys=2)
    for grouping, reason in comparison.reasons.items():
        console.print(f"{grouping}: {reason}", soft_wrap=True)
    console.print(in_words(comparison, planned), soft_wrap=True)
    console.print("\n".join(suggested_gin(comparison, planned)), soft_wrap=True)


def groupings_html(comparison: GroupingComparison, planned: SampleRows) -> Html:
    """The steps with each grouping as a table, what was chosen, and its gin lines."""
    grouping, reordering, *others = _columns(planned)
    columns = (grouping, reordering, *(f"#{column}" for column in others))
    chosen = [number for number, one in enumerate(comparison.simulated) if one is comparison.choice]
    gin = "\n".join(suggested_gin(comparison, planned))
    return join(
        [
            table(columns, map(_cells, comparison.simulated), _title(comparison), chosen),
            element("p", in_words(comparison, planned)),
            element("pre", gin),
        ]
    )


def _title(comparison: GroupingComparison) -> str:
    return (
        f"Samples in rows, by grouping: simulated steps of plans of {comparison.policy}, computing whole rows; loads "
        "are the largest of a row over the mean row's"
    )


def _columns(planned: SampleRows) -> tuple[str, ...]:
    loads = (f"load {name}" for name in planned.imbalance)
    return (
        "grouping",
        "reordering",
        "rows",
        "samples",
        "fill",
        *loads,
        "step",
        "samples/s",
        "samples/s without padding",
    )


def _cells(one: SimulatedGrouping) -> tuple[str, ...]:
    return (
        one.rows.grouping,
        one.reordering,
        f"{one.rows.rows:,}",
        f"{one.samples / one.steps:,.0f}",
        f"{one.backbone_fill:.1%}",
        *(f"{load:.2f}" for load in one.rows.imbalance.values()),
        numbers.seconds(one.step_seconds),
        f"{one.samples_per_second:,.4g}",
        f"{one.samples_per_second_of_loads:,.4g}",
    )


def in_words(comparison: GroupingComparison, planned: SampleRows) -> str:
    """Says which grouping was taken and what its rows are."""
    return (
        f"Grouping: {comparison.choice.name}{_reason(comparison)}. A step has {planned.rows:,} rows with "
        f"{planned.samples_per_step:,.0f} samples in the mean, {planned.fill[planned.backbone]:.1%} full. A training "
        "run makes such rows by:"
    )


def _reason(comparison: GroupingComparison) -> str:
    """Why it was chosen among several groupings; empty where one alone was simulated."""
    if len({one.rows.grouping for one in comparison.simulated}) == 1:
        return ""
    choice, most = comparison.choice, _fastest(comparison)
    if choice.samples_per_second == most.samples_per_second:
        return ", the most samples a second"
    return f", the fullest rows within {STEP_SLACK:.0%} of the most samples a second ({most.name})"


def _fastest(comparison: GroupingComparison) -> SimulatedGrouping:
    return max(comparison.simulated, key=lambda one: one.samples_per_second)
