"""A description of a data set in plain words; the terms of the papers follow in brackets."""

from collections.abc import Sequence

from data.report.description import DatasetDescription, RefusalSummary
from sharding.html.numbers import count, percent

_UNITS = {"frames": "mel frames", "images": "target images"}


def in_words(description: DatasetDescription) -> list[str]:
    """Sentences on the samples, the content of a row, its padding, and refused samples: one or two on each."""
    return [
        _samples(description),
        _loss(description),
        _rows(description),
        *_padding(description),
        _refused(description.refused),
    ]


def enumerate_words(words: Sequence[str]) -> str:
    """The words with commas and a last "and"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def units_of_module(description: DatasetDescription, name: str) -> str:
    """Units of a modality with the module that reads them, such as "the patches of vision"."""
    return f"the {_UNITS.get(name, name)} of {description.modules[name]}"


def counted(size: int, name: str) -> str:
    """A number of units of a modality, such as "1 target image"."""
    unit = _UNITS.get(name, name)
    return f"1 {unit.removesuffix('s')}" if size == 1 else f"{count(size)} {unit}"


def _samples(description: DatasetDescription) -> str:
    drawn = [f"{kind.name} ({percent(kind.share)})" for kind in description.kinds if kind.drawn]
    kinds = f"of the kinds {enumerate_words(drawn)}" if len(drawn) > 1 else f"of the kind {drawn[0]}"
    return f"{count(description.samples)} samples {kinds} were drawn as training draws them."


def _loss(description: DatasetDescription) -> str:
    told = f"{percent(description.target_share)} of their tokens are in the loss"
    if not description.untaught:
        return f"{told}; each has some, or an image to generate."
    number = "1 sample has" if description.untaught == 1 else f"{count(description.untaught)} samples have"
    return f"{told}; {number} none and no image to generate, so they teach nothing (--page shows samples by token)."


def _rows(description: DatasetDescription) -> str:
    limits = enumerate_words([counted(size, name) for name, size in description.capacity.items()])
    held = description.configured.samples_per_row
    filled = f"; on average the policy {description.grouping} puts {count(held)} samples into it" if held else ""
    return f"A step takes {count(description.rows)} rows. A row holds at most {limits}{filled}."


def _padding(description: DatasetDescription) -> list[str]:
    result = description.configured
    if result.wasted_flops_share is None:
        return ["The samples drawn fill no step, so nothing can be said about padding; draw more."]
    shares = [
        f"{percent(share)} of {units_of_module(description, name)}" for name, share in result.padding_share.items()
    ]
    wasted = f"together they take {percent(result.wasted_flops_share)} of a step's FLOPs"
    sentences = [f"Padding makes up {enumerate_words(shares)}; {wasted} (waste, padding of static shapes)."]
    idle = [f"{percent(share)} for {units_of_module(description, name)}" for name, share in result.dist_ratio.items()]
    sentences.append(
        f"If padding cost nothing, replicas would still wait for the fullest row: {enumerate_words(idle)} "
        "(OmniBal's DistRatio)."
    )
    best = description.suggested_grouping
    if best.policy != description.grouping:
        sentences.append(
            f"The policy {best.policy} wastes the least of all: {percent(best.wasted_flops_share or 0.0)} "
            "(DataConfig.grouping)."
        )
    if description.row_suggestions:
        suggested = description.row_suggestions[0].wasted_flops_share
        sentences.append(f"With the suggested capacities, padding takes {percent(suggested)} of a step's FLOPs.")
    return sentences


def _refused(refused: Sequence[RefusalSummary]) -> str:
    if not refused:
        return "No sample is refused. None is cut: one that does not fit into a row would be refused."
    groups = [f"{count(summary.samples)} {summary.cause} of kind {summary.kind}" for summary in refused]
    total = sum(summary.samples for summary in refused)
    number = "1 sample is" if total == 1 else f"{count(total)} samples are"
    return f"{number} refused: {enumerate_words(groups)}. None is cut."
