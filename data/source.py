"""What a pipeline asks of a data set, and global sample ids over it."""

import bisect
import dataclasses
from collections.abc import Mapping
from typing import Protocol, SupportsIndex, runtime_checkable

from data.errors import DataError
from data.samples import Sample, SampleFormat
from data.tokenizer import WordTokenizer


@runtime_checkable
class RandomAccess(Protocol):
    """Samples by index, each `id` its index; may be read from several threads."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample:
        """Builds a sample; raises `BadSampleError` for one whose image cannot be read."""
        ...


@runtime_checkable
class Source(Protocol):
    """A data set of several kinds of samples; `data.easy_vqa.EasyVQA` is one."""

    @property
    def tokenizer(self) -> WordTokenizer:
        """Knows the words of all samples."""
        ...

    @property
    def image_count(self) -> int:
        """Distinct images, of which a share may be corrupt."""
        ...

    def datasets(self, form: SampleFormat) -> Mapping[str, RandomAccess]:
        """The samples by kind, in an order that never changes: global ids count through it."""
        ...


class Catalogue:
    """Global ids 0.. of all samples of a source, kind after kind.

    Attributes:
        source: The data set.
        form: What the model asks of its samples.
        sizes: Samples of every kind.
    """

    def __init__(self, source: Source, form: SampleFormat) -> None:
        self.source = source
        self.form = form
        self._datasets = dict(source.datasets(form))
        self.sizes = {kind: len(samples) for kind, samples in self._datasets.items()}
        self._kinds = list(self.sizes)
        self._starts = [0]
        for kind, size in self.sizes.items():
            if size == 0:
                raise DataError(f"the source has no {kind} samples; leave the kind out")
            self._starts.append(self._starts[-1] + size)
        if self._starts[-1] >= 2**31:
            raise DataError(f"the source has {self._starts[-1]} samples; their ids must stay below 2**31")

    def ids(self, kind: str) -> range:
        """Global ids of a kind.

        Raises:
            DataError: The source has no such kind.
        """
        if kind not in self.sizes:
            raise DataError(f"the source has no samples of kind {kind!r}; it has {', '.join(self._kinds)}")
        place = self._kinds.index(kind)
        return range(self._starts[place], self._starts[place + 1])

    def kind(self, number: SupportsIndex) -> str:
        """The kind of a global id."""
        return self._kinds[self._place(int(number))]

    def load(self, number: SupportsIndex) -> Sample:
        """The sample of a global id.

        Raises:
            BadSampleError: Its image cannot be read.
            DataError: No such id.
        """
        number = int(number)
        place = self._place(number)
        sample = self._datasets[self._kinds[place]][number - self._starts[place]]
        return dataclasses.replace(sample, id=number)

    def _place(self, number: int) -> int:
        if not 0 <= number < self._starts[-1]:
            raise DataError(f"sample id {number} is outside the source's {self._starts[-1]} samples")
        return bisect.bisect_right(self._starts, number) - 1
