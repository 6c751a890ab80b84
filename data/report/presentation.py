"""What `mmjax.describe_data` shows on a terminal."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from data.data_config import CAPACITY_FIELDS
from data.report.capacity_advice import SuggestedIsfCapacity
from data.report.description import PERCENTILES, DatasetDescription

MEANINGS = {
    "tokens": "backbone tokens",
    "text": "of these, text",
    "patches": "patches",
    "frames": "mel frames",
    "images": "images to draw",
    "pictures": "images or tiles seen",
    "clips": "audio clips heard",
}
"""Units of a sample, in words."""

LEGEND = """PadRatio: padding between the samples of a batch; packed rows have none. DistRatio: how long instances idle
while another has more. Static: padding where all rows have one shape, the capacity or the largest padded batch; waste
is the same over all modalities, by their modules' FLOPs. Means over rows and steps.
"""

REFUSED_SHOWN = 8
_WIDTH = 5  # of tokens, patches, frames and images without their endings


def print_description(description: DatasetDescription, console: Console) -> None:
    """Tables of samples, balancing and suggestions; lines to paste at the end."""
    console.print(_kinds(description))
    console.print(_units(description))
    shares = ", ".join(f"{name} {share:.1%}" for name, share in description.shares.items())
    console.print(f"Backbone tokens by modality: {shares}\n", soft_wrap=True)
    _print_refused(description, console)
    limits = ", ".join(f"{size:,} {name}" for name, size in description.capacity.items())
    console.print(f"As configured: {description.rows:,} rows a step, a row of at most {limits}", soft_wrap=True)
    console.print(_outcomes(description, padded=True))
    console.print(_outcomes(description, padded=False))
    console.print(LEGEND, soft_wrap=True)
    console.print(_quantities(description))
    if isinstance(description.tried, str):
        console.print(f"By trying: {description.tried}\n", soft_wrap=True, markup=False)
    console.print(_advice(description))
    if description.remark:
        console.print(f"{description.remark}\n", soft_wrap=True)
    console.print(_buckets(description))
    if description.gin:
        console.print("# To paste: the least waste found for rows of the configured tokens")
        console.print("\n".join(description.gin), soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    """A table narrow enough for many a terminal: headings break where they have a space."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name.replace(" ", "\n"), justify="right" if number else "left", no_wrap=True)
    return table


def _kinds(description: DatasetDescription) -> Table:
    table = _table("Samples as training draws them", "kind", "source", "drawn", "share")
    for kind in description.kinds:
        table.add_row(kind.name, f"{kind.source:,}", f"{kind.drawn:,}", f"{kind.share:.1%}")
    return table


def _units(description: DatasetDescription) -> Table:
    columns = ("units", "have any", "mean", "least", *(f"{percent}%" for percent in PERCENTILES), "most")
    table = _table("Units of a sample that has any; below N% are N in a hundred", *columns)
    for each in description.distributions:
        numbers = (each.mean, each.least, *each.percentiles.values(), each.most)
        table.add_row(MEANINGS[each.name], f"{each.share:.1%}", *map(_number, numbers))
    return table


def _print_refused(description: DatasetDescription, console: Console) -> None:
    if not description.refused:
        console.print("No sample is refused.\n")
        return
    for each in description.refused[:REFUSED_SHOWN]:
        console.print(
            f"{each.samples:,} {each.cause} {each.kind} samples are refused, such as {each.example}",
            soft_wrap=True,
            markup=False,
        )
    if rest := description.refused[REFUSED_SHOWN:]:
        console.print(f"and {sum(each.samples for each in rest):,} samples for {len(rest)} more reasons")
    console.print()


def _outcomes(description: DatasetDescription, padded: bool) -> Table:
    """The padded baselines, or the policies that pack; what is configured in bold."""
    held = [name for name in CAPACITY_FIELDS if name in description.capacity]
    outcomes = [outcome for outcome in description.outcomes if outcome.padded == padded]
    title = "Before balancing: batches padded to their longest sample" if padded else "After: packed rows"
    table = _table(title, "policy", "samples a row", "waste")
    ratios = ("PadRatio", "DistRatio", "static") if padded else ("DistRatio", "static")
    for ratio in ratios:
        table.add_column(f"{ratio} in %\n{_aligned(held)}", justify="right", no_wrap=True)
    for each in outcomes:
        shares = (each.pad_ratio, each.dist_ratio, each.padding_share)[-len(ratios) :]
        table.add_row(
            each.policy,
            f"{each.samples_per_row:.2f}",
            "." if each.wasted_flops_share is None else f"{each.wasted_flops_share:.1%}",
            *(_shares(share, held) for share in shares),
            style="bold" if not padded and each.policy == description.grouping else None,
        )
    return table


def _quantities(description: DatasetDescription) -> Table:
    known: list[tuple[str, SuggestedIsfCapacity]] = []
    if description.paper:
        known.append(("longest sample, mean proportions", description.paper))
    if isinstance(description.tried, SuggestedIsfCapacity):
        known.append(("by trying", description.tried))
    names = [name for name in CAPACITY_FIELDS if known and name in known[0][1].capacity]
    columns = ("suggested", *(f"{q} {name}" for q in ("Q", "Q'") for name in names), "samples a row", "too large")
    table = _table("Q and Q' for iterative sampling and filtering (OmniBal)", *columns)
    for how, each in known:
        sizes = [f"{part[name]:,.0f}" for part in (each.capacity, each.threshold) for name in names]
        samples = "" if each.samples is None else f"{each.samples:.2f}"
        table.add_row(how, *sizes, samples, f"{each.oversized:.2%}")
    return table


def _advice(description: DatasetDescription) -> Table:
    held = [name for name in CAPACITY_FIELDS if any(name in each.capacity for each in description.advice)]
    table = _table("Suggested capacities of a row", *held, "samples at most", "samples a row", "too large", "waste")
    for ratio in ("DistRatio", "static"):
        table.add_column(f"{ratio} in %\n{_aligned(held)}", justify="right", no_wrap=True)
    for each in description.advice:
        sizes = [f"{each.capacity[name]:,}" for name in (*held, "samples")]
        shares = [_shares(share, held) for share in (each.dist_ratio, each.padding_share)]
        table.add_row(
            *sizes, f"{each.samples_per_row:.2f}", f"{each.oversized:.2%}", f"{each.wasted_flops_share:.1%}", *shares
        )
    return table


def _buckets(description: DatasetDescription) -> Table:
    table = _table("Buckets: sizes to which single samples are padded", "units", "buckets", "padding", "sizes")
    for name, choices in description.buckets.items():
        for each in choices:
            parts = zip(each.sizes, each.shares, strict=True)
            sizes = "  ".join(f"{size:,} ({share:.0%})" for size, share in parts)
            first = MEANINGS[name] if each is choices[0] else ""
            table.add_row(first, str(len(each.sizes)), f"{each.padding:.1%}", sizes)
    return table


def _shares(shares: Mapping[str, float], names: Sequence[str]) -> str:
    return _aligned([f"{100 * shares[name]:.1f}" if name in shares else "." for name in names])


def _aligned(cells: Sequence[str]) -> str:
    """Cells of several modalities in one column; names are cut to their singular."""
    return " ".join(cell[:_WIDTH].rjust(_WIDTH) for cell in cells)


def _number(value: int | float) -> str:
    return f"{value:,.1f}" if value != int(value) else f"{int(value):,}"
