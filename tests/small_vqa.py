"""A few real images of easy-VQA, so that an epoch is short; one of them can be made to hold a NaN."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from data.easy_vqa import EasyVQA
from data.samples import Sample, SampleFormat
from data.source import RandomAccess


class _First:
    """The first samples of a kind."""

    def __init__(self, samples: RandomAccess, count: int, poisoned: int | None) -> None:
        self._samples, self._count, self._poisoned = samples, count, poisoned

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Sample:
        sample = self._samples[index]
        if index != self._poisoned:
            return sample
        return dataclasses.replace(sample, patches=np.full_like(sample.patches, np.nan))


class SmallVQA:
    """The first `images` of a split, with all their questions.

    Args:
        split: `train` or `test`.
        images: How many.
        poisoned: Index of the image whose pixels are NaN where it is looked at.
    """

    def __init__(self, split: str, images: int = 40, poisoned: int | None = None) -> None:
        self._whole, self._images, self._poisoned = EasyVQA(split), images, poisoned
        self.tokenizer, self.image_count = self._whole.tokenizer, images

    def datasets(self, form: SampleFormat) -> Mapping[str, RandomAccess]:
        """The same kinds as the whole split."""
        return {
            kind: _First(samples, self._images, self._poisoned if kind == "vqa" else None)
            for kind, samples in self._whole.datasets(form).items()
        }
