"""Refusals: samples that a pipeline leaves out because they are unreadable or oversized.

An unreadable sample is one whose record or media cannot be used (`BadSampleError`); an oversized one exceeds the
capacity of a row.
"""

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, TypeVar, get_args

from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.errors import BadSampleError
from data.quarantine import Quarantine
from data.samples.sample import SampleSizes

_Result = TypeVar("_Result")

RefusalCause = Literal["unreadable", "oversized"]


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
    excess = capacity.excess_reason(sizes.row_units)
    return Refusal("oversized", samples.kind_of(sample_id), f"sample {sample_id}", excess) if excess else None


def remove_refusal_lists(folder: str | os.PathLike[str]) -> None:
    """Removes the lists of refused samples that an earlier run left in a folder."""
    for cause in get_args(RefusalCause):
        _list_file(folder, cause).unlink(missing_ok=True)


def _list_file(folder: str | os.PathLike[str], cause: str) -> pathlib.Path:
    return pathlib.Path(folder) / f"{cause}.jsonl"


class RefusalLog:
    """All refused samples, each once, in one quarantine for each cause. Too many unreadable samples end a run."""

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

    def list_in(self, folder: str | os.PathLike[str]) -> None:
        """Lists every refused sample in `unreadable.jsonl` or `oversized.jsonl` of a folder as it is added."""
        for cause, quarantine in self._quarantines.items():
            quarantine.list_in(_list_file(folder, cause))

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Adds the refusals of a batch."""
        for refusal in refusals:
            self._quarantines[refusal.cause].add(refusal.kind, refusal.key, refusal.reason)

    def excess(self) -> str:
        """The message of an error if too many samples are unreadable; empty otherwise."""
        return self._quarantines["unreadable"].excess()

    def counts(self) -> dict[str, int]:
        """Number of distinct refused samples by cause: `unreadable_samples`, `oversized_samples`."""
        return {f"{cause}_samples": len(quarantine) for cause, quarantine in self._quarantines.items()}
