"""Refusals: samples that a pipeline leaves out because they are unreadable or oversized.

An unreadable sample is one whose record or media cannot be used (`BadSampleError`); an oversized one exceeds the
capacity of a row.
"""

import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np
from jaxtyping import Int32

from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.errors import BadSampleError
from data.host_faults import retried
from data.packing.rows.packed_rows import NO_SAMPLE, REFUSED_SAMPLE
from data.quarantine import Quarantine
from data.samples.sample import SampleSizes

_Result = TypeVar("_Result")

RefusalCause = Literal["unreadable", "oversized"]

MOST_IN_A_ROW = 100
"""Number of unreadable samples in a row at which a run ends."""


class Refusal(NamedTuple):
    """A sample that is left out.

    Attributes:
        cause: `unreadable` or `oversized` (`RefusalCause`).
        kind: Kind of the sample.
        key: Name of the sample.
        reason: Why it cannot be used.
    """

    cause: str
    kind: str
    key: str
    reason: str


def call_or_refuse(method: Callable[[int], _Result], samples: SampleIndex, sample_id: int) -> _Result | Refusal:
    """Returns the result of a method of the sample index for a sample, or the refusal of one that cannot be read.

    Raises:
        HostError: The host fails to read it, whenever it is tried.
    """
    try:
        return retried(functools.partial(method, sample_id), f"sample {sample_id}")
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


class UnreadableInARow:
    """Counts unreadable samples in a row: many of them mean a wrong data set or storage, not single bad samples."""

    def __init__(self) -> None:
        self._count = 0
        self.too_many = False

    def add(self, unreadable: Iterable[bool]) -> None:
        """Adds samples in their order, each unreadable or not; `too_many` once `MOST_IN_A_ROW` were."""
        for is_unreadable in unreadable:
            self._count = self._count + 1 if is_unreadable else 0
            self.too_many |= self._count >= MOST_IN_A_ROW


def too_many_in_a_row(last: str) -> str:
    """The message of an error for `UnreadableInARow`; `last` names a refused sample and the reason."""
    return (
        f"{MOST_IN_A_ROW} samples in a row cannot be used, which ends a run whatever DataConfig.max_refused_share "
        f"allows; see whether the data set is the one that is meant, and whole; the last: {last}"
    )


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
        self._in_a_row = UnreadableInARow()

    def list_in(self, folder: str | os.PathLike[str]) -> None:
        """Lists every refused sample in `unreadable.jsonl` or `oversized.jsonl` of a folder as it is added."""
        for cause, quarantine in self._quarantines.items():
            quarantine.list_in(_list_file(folder, cause))

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Adds the refusals of a batch."""
        for refusal in refusals:
            self._quarantines[refusal.cause].add(refusal.kind, refusal.key, refusal.reason)

    def follow(self, sample_ids: Int32[np.ndarray, "n m"]) -> None:
        """Counts the samples of a batch (`GlobalBatch.sample_ids`) that decoding refused one after another."""
        self._in_a_row.add((sample_ids[sample_ids != NO_SAMPLE] == REFUSED_SAMPLE).tolist())

    def excess(self) -> str:
        """The message of an error if too many samples are unreadable, of a kind or in a row; empty otherwise."""
        unreadable = self._quarantines["unreadable"]
        if message := unreadable.excess():
            return message
        if not self._in_a_row.too_many:
            return ""
        last = unreadable.entries[-1]
        return too_many_in_a_row(f"{last.key}: {last.reason}")

    def counts(self) -> dict[str, int]:
        """Number of distinct refused samples by cause: `unreadable_samples`, `oversized_samples`."""
        return {f"{cause}_samples": len(quarantine) for cause, quarantine in self._quarantines.items()}
