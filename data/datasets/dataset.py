"""What a pipeline asks of a data set, and global sample ids over it."""

import bisect
from collections.abc import Mapping
from typing import Protocol, SupportsIndex, runtime_checkable

import numpy as np

from data.errors import BadSampleError, DataError
from data.samples.sample import Sample, SampleSizes
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.text.prompt_format import PromptFormat
from data.text.tokenizer import Tokenizer

UNKNOWN, BAD = -1, -2


@runtime_checkable
class RandomAccessSamples(Protocol):
    """Outlines by index; may be read from several threads, and pickled for other processes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> SampleMetadata:
        """Outlines a sample from what is known without decoding; raises `BadSampleError` if it cannot be used."""
        ...


@runtime_checkable
class Dataset(Protocol):
    """A data set of several kinds of samples; `data.datasets.easy_vqa.EasyVQA` is one."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Encoded the texts of all samples."""
        ...

    @property
    def evaluated_kinds(self) -> tuple[str, ...]:
        """Kinds whose answers held-out accuracy is counted on; none if there is nothing to judge."""
        ...

    @property
    def prompt_format(self) -> PromptFormat:
        """How its samples are laid out."""
        ...

    def samples_by_kind(self, form: SampleFormat) -> Mapping[str, RandomAccessSamples]:
        """The samples by kind, in an order that never changes: global ids count through it."""
        ...


class SampleIndex:
    """Global ids 0.. of all samples of a source, kind after kind; what was once asked of sizes is kept.

    Attributes:
        source: The data set.
        form: What the model asks of its samples.
        counts: Samples of every kind.
    """

    def __init__(self, source: Dataset, form: SampleFormat) -> None:
        self.dataset = source
        self.sample_format = form
        self._datasets = dict(source.samples_by_kind(form))
        self.counts = {kind: len(samples) for kind, samples in self._datasets.items()}
        self._kinds = list(self.counts)
        self._starts = [0]
        for kind, count in self.counts.items():
            if count == 0:
                raise DataError(f"the source has no {kind} samples; leave the kind out")
            self._starts.append(self._starts[-1] + count)
        if self._starts[-1] >= 2**31:
            raise DataError(f"the source has {self._starts[-1]} samples; their ids must stay below 2**31")
        self._sizes = np.full((self._starts[-1], len(SampleSizes._fields)), UNKNOWN, np.int64)
        self._reasons: dict[int, tuple[str, str]] = {}

    def ids_of_kind(self, kind: str) -> range:
        """Global ids of a kind.

        Raises:
            DataError: The source has no such kind.
        """
        if kind not in self.counts:
            raise DataError(f"the source has no samples of kind {kind!r}; it has {', '.join(self._kinds)}")
        place = self._kinds.index(kind)
        return range(self._starts[place], self._starts[place + 1])

    def kind_of(self, number: SupportsIndex) -> str:
        """The kind of a global id."""
        return self._kinds[self._place(int(number))]

    def metadata(self, number: SupportsIndex) -> SampleMetadata:
        """The outline of a global id.

        Raises:
            BadSampleError: It cannot be used.
            DataError: No such id.
        """
        place = self._place(int(number))
        return self._datasets[self._kinds[place]][int(number) - self._starts[place]]

    def sizes(self, number: SupportsIndex) -> SampleSizes:
        """What a sample takes of a row; raises as `outline`."""
        number = int(number)
        self._place(number)
        known = self._sizes[number]
        if known[0] == UNKNOWN:
            try:
                known[:] = self.metadata(number).sizes
            except BadSampleError as error:
                known[:] = BAD
                self._reasons[number] = error.where, error.reason
        if known[0] == BAD:
            raise BadSampleError(*self._reasons[number])
        return SampleSizes(*known.tolist())

    def load(self, number: SupportsIndex) -> Sample:
        """The decoded sample of a global id; raises as `outline`."""
        return self.metadata(number).load(int(number))

    def _place(self, number: int) -> int:
        if not 0 <= number < self._starts[-1]:
            raise DataError(f"sample id {number} is outside the source's {self._starts[-1]} samples")
        return bisect.bisect_right(self._starts, number) - 1
