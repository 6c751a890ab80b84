"""The batch iterator: global batches of a data set, with a state that names exactly the batches that remain.

The state is the planner's state after the last batch returned. Batches that were prepared ahead, by any number of
workers or producers, do not change it.
"""

import collections
import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, SupportsIndex, runtime_checkable

from data.datasets.dataset import SampleIndex
from data.errors import DataError
from data.packing.fingerprint import fingerprint_differences
from data.packing.global_batch import GlobalBatch
from data.packing.rows.refusals import RefusalLog
from data.packing.rows.row_planner import PlannerState
from data.samples.sample import Sample
from data.samples.sample_format import SampleFormat

_LOG = logging.getLogger(__name__)


@runtime_checkable
class ClosableIterator(Protocol):
    """An iterator of batches whose threads and processes end with `close`."""

    def __iter__(self) -> Iterator[GlobalBatch]: ...

    def __next__(self) -> GlobalBatch: ...

    def close(self) -> None:
        """Ends the iterator's threads and processes."""
        ...


class BatchIterator(Iterator[GlobalBatch]):
    """Global batches of a data set; made by `training_batches`, `evaluation_batches` or `remote_batches`.

    `get_state` describes the batches returned so far, not batches prepared ahead. It is a small JSON value; an
    iterator of the same configuration and data set that receives it continues with exactly the remaining batches.
    """

    def __init__(
        self,
        sample_index: SampleIndex,
        fingerprint: dict[str, Any],
        refusals: RefusalLog,
        start: Callable[[PlannerState], Iterable[GlobalBatch]],
    ) -> None:
        """Creates an iterator at the beginning.

        Args:
            sample_index: Names the kinds of samples, and loads samples for `load_samples`.
            fingerprint: Everything that decides which samples form step k, as JSON values.
            refusals: Collects the refusals of batches.
            start: Makes the batches that follow a state; their iterator has `close`.
        """
        self._sample_index, self._fingerprint, self._refusals, self._start = sample_index, fingerprint, refusals, start
        self._batches = 0
        self._samples: collections.Counter[str] = collections.Counter()
        self._planner_state = PlannerState()
        self._closed = False
        self._open: list[ClosableIterator] = []
        # Grain 0.2.18 aborts the process if a prefetching thread, or an iterator, outlives the interpreter's modules.
        self._finalizer = weakref.finalize(self, _close_all, self._open)

    @property
    def sample_format(self) -> SampleFormat:
        """Format of the samples."""
        return self._sample_index.sample_format

    @property
    def _iterator(self) -> ClosableIterator:
        if self._closed:
            raise DataError("these batches are closed; make a new iterator and restore the state")
        if not self._open:
            iterator = iter(self._start(self._planner_state))
            assert isinstance(iterator, ClosableIterator)
            self._open.append(iterator)
        return self._open[0]

    def __next__(self) -> GlobalBatch:
        batch = self._next_with_refusals()
        while not len(batch.sample_ids):  # it only lists refusals
            batch = self._next_with_refusals()
        self._batches += 1
        self._planner_state = PlannerState.from_json(batch.state)
        sample_ids = batch.sample_ids[batch.sample_ids >= 0]
        self._samples.update(self._sample_index.kind_of(sample_id) for sample_id in sample_ids)
        return batch

    def _next_with_refusals(self) -> GlobalBatch:
        """The next batch, its refusals collected.

        Raises:
            DataError: Too many samples are refused. All refusals of the window are collected before.
        """
        batch = next(self._iterator)
        self._refusals.add(batch.refused)
        self._refusals.follow(batch.sample_ids)
        if self._refusals.excess():
            _LOG.warning("too many samples are refused; the rest of the window is read to list all that are")
            with contextlib.suppress(StopIteration, DataError):  # the refusals are the error to report
                while PlannerState.from_json(batch.state).steps_taken:
                    batch = next(self._iterator)
                    self._refusals.add(batch.refused)
            raise DataError(self._refusals.excess())
        return batch

    def get_state(self) -> dict[str, Any]:
        """The state after the last batch returned."""
        return {
            "fingerprint": self._fingerprint,
            "batches": self._batches,
            "samples": dict(self._samples),
            "planner": self._planner_state.to_json(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken.

        Raises:
            DataError: The state belongs to another configuration or data set; names the differences.
        """
        differences = fingerprint_differences(state["fingerprint"], self._fingerprint)
        if differences:
            raise DataError(
                f"data state of another configuration: {differences}; restore with the one it was saved under"
            )
        _close_all(self._open)
        self._batches = state["batches"]
        self._samples = collections.Counter(state["samples"])
        self._planner_state = PlannerState.from_json(state["planner"])

    def counters(self) -> dict[str, Any]:
        """Batches and samples by kind returned since the beginning of the run; samples that this process refused."""
        return {"batches": self._batches, "samples": dict(self._samples), **self._refusals.counts()}

    def list_refused_in(self, folder: str | os.PathLike[str]) -> None:
        """Lists the samples that this process refuses in a folder, each as soon as it is refused.

        They are lines of JSON (`QuarantineEntry`) in `unreadable.jsonl` and `oversized.jsonl`, which exist once there
        is one. Entries of an earlier run stay there and are not repeated.
        """
        self._refusals.list_in(folder)

    def load_samples(self, sample_ids: Iterable[SupportsIndex]) -> list[Sample]:
        """The decoded samples of these global ids, from which a batch was packed."""
        return [self._sample_index.load(sample_id) for sample_id in sample_ids]

    def close(self) -> None:
        """Ends the threads and workers; losing the last reference and the end of the process do so too."""
        self._closed = True
        self._finalizer()


def _close_all(iterators: list[ClosableIterator]) -> None:
    """Closes iterators and releases them."""
    while iterators:
        iterators.pop().close()
