"""The data set interface, and global sample ids over the samples of a data set.

Step planner and batch loader read every data set through `SampleIndex`: first sizes, then decoded samples.
"""

import bisect
from collections.abc import Callable, Mapping
from typing import Protocol, SupportsIndex, runtime_checkable

from data.datasets.size_cache import SizeCache
from data.errors import BadSampleError, DataError
from data.samples.sample import Sample, SampleSizes
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.text.prompt_format import PromptFormat
from data.text.tokenizer import Tokenizer


@runtime_checkable
class RandomAccessSamples(Protocol):
    """Random access to sample metadata; may be read from several threads and pickled for other processes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> SampleMetadata:
        """Metadata of a sample, without decoding; raises BadSampleError if it cannot be used."""
        ...


class LazySamples:
    """Random access to the samples of one kind, each built on access."""

    def __init__(self, length: int, build: Callable[[int], SampleMetadata]) -> None:
        self._length = length
        self._build = build

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> SampleMetadata:
        if not 0 <= index < self._length:
            raise IndexError(f"sample {index} of {self._length}")
        return self._build(index)


@runtime_checkable
class Dataset(Protocol):
    """One split of a data set with samples of several kinds, such as `data.datasets.easy_vqa.EasyVQA`."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all texts."""
        ...

    @property
    def evaluated_kinds(self) -> tuple[str, ...]:
        """Kinds whose answers are scored on held-out data; may be empty."""
        ...

    @property
    def prompt_format(self) -> PromptFormat:
        """The layout of prompts, saved with a trained model."""
        ...

    def samples_by_kind(self, sample_format: SampleFormat) -> Mapping[str, RandomAccessSamples]:
        """The samples of every kind, in an order that never changes: global sample ids count through it."""
        ...


class SampleIndex:
    """Global sample ids 0, 1, ... over all samples of a data set, kind after kind; sizes are cached.

    Attributes:
        dataset: The data set.
        sample_format: Formats that the model requires.
        counts: Number of samples of every kind.
    """

    def __init__(self, dataset: Dataset, sample_format: SampleFormat) -> None:
        """Reads the number of samples of each kind.

        Raises:
            DataError: A kind or the whole data set has no samples, or there are 2**31 samples or more.
        """
        self.dataset = dataset
        self.sample_format = sample_format
        self._samples_by_kind = dict(dataset.samples_by_kind(sample_format))
        self.counts = {kind: len(samples) for kind, samples in self._samples_by_kind.items()}
        if not self.counts:
            raise DataError("the data set has no samples; check the split and what it reads")
        self._kinds = list(self.counts)
        self._starts = [0]
        for kind, count in self.counts.items():
            if count == 0:
                raise DataError(f"the data set has no {kind} samples; leave the kind out")
            self._starts.append(self._starts[-1] + count)
        if self._starts[-1] >= 2**31:
            raise DataError(f"the data set has {self._starts[-1]} samples; their ids must stay below 2**31")
        self._sizes = SizeCache(self._starts[-1], tuple(sample_format.encoder_formats))
        self._reasons: dict[int, tuple[str, str]] = {}  # why samples are bad

    def ids_of_kind(self, kind: str) -> range:
        """Sample ids of a kind; raises DataError if the data set has no such kind."""
        if kind not in self.counts:
            raise DataError(f"the data set has no samples of kind {kind!r}; it has {', '.join(self._kinds)}")
        number = self._kinds.index(kind)
        return range(self._starts[number], self._starts[number + 1])

    def kind_of(self, sample_id: SupportsIndex) -> str:
        """Kind of a sample."""
        return self._kinds[self._kind_number(int(sample_id))]

    def metadata(self, sample_id: SupportsIndex) -> SampleMetadata:
        """Metadata of a sample.

        Raises:
            BadSampleError: The sample cannot be used.
            DataError: There is no such sample id.
        """
        number = self._kind_number(int(sample_id))
        return self._samples_by_kind[self._kinds[number]][int(sample_id) - self._starts[number]]

    def sizes(self, sample_id: SupportsIndex) -> SampleSizes:
        """Sizes of a sample, from headers; errors as of `metadata`."""
        sample_id = int(sample_id)
        self._kind_number(sample_id)
        sizes = self._sizes[sample_id]
        if sizes is None:
            if sample_id in self._reasons:
                raise BadSampleError(*self._reasons[sample_id])
            try:
                sizes = self.metadata(sample_id).sizes
            except BadSampleError as error:
                self._reasons[sample_id] = error.where, error.reason
                raise
            self._sizes[sample_id] = sizes
        return sizes

    def load(self, sample_id: SupportsIndex) -> Sample:
        """The decoded sample; errors as of `metadata` and `SampleMetadata.load`."""
        return self.metadata(sample_id).load(int(sample_id))

    def _kind_number(self, sample_id: int) -> int:
        if not 0 <= sample_id < self._starts[-1]:
            raise DataError(f"sample id {sample_id} is outside the data set's {self._starts[-1]} samples")
        return bisect.bisect_right(self._starts, sample_id) - 1
