"""Refusals: samples that a pipeline leaves out because they are unreadable or oversized.

An unreadable sample is one whose record or media cannot be used (`BadSampleError`); an oversized one exceeds the
capacity of a row.
"""

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, TypeVar

from data.data_config import CAPACITY_FIELDS, RowCapacity
from data.datasets.dataset import SampleIndex
from data.errors import BadSampleError
from data.quarantine import Quarantine
from data.samples.sample import SampleSizes

_Result = TypeVar("_Result")

RefusalCause = Literal["unreadable", "oversized"]

_CAPACITY_SETTINGS = ", ".join(f"DataConfig.{name}" for name in CAPACITY_FIELDS)


class Refusal(NamedTuple):
    """A sample that is left out.

    Attributes:
        cause: `unreadable` or `oversized` (`RefusalCause`).
        kind: Kind of the sample.
        key: Name of the sample.
        reason: What is wrong with it.
    """

    cause: str
    kind: str
    key: str
    reason: str


def call_or_refuse(method: Callable[[int], _Result], samples: SampleIndex, sample_id: int) -> _Result | Refusal:
    """What a method of the sample index returns for a sample, or the refusal of a sample that cannot be read."""
    try:
        return method(sample_id)
    except BadSampleError as error:
        return Refusal("unreadable", samples.kind_of(sample_id), error.where, error.reason)


def oversized_refusal(
    sizes: SampleSizes, capacity: RowCapacity, samples: SampleIndex, sample_id: int
) -> Refusal | None:
    """The refusal of a sample that does not fit into a row; None if it fits."""
    excess = capacity.excess_reason(sizes._asdict())
    return Refusal("oversized", samples.kind_of(sample_id), f"sample {sample_id}", excess) if excess else None


class RefusalLog:
    """All refused samples, each once, in one quarantine for each cause.

    More unreadable samples than allowed are an error. Oversized samples are an error if all samples of their kind are
    oversized, because that kind would never be drawn.
    """

    def __init__(self, counts: Mapping[str, int], max_unreadable_share: float) -> None:
        """Creates an empty log.

        Args:
            counts: Number of samples of every kind.
            max_unreadable_share: Largest fraction of a kind that may be unreadable (`DataConfig.max_refused_share`).
        """
        self._quarantines = {
            "unreadable": Quarantine(counts, max_unreadable_share, "DataConfig.max_refused_share"),
            "oversized": Quarantine(counts, None),
        }

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Adds the refusals of a batch; raises DataError if there are too many."""
        for refusal in refusals:
            self._quarantines[refusal.cause].add(refusal.kind, refusal.key, refusal.reason)
            if refusal.cause == "oversized":
                self._quarantines["oversized"].require_one_left(
                    refusal.kind, f"none of its samples fits into a row; raise {_CAPACITY_SETTINGS} as needed"
                )

    def counts(self) -> dict[str, int]:
        """Number of distinct refused samples by cause: `unreadable_samples`, `oversized_samples`."""
        return {f"{cause}_samples": len(quarantine) for cause, quarantine in self._quarantines.items()}

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes `unreadable.jsonl` and `oversized.jsonl`, those of them that list anything, as JSON lines."""
        for cause, quarantine in self._quarantines.items():
            if len(quarantine):
                quarantine.write(pathlib.Path(folder) / f"{cause}.jsonl")
