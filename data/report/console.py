"""A description of a data set on a terminal: plain words first, then tables, then lines to paste."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from configs.common.tables import print_table, report_table
from data.report.description import DatasetDescription
from data.report.length_distribution import PERCENTILES
from data.report.plain_words import in_words

_UNIT_LABELS = {
    "tokens": "backbone tokens",
    "text": "of these, text",
    "patches": "patches",
    "frames": "mel frames",
    "images": "images to generate",
    "encoder_images": "encoder images, tiles, frames",
    "encoder_clips": "audio clips",
    "video_clips": "video clips",
    "video_frames": "frames of video",
}

_LEGEND = """PadRatio: padding between the samples of a batch; packed rows have none. DistRatio: how long replicas idle
while another has more. Static: padding where all rows have one shape, the capacity or the largest padded batch; waste
is the same over all modalities, by the FLOPs of their modules. Means over rows and steps.
"""

_PHASE_LEGEND = """Quadratic cost weight: of these units in DataConfig.quadratic_cost_weights, attention's FLOPs over
all others.
Saves: how much of the costliest rows' FLOPs, summed over microbatches, it saves in rows of these capacities.
"""

_MAX_REFUSED = 8
_CELL_WIDTH = 5  # columns for the name of a modality without its ending


def print_description(description: DatasetDescription, console: Console) -> None:
    """Prints the description in words, tables of samples, grouping and suggestions, and lines to paste at the end."""
    for sentence in in_words(description):
        console.print(sentence, soft_wrap=True, markup=False)
    console.print()
    print_table(_kinds_table(description), console)
    print_table(_units_table(description), console)
    shares = ", ".join(f"{name} {share:.1%}" for name, share in description.token_shares.items())
    console.print(f"Backbone tokens by modality: {shares}\n", soft_wrap=True)
    _print_refused(description, console)
    limits = ", ".join(f"{size:,} {name}" for name, size in description.capacity.items())
    console.print(f"As configured: {description.rows:,} rows a step, a row of at most {limits}", soft_wrap=True)
    print_table(_grouping_table(description, padded=True), console)
    print_table(_grouping_table(description, padded=False), console)
    if remark := _packed_remark(description):
        console.print(f"{remark}\n", soft_wrap=True)
    console.print(_LEGEND, soft_wrap=True)
    print_table(_isf_table(description), console)
    if isinstance(description.searched_isf, str):
        console.print(f"By search: {description.searched_isf}\n", soft_wrap=True, markup=False)
    for found, suggestion in description.isf_suggestions.items():
        console.print(f"# To paste: Q and Q' of the grouping isf, by {found}")
        console.print("\n".join((*suggestion.gin, "")), soft_wrap=True, markup=False)
    print_table(_row_capacity_table(description), console)
    if description.remark:
        console.print(f"{description.remark}\n", soft_wrap=True)
    print_table(_buckets_table(description), console)
    if description.phase_capacities:
        print_table(_phase_table(description), console)
        console.print(_PHASE_LEGEND, soft_wrap=True)
    if description.gin:
        console.print("# To paste: rows of the configured tokens that waste the fewest FLOPs")
        console.print("\n".join(description.gin), soft_wrap=True)


def _kinds_table(description: DatasetDescription) -> Table:
    table = report_table("Samples as training draws them", "kind", "available", "drawn", "share")
    for kind in description.kinds:
        table.add_row(kind.name, f"{kind.available:,}", f"{kind.drawn:,}", f"{kind.share:.1%}")
    return table


def _units_table(description: DatasetDescription) -> Table:
    columns = ("units", "have any", "mean", "minimum", *(f"{percent}%" for percent in PERCENTILES), "maximum")
    table = report_table("Units of a sample that has any; N% are percentiles", *columns)
    for distribution in description.distributions:
        numbers = (
            distribution.mean,
            distribution.minimum,
            *distribution.percentiles.values(),
            distribution.maximum,
        )
        table.add_row(_unit_label(distribution.name), f"{distribution.share:.1%}", *map(_format_number, numbers))
    return table


def _print_refused(description: DatasetDescription, console: Console) -> None:
    if not description.refused:
        return  # as the sentences above say
    for refusal in description.refused[:_MAX_REFUSED]:
        console.print(
            f"{refusal.samples:,} {refusal.cause} {refusal.kind} samples are refused, such as {refusal.example}",
            soft_wrap=True,
            markup=False,
        )
    if others := description.refused[_MAX_REFUSED:]:
        samples = sum(refusal.samples for refusal in others)
        console.print(f"and {samples:,} samples for {len(others)} more reasons")
    console.print()


def _grouping_table(description: DatasetDescription, padded: bool) -> Table:
    """Results of the padded baselines or of the packing policies; the configured one in bold."""
    modalities = [name for name in description.capacity if name != "samples"]
    results = [result for result in description.grouping_results if result.padded == padded]
    title = "Before balancing: batches padded to their longest sample" if padded else "After: packed rows"
    table = report_table(title, "policy", "samples a row", "waste")
    ratios = ("PadRatio", "DistRatio", "static") if padded else ("DistRatio", "static")
    for ratio in ratios:
        table.add_column(f"{ratio} in %\n{_align(modalities)}", justify="right", no_wrap=True)
    for result in results:
        shares = (result.pad_ratio, result.dist_ratio, result.padding_share)[-len(ratios) :]
        table.add_row(
            result.policy,
            f"{result.samples_per_row:.2f}",
            "." if result.wasted_flops_share is None else f"{result.wasted_flops_share:.1%}",
            *(_format_shares(share, modalities) for share in shares),
            style="bold" if not padded and result.policy == description.grouping else None,
        )
    return table


def _packed_remark(description: DatasetDescription) -> str:
    """Why packed rows waste more than padded batches, if they do: a row has the configured size, however empty."""
    known = [result for result in description.grouping_results if result.wasted_flops_share is not None]
    padded, packed = (
        [result.wasted_flops_share or 0.0 for result in known if result.padded == kind] for kind in (True, False)
    )
    if not padded or not packed or min(packed) <= min(padded):
        return ""
    told = (
        "Packed rows waste more than padded batches here: a row has the configured capacities, a batch the size of its "
        "longest samples."
    )
    suggested = description.row_suggestions[0] if description.row_suggestions else None
    if suggested is None or suggested.wasted_flops_share >= min(packed):
        return told
    return f"{told} With the suggested capacities below, packed rows waste {suggested.wasted_flops_share:.1%}."


def _isf_table(description: DatasetDescription) -> Table:
    suggestions = description.isf_suggestions
    modalities = list(next(iter(suggestions.values())).capacity) if suggestions else []
    sizes = [f"{quantity} {name}" for quantity in ("Q", "Q'") for name in modalities]
    columns = ("suggested by", *sizes, "samples a group", "too large")
    table = report_table("Q and Q' for iterative sampling and filtering (OmniBal)", *columns)
    for found, suggestion in suggestions.items():
        values = [
            f"{quantity[name]:,.0f}" for quantity in (suggestion.capacity, suggestion.threshold) for name in modalities
        ]
        table.add_row(found, *values, f"{suggestion.samples_per_group:.2f}", f"{suggestion.oversized:.2%}")
    return table


def _row_capacity_table(description: DatasetDescription) -> Table:
    suggestions = description.row_suggestions
    modalities = [name for name in (suggestions[0].capacity if suggestions else ()) if name != "samples"]
    columns = (*modalities, "samples at most", "samples a row", "too large", "waste")
    table = report_table("Suggested capacities of a row", *columns)
    for ratio in ("DistRatio", "static"):
        table.add_column(f"{ratio} in %\n{_align(modalities)}", justify="right", no_wrap=True)
    for row in suggestions:
        sizes = [f"{row.capacity[name]:,}" for name in (*modalities, "samples")]
        shares = [_format_shares(share, modalities) for share in (row.dist_ratio, row.padding_share)]
        table.add_row(
            *sizes, f"{row.samples_per_row:.2f}", f"{row.oversized:.2%}", f"{row.wasted_flops_share:.1%}", *shares
        )
    return table


def _buckets_table(description: DatasetDescription) -> Table:
    table = report_table(
        "Buckets: sizes to which single samples are padded", "units", "buckets", "padding", "sizes", texts=("sizes",)
    )
    for name, choices in description.buckets.items():
        for buckets in choices:
            sizes = "  ".join(
                f"{size:,} ({share:.0%})" for size, share in zip(buckets.sizes, buckets.shares, strict=True)
            )
            label = _unit_label(name) if buckets is choices[0] else ""
            table.add_row(label, str(len(buckets.sizes)), f"{buckets.padding:.1%}", sizes)
    return table


def _phase_table(description: DatasetDescription) -> Table:
    rows = next(iter(description.phase_capacities.values())).rows
    title = f"Capacities of rows of its own, {rows} a microbatch"
    table = report_table(
        title, "units", "microbatches without", "square weight", "saves", "padding", "capacities", texts=("capacities",)
    )
    for name, suggested in description.phase_capacities.items():
        for number, (capacities, padding) in enumerate(zip(suggested.capacities, suggested.padding, strict=True)):
            label, without = ("", "") if number else (_unit_label(name), f"{suggested.without_items:.1%}")
            weight = f"{suggested.quadratic_cost_weight:.2g}" if suggested.quadratic_cost_weight and not number else ""
            saved = f"{suggested.cost_saved[number]:.1%}" if suggested.quadratic_cost_weight else ""
            sizes = "  ".join(f"{capacity:,}" for capacity in capacities)
            table.add_row(label, without, weight, saved, f"{padding:.1%}", sizes)
    return table


def _unit_label(name: str) -> str:
    return _UNIT_LABELS.get(name, name.replace("_", " "))


def _format_shares(shares: Mapping[str, float], modalities: Sequence[str]) -> str:
    return _align([f"{100 * shares[name]:.1f}" if name in shares else "." for name in modalities])


def _align(cells: Sequence[str]) -> str:
    """Cells of several modalities in one column; names are shortened to the width of a cell."""
    return " ".join(cell[:_CELL_WIDTH].rjust(_CELL_WIDTH) for cell in cells)


def _format_number(value: int | float) -> str:
    return f"{value:,.1f}" if value != int(value) else f"{int(value):,}"
