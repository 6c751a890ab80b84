"""A few real images of easy-VQA, so that an epoch is short; one of them can be made to overflow the model."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from data.easy_vqa import EasyVQA
from data.formats import SampleFormat
from data.outline import Outline
from data.samples import Stream
from data.source import RandomAccess


class _First:
    """The first samples of a kind."""

    def __init__(self, samples: RandomAccess, count: int, poisoned: int | None) -> None:
        self._samples, self._count, self._poisoned = samples, count, poisoned

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Outline:
        outline = self._samples[index]
        if index != self._poisoned:
            return outline
        (item,) = outline.items

        def load() -> Stream:
            stream = item.load()
            return stream._replace(values=np.full_like(stream.values, np.finfo(np.float32).max))

        return dataclasses.replace(outline, items=[dataclasses.replace(item, load=load)])


class SmallVQA:
    """The first `images` of a split, with all their questions.

    Args:
        split: `train` or `test`.
        images: How many.
        poisoned: Index of the image whose pixels are the largest numbers there are where it is looked at.
    """

    def __init__(self, split: str, images: int = 40, poisoned: int | None = None) -> None:
        self._whole, self._images, self._poisoned = EasyVQA(split), images, poisoned
        self.tokenizer, self.judged = self._whole.tokenizer, self._whole.judged
        self.prompting = self._whole.prompting

    def datasets(self, form: SampleFormat) -> Mapping[str, RandomAccess]:
        """The same kinds as the whole split."""
        return {
            kind: _First(samples, self._images, self._poisoned if kind == "vqa" else None)
            for kind, samples in self._whole.datasets(form).items()
        }
