"""A description of a data set as one self-contained page, and as a fragment for notebooks. Neither has a script."""

from collections.abc import Iterator

from data.packing.grouping.comparison import GroupingResult
from data.report.charts import buckets_chart, colour_of, histogram, policy_bars, shares_stack
from data.report.description import DatasetDescription
from data.report.examples_html import STYLE, examples_section
from data.report.length_distribution import LengthDistribution
from data.report.plain_words import in_words
from sharding.html.elements import Html, element, figures, legend, table
from sharding.html.numbers import count, percent
from sharding.html.page import page

_TITLES = {
    "tokens": "Backbone tokens",
    "text": "Text tokens",
    "patches": "Patches",
    "frames": "Mel frames",
    "images": "Images to generate",
    "encoder_images": "Encoder images (tiles count each, frames of one patch together)",
    "encoder_clips": "Audio clips",
    "video_clips": "Video clips",
    "video_frames": "Frames read of video clips",
}
_SHOWN_REFUSALS = 10  # without opening the list


def html_page(description: DatasetDescription, title: str) -> str:
    """The whole page as HTML text."""
    return page(
        title,
        (element("p", sentence) for sentence in in_words(description)),
        _figures(description),
        element("h2", "Samples"),
        _samples(description),
        _refusals(description),
        element("h2", "Samples, token by token") if description.examples else "",
        examples_section(description),
        element("h2", "Sizes of samples"),
        element("p", "Of the samples that have any. The median is dashed.", class_="note"),
        element("div", map(_distribution, _ordered(description)), class_="grid"),
        element("h2", "Padding and balance"),
        _balance(description),
        element("h2", "Suggestions"),
        _suggestions(description),
        style=STYLE,
    )


def html_fragment(description: DatasetDescription) -> Html:
    """The description for a notebook: it has no style sheet and no id, and so may occur several times."""
    charts = (
        element("div", _distribution(distribution), style="flex:0 1 330px") for distribution in _ordered(description)
    )
    return element(
        "div",
        (element("p", sentence) for sentence in in_words(description)),
        _samples(description),
        element("div", charts, style="display:flex;flex-wrap:wrap;gap:14px"),
        examples_section(description),
        _refusals(description),
    )


def _figures(description: DatasetDescription) -> Html:
    configured = description.configured
    suggested = description.row_suggestions[0].wasted_flops_share if description.row_suggestions else None
    tokens = next(distribution for distribution in description.distributions if distribution.name == "tokens")
    padding = configured.padding_share.get("tokens")
    filled = None if padding is None else 1 - padding
    return figures(
        [
            ("FLOPs spent on padding", percent(configured.wasted_flops_share)),
            ("with suggested capacities", percent(suggested)),
            ("samples a row", count(configured.samples_per_row)),
            ("tokens a sample", count(tokens.mean)),
            ("of tokens in the loss", percent(description.target_share)),
            ("of a row's tokens filled", percent(filled)),
            ("samples drawn", count(description.samples)),
            ("refused", count(len(description.refusals))),
        ]
    )


def _samples(description: DatasetDescription) -> Html:
    kinds = [(kind.name, count(kind.available), count(kind.drawn), percent(kind.share)) for kind in description.kinds]
    shares = description.token_shares.items()
    return element(
        "div",
        table(("kind", "#available", "#drawn", "#share of training"), kinds),
        element("p", "Backbone tokens by modality:"),
        shares_stack(description.token_shares),
        legend((colour_of(name), f"{name} {percent(share)}") for name, share in shares),
    )


def _refusals(description: DatasetDescription) -> Html | str:
    """Every refused sample; many of them in a list that scrolls."""
    if not description.refusals:
        return ""
    listed = table(
        ("sample", "kind", "cause", "reason"), ((r.key, r.kind, r.cause, r.reason) for r in description.refusals)
    )
    title = f"Refused samples ({count(len(description.refusals))})"
    box = element("div", listed, class_="list", tabindex=0, style="max-height:340px;overflow:auto")
    few = len(description.refusals) <= _SHOWN_REFUSALS
    return element("details", element("summary", title), box, open=few)


def _ordered(description: DatasetDescription) -> list[LengthDistribution]:
    """The distributions; distributions without a histogram come last."""
    return sorted(description.distributions, key=lambda distribution: distribution.minimum == distribution.maximum)


def _distribution(distribution: LengthDistribution) -> Html:
    title = element("h3", _TITLES.get(distribution.name, distribution.name))
    if distribution.minimum == distribution.maximum:
        same = f"{percent(distribution.share)} of samples have any, {count(distribution.maximum)} each."
        return element("div", title, element("p", same, class_="note"), class_="panel")
    percentiles = ", ".join(f"{rank}% {count(value)}" for rank, value in distribution.percentiles.items())
    sizes = f"Mean {count(distribution.mean)}; percentiles {percentiles}; maximum {count(distribution.maximum)}."
    told = f"{percent(distribution.share)} of samples have any. {sizes}"
    if distribution.beyond:
        told += (
            f" The grey bar counts the {count(distribution.beyond)} that have {count(distribution.edges[-1])} or more."
        )
    return element("div", title, element("p", told, class_="note"), histogram(distribution), class_="panel")


def _balance(description: DatasetDescription) -> Iterator[Html]:
    results, configured = description.grouping_results, description.configured
    panels = (
        (
            "FLOPs spent on padding, all modalities together (waste)",
            lambda result: {"": result.wasted_flops_share},
            results,
        ),
        ("Padding of rows of one shape (padding of static shapes)", lambda result: result.padding_share, results),
        ("Replicas that wait for the fullest row (DistRatio)", lambda result: result.dist_ratio, results),
        (
            "Padding between the samples of a batch (PadRatio)",
            lambda result: result.pad_ratio,
            [r for r in results if r.padded],
        ),
    )
    yield element(
        "p",
        "Shares by grouping policy, means over rows and steps; the configured policy is bold. Packed rows have no "
        "padding between samples. Waste weighs the padding of every modality by the FLOPs of its module.",
        class_="note",
    )
    yield legend((colour_of(name), f"{name} ({module})") for name, module in description.modules.items())
    yield element("div", (_policy_panel(*panel, configured) for panel in panels), class_="grid")


def _policy_panel(title, shares_of, results, configured: GroupingResult) -> Html:
    return element("div", element("h3", title), policy_bars(title, results, shares_of, configured), class_="panel")


def _suggestions(description: DatasetDescription) -> Iterator[Html]:
    gin = "\n".join(description.gin) or "The samples drawn fill no step; draw more."
    paste = element("div", element("h3", "Capacities of a row, to paste"), element("pre", gin), class_="panel")
    key = legend((colour_of(name), name) for name in description.buckets)
    chart = element(
        "div", element("h3", "Padding of single samples"), buckets_chart(description.buckets), key, class_="panel"
    )
    yield element("div", paste, chart, class_="grid")
    if description.remark:
        yield element("p", description.remark)
    if description.row_suggestions:
        yield _rows_table(description)
    if isinstance(description.searched_isf, str):
        yield element("p", f"The search for Q and Q' found none: {description.searched_isf}.")
    yield from _isf_table(description)
    yield _buckets_table(description)
    if description.phase_capacities:
        yield _phase_table(description)
    if any(suggested.quadratic_cost_weight for suggested in description.phase_capacities.values()):
        yield _square_weight_table(description)


def _rows_table(description: DatasetDescription) -> Html:
    """A table of the suggested row capacities, with a column for each, to fit a narrow page."""
    rows = description.row_suggestions
    names = [name for name in description.modules if any(name in row.capacity for row in rows)]
    lines = [(name, *(count(row.capacity[name]) for row in rows)) for name in (*names, "samples")]
    lines.append(("samples a row, on average", *(count(row.samples_per_row) for row in rows)))
    lines.append(("samples that are too large", *(percent(row.oversized) for row in rows)))
    lines.append(("FLOPs spent on padding (waste)", *(percent(row.wasted_flops_share) for row in rows)))
    lines += [(f"padding of {name}", *(percent(row.padding_share.get(name)) for row in rows)) for name in names]
    lines += [(f"DistRatio of {name}", *(percent(row.dist_ratio.get(name)) for row in rows)) for name in names]
    columns = ("capacity of a row", *(f"#{count(row.capacity['tokens'])} tokens" for row in rows))
    return table(
        columns, lines, "Capacities that waste the fewest FLOPs, for rows of once, twice and four times the tokens"
    )


def _isf_table(description: DatasetDescription) -> Iterator[Html]:
    known = {f"#by {found}": suggestion for found, suggestion in description.isf_suggestions.items()}
    if known:
        names = list(next(iter(known.values())).capacity)
        lines = [(f"Q {name}", *(count(limits.capacity[name]) for limits in known.values())) for name in names]
        lines += [(f"Q' {name}", *(count(limits.threshold[name]) for limits in known.values())) for name in names]
        lines.append(("samples a group", *(count(limits.samples_per_group) for limits in known.values())))
        lines.append(("samples that are too large", *(percent(limits.oversized) for limits in known.values())))
        yield table(("", *known), lines, "Limits of a group for iterative sampling and filtering (OmniBal's Q and Q')")
    for found, suggestion in description.isf_suggestions.items():
        title = element("h3", f"Q and Q' of the grouping isf by {found}, to paste")
        yield element("div", title, element("pre", "\n".join(suggestion.gin)), class_="panel")


def _buckets_table(description: DatasetDescription) -> Html:
    lines = [
        (name if number == 0 else "", str(len(choice.sizes)), percent(choice.padding), sizes)
        for name, choices in description.buckets.items()
        for number, choice in enumerate(choices)
        for sizes in [
            ", ".join(f"{count(s)} ({share:.0%})" for s, share in zip(choice.sizes, choice.shares, strict=True))
        ]
    ]
    caption = "Buckets: sizes of least padding to which single samples are padded, and the share of samples in each"
    return table(("units", "#buckets", "#padding", "sizes"), lines, caption)


def _phase_table(description: DatasetDescription) -> Html:
    lines = [
        (
            "" if number else name,
            "" if number else percent(suggested.without_items),
            percent(padding),
            ", ".join(count(capacity) for capacity in capacities),
        )
        for name, suggested in description.phase_capacities.items()
        for number, (capacities, padding) in enumerate(zip(suggested.capacities, suggested.padding, strict=True))
    ]
    rows = next(iter(description.phase_capacities.values())).rows
    caption = f"Capacities of rows of its own for a module, {rows} a microbatch, as many as of the global batch"
    return table(("units", "#microbatches without", "#padding", "capacities"), lines, caption)


def _square_weight_table(description: DatasetDescription) -> Html:
    lines = [
        ("" if number else name, "" if number else f"{suggested.quadratic_cost_weight:.2g}", percent(saved), sizes)
        for name, suggested in description.phase_capacities.items()
        if suggested.quadratic_cost_weight
        for number, (capacities, saved) in enumerate(zip(suggested.capacities, suggested.cost_saved, strict=True))
        for sizes in [", ".join(count(capacity) for capacity in capacities)]
    ]
    caption = (
        "Weights for DataConfig.quadratic_cost_weights, attention's FLOPs over all others, and how much of the "
        "costliest rows' FLOPs they save in rows of these capacities"
    )
    return table(("units", "#square weight", "#saves", "capacities"), lines, caption)
