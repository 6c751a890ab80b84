"""Orders of systems that papers state or measure, and whether the simulated figures have them."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.papers import disttrain, disttrain_parts, omnibal, optimus, orchmllm
from benchmarks.papers.paper_rows import Figure, PaperName, PaperRow


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemOrder:
    """Systems of a table or figure from the smallest figure to the largest.

    Attributes:
        paper: The paper.
        place: The table or figure.
        quantity: The quantity.
        systems: The systems in their published order.
        source: Where the paper says so.
        why: Why ours is another, for the rows where it is; empty where that is not known.
        rows: The rows for which the paper states it; all by default.
    """

    paper: PaperName
    place: str
    quantity: str
    systems: tuple[str, ...]
    source: str
    why: str = ""
    rows: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedOrder:
    """An order in one row.

    Attributes:
        order: The published order.
        row: The row.
        ours: The systems in the order of our figures.
        is_tie: Whether it is another only among systems whose ranges overlap.
    """

    order: SystemOrder
    row: str
    ours: tuple[str, ...]
    is_tie: bool

    @property
    def holds(self) -> bool:
        """Whether ours is the published one."""
        return self.ours == self.order.systems

    @property
    def words(self) -> str:
        """The order in a sentence."""
        place = f"{self.order.place}, {self.row}: {self.order.quantity}"
        if self.holds:
            return f"{place}: {' < '.join(self.ours)}, as in the paper ({self.order.source})"
        tie = "; their ranges overlap" if self.is_tie else ""
        why = self.order.why or "Not understood."
        return (
            f"{place}: {' < '.join(self.ours)}, the paper has {' < '.join(self.order.systems)} "
            f"({self.order.source}){tie}. {why}"
        )

    def as_json(self) -> dict[str, Any]:
        """The order for JSON."""
        return {
            "paper": self.order.paper,
            "place": self.order.place,
            "row": self.row,
            "quantity": self.order.quantity,
            "published": list(self.order.systems),
            "ours": list(self.ours),
            "holds": self.holds,
            "is_tie": self.is_tie,
            "why": "" if self.holds else self.order.why,
        }


def check_orders(orders: Iterable[SystemOrder], rows: Sequence[PaperRow]) -> list[CheckedOrder]:
    """The orders in every row that has figures of all their systems."""
    checked = []
    for order in orders:
        by_row: dict[str, dict[str, Figure]] = {}
        for row in rows:
            is_meant = (row.paper, row.place, row.quantity) == (order.paper, order.place, order.quantity)
            if is_meant and row.at_layout and row.system in order.systems and (not order.rows or row.row in order.rows):
                by_row.setdefault(row.row, {})[row.system] = row.at_layout
        checked += [
            _checked(order, row, figures) for row, figures in by_row.items() if len(figures) == len(order.systems)
        ]
    return checked


def _checked(order: SystemOrder, row: str, figures: dict[str, Figure]) -> CheckedOrder:
    ours = tuple(sorted(order.systems, key=lambda system: figures[system].value.most))
    swapped = [
        (first, second)
        for number, first in enumerate(order.systems)
        for second in order.systems[number + 1 :]
        if ours.index(first) > ours.index(second)
    ]
    ranges = {system: figure.range for system, figure in figures.items()}
    is_tie = bool(swapped) and all(
        (one := ranges[first]) is not None and (other := ranges[second]) is not None and one.overlaps(other)
        for first, second in swapped
    )
    return CheckedOrder(order=order, row=row, ours=ours, is_tie=is_tie)


ORDERS: tuple[SystemOrder, ...] = (
    *(
        SystemOrder(
            paper="disttrain",
            place=place,
            quantity=quantity,
            systems=(disttrain.MEGATRON, disttrain.DISTTRAIN),
            source="abstract, section 8",
        )
        for place, quantity in (
            (disttrain.OVERALL, "MFU"),
            (disttrain.OVER_MEGATRON, disttrain.THROUGHPUT),
            (disttrain.FROZEN_MFU, "MFU"),
            (disttrain.FROZEN_THROUGHPUT, disttrain.THROUGHPUT),
        )
    ),
    SystemOrder(
        paper="disttrain",
        place=disttrain.ORCHESTRATION,
        quantity="MFU",
        systems=(disttrain.RATIO, disttrain.DISTTRAIN),
        source="section 5.1",
    ),
    SystemOrder(
        paper="disttrain",
        place=disttrain_parts.OVERLAP,
        quantity="seconds of forward and backward",
        systems=("overlapped", "exposed"),
        source="section 7",
    ),
    SystemOrder(
        paper="disttrain",
        place=disttrain_parts.PREPROCESSING,
        quantity="milliseconds of a row",
        systems=("from the service", "in the trainer"),
        source="section 4.2",
        why="Patches are received as float32, 12 bytes a pixel: receiving copies as much as decoding writes.",
    ),
    SystemOrder(
        paper="omnibal",
        place=omnibal.MAIN,
        quantity=omnibal.GPU_DAYS,
        systems=(omnibal.OMNIBAL, omnibal.START),
        source="introduction",
    ),
    SystemOrder(
        paper="omnibal",
        place=omnibal.STEPS,
        quantity=omnibal.GPU_DAYS,
        systems=("+ recomputation", "+ partition", "+ data", omnibal.START),
        source="section 4",
    ),
    SystemOrder(
        paper="omnibal",
        place=omnibal.PARTITIONS,
        quantity=omnibal.GPU_DAYS,
        systems=(omnibal.SEARCH, "layers", omnibal.PROFILE, "parameters"),
        source="table 5",
        rows=(omnibal.MODEL_NAMES[omnibal.SHOWN],),
    ),
    SystemOrder(
        paper="optimus",
        place=optimus.STRONG,
        quantity=optimus.SECONDS,
        systems=(optimus.OPTIMUS, optimus.MEGATRON_BALANCED, optimus.MEGATRON),
        source="section 5.2.1",
        why="The encoder's gathers and reductions on every pipeline rank are exposed here, and hops occupy the devices "
        "at both ends, which costs plans with chunks and copies most.",
    ),
    SystemOrder(
        paper="optimus",
        place=optimus.SMALL,
        quantity=optimus.SECONDS,
        systems=(optimus.OPTIMUS, "PyTorch FSDP", "Alpa"),
        source="section 5.2.2",
        why="Fully sharded, eight devices have no bubbles that colocation could fill; what the runtimes of Alpa and "
        "PyTorch cost beside the same kernels is not simulated.",
    ),
    *(
        SystemOrder(
            paper="orchmllm",
            place=orchmllm.OVERALL_MFU,
            quantity="MFU",
            systems=systems,
            source=source,
        )
        for systems, source in (
            ((orchmllm.MEGATRON, orchmllm.ORCH), "abstract"),
            ((orchmllm.NO_BALANCE, orchmllm.ORCH), "section 8.1"),
        )
    ),
)
"""The orders that the papers' texts state."""
