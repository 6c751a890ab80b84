"""A row of a paper's table or figure: what was published, beside what is simulated at its layout and at our best plan.

Of an MFU the two ends of `Figure.value` are the two countings of causal attention: squares halved, and whole.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

PaperName = Literal["disttrain", "omnibal", "optimus", "orchmllm", "lmms_engine", "text_only"]
"""The four papers; `lmms_engine` is a published table of fully sharded runs, `text_only` a table of ours."""

PAPER_NAMES: tuple[PaperName, ...] = get_args(PaperName)

Unit = Literal["share", "seconds", "milliseconds", "times", "GPU-days", "tokens/s", "samples", "bytes"]
"""Units of a row's figures; `times` is a ratio, such as of two throughputs."""

FigureKind = Literal["simulated", "computed", "measured"]
"""Where a figure comes from: the simulator, an algorithm's result, or a clock of this machine."""


class Band(NamedTuple):
    """A figure between two ends, which are equal where it is known."""

    least: float
    most: float

    def overlaps(self, other: "Band") -> bool:
        """Whether a value lies in both."""
        return self.least <= other.most and other.least <= self.most


def exactly(value: float) -> Band:
    """The band of one value."""
    return Band(float(value), float(value))


class Figure(NamedTuple):
    """A figure of ours.

    Attributes:
        kind: Where it comes from.
        value: The figure; of an MFU, by both countings of causal squares.
        range: Where it is expected to lie: of a simulated figure by the errors on published runs, of a measured one
            over its repetitions; None where it is computed without costs.
    """

    kind: FigureKind
    value: Band
    range: Band | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperRow:
    """A quantity of a table or figure, for one of its rows.

    Attributes:
        paper: The paper.
        place: The table, figure or section.
        row: The model or setting, as the paper names it.
        system: The system or variant of which it is a figure.
        quantity: What is counted.
        unit: Its unit.
        published: What the paper states; None where the text at hand does not.
        at_layout: Our figure at the paper's layout; None where there is none.
        best: Our figure of the best plan found, for the same model, devices and rows; None where it is none of a plan.
        best_plan: That plan in words.
        assumptions: What the figures assume, and the paper does not say.
    """

    paper: PaperName
    place: str
    row: str
    system: str
    quantity: str
    unit: Unit
    published: Band | None = None
    at_layout: Figure | None = None
    best: Figure | None = None
    best_plan: str = ""
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.at_layout is None and self.best is None:
            raise ValueError(f"PaperRow {self.name} has no figure of ours; leave it out")

    @property
    def name(self) -> str:
        """The row's place and what it counts, in words."""
        return f"{self.place}, {self.row}, {self.system}: {self.quantity}"

    @property
    def within(self) -> bool | None:
        """Whether what was published may lie in the range at the paper's layout; None where none is simulated there."""
        figure = self.at_layout
        if self.published is None or figure is None or figure.kind != "simulated" or figure.range is None:
            return None
        return self.published.overlaps(figure.range)

    def as_json(self) -> dict[str, Any]:
        """The row for JSON."""
        return {
            **dataclasses.asdict(self),
            "published": _ends(self.published),
            "at_layout": _figure_json(self.at_layout),
            "best": _figure_json(self.best),
            "assumptions": list(self.assumptions),
            "within": self.within,
        }


def _ends(band: Band | None) -> list[float] | None:
    return None if band is None else list(band)


def _figure_json(figure: Figure | None) -> Mapping[str, Any] | None:
    if figure is None:
        return None
    return {"kind": figure.kind, "value": list(figure.value), "range": _ends(figure.range)}


ReportProgress = Callable[[str], None]
"""Called with a sentence before something that takes seconds."""
