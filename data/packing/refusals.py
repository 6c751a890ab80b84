"""What a pipeline refused, by cause: samples that cannot be read, and samples that fit no row."""

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.errors import BadSampleError
from data.quarantine import Quarantine
from data.samples.sample import SampleSizes

Answer = TypeVar("Answer")

UNREADABLE, OVERSIZED = "unreadable", "oversized"
_NEARLY_ALL = 1 - 1e-9


class Refusal(NamedTuple):
    """A sample that is in no step: its cause, `unreadable` or `oversized`, its kind, its name, and what is wrong."""

    cause: str
    kind: str
    key: str
    reason: str


def call_or_refuse(ask: Callable[[int], Answer], catalogue: SampleIndex, number: int) -> Answer | Refusal:
    """What a method of the catalogue answers of a sample, or that the sample cannot be read."""
    try:
        return ask(number)
    except BadSampleError as error:
        return Refusal(UNREADABLE, catalogue.kind_of(number), error.where, error.reason)


def oversized_refusal(sizes: SampleSizes, capacity: RowCapacity, catalogue: SampleIndex, number: int) -> Refusal | None:
    """That a sample of these sizes fits no row, or None if it fits."""
    excess = capacity.excess_reason(sizes._asdict())
    return Refusal(OVERSIZED, catalogue.kind_of(number), f"sample {number}", excess) if excess else None


class RefusalLog:
    """Every refused sample once, in a quarantine a cause.

    Unreadable samples are an error above the share given; oversized ones if a kind has no others, for then none of it
    would ever come.
    """

    def __init__(self, counts: Mapping[str, int], max_share: float) -> None:
        """Starts empty; `counts` are the samples of every kind."""
        self._quarantines = {
            UNREADABLE: Quarantine(counts, max_share),
            OVERSIZED: Quarantine(counts, _NEARLY_ALL),
        }

    def add(self, refused: Iterable[Refusal]) -> None:
        """Notes what a batch brought; raises DataError if it is too much."""
        for cause, kind, key, reason in refused:
            self._quarantines[cause].add(kind, key, reason)

    def counts(self) -> dict[str, int]:
        """Distinct samples, by cause."""
        return {f"{cause}_samples": len(quarantine) for cause, quarantine in self._quarantines.items()}

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes a file of JSON lines a cause that refused something: `unreadable.jsonl`, `oversized.jsonl`."""
        for cause, quarantine in self._quarantines.items():
            if len(quarantine):
                quarantine.write(pathlib.Path(folder) / f"{cause}.jsonl")
