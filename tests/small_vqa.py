"""A data set of a few images of easy-VQA, so that an epoch is short; one of them can be made to overflow the model."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from data.datasets.dataset import RandomAccessSamples
from data.datasets.easy_vqa import EasyVQA
from data.samples.encoder_format import EncoderInputs
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata


class _First:
    """The first samples of a kind."""

    def __init__(self, samples: RandomAccessSamples, count: int, poisoned: int | None) -> None:
        self._samples, self._count, self._poisoned = samples, count, poisoned

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> SampleMetadata:
        metadata = self._samples[index]
        if index != self._poisoned:
            return metadata
        (item,) = metadata.items

        def load() -> EncoderInputs:
            inputs = item.load()
            return inputs._replace(values=np.full_like(inputs.values, np.finfo(np.float32).max))

        return dataclasses.replace(metadata, items=[dataclasses.replace(item, load=load)])


class SmallVQA:
    """The first `images` of a split, with all their questions.

    Args:
        split: `train` or `test`.
        images: How many.
        poisoned: Index of the image whose pixels are replaced by the largest float32 in `vqa` samples.
    """

    def __init__(self, split: str, images: int = 40, poisoned: int | None = None) -> None:
        self._whole, self._images, self._poisoned = EasyVQA(split), images, poisoned
        self.tokenizer, self.evaluated_kinds = self._whole.tokenizer, self._whole.evaluated_kinds
        self.prompt_format = self._whole.prompt_format

    def samples_by_kind(self, sample_format: SampleFormat) -> Mapping[str, RandomAccessSamples]:
        """The same kinds as the whole split."""
        return {
            kind: _First(samples, self._images, self._poisoned if kind == "vqa" else None)
            for kind, samples in self._whole.samples_by_kind(sample_format).items()
        }
