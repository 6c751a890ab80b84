"""The cache of sample sizes: sizes that planning has read from headers, kept in arrays for later epochs.

`SampleIndex.sizes` reads and fills it.
"""

from collections.abc import Sequence

import numpy as np

from data.samples.sample import SampleSizes

_NUMBERS = 3  # tokens, images, targets; then for each encoder field which lengths its items have


class SizeCache:
    """Sizes of samples by number; one thread at a time may use it.

    Samples whose items have the same lengths share one tuple of them.

    Args:
        samples: Number of samples.
        fields: The encoder fields of all samples.
    """

    def __init__(self, samples: int, fields: Sequence[str]) -> None:
        self._fields = tuple(fields)
        self._numbers = np.zeros((samples, _NUMBERS + len(self._fields)), np.int32)
        self._numbers[:, 0] = -1
        self._lengths: list[tuple[int, ...]] = []
        self._number_of: dict[tuple[int, ...], int] = {}

    def __getitem__(self, number: int) -> SampleSizes | None:
        """The sizes of a sample; None if they are not known."""
        tokens, images, targets, *lengths = self._numbers[number].tolist()
        if tokens < 0:
            return None
        items = {field: self._lengths[number] for field, number in zip(self._fields, lengths, strict=True)}
        return SampleSizes(tokens=tokens, items=items, images=images, targets=targets)

    def __setitem__(self, number: int, sizes: SampleSizes) -> None:
        lengths = [self._number(sizes.items[field]) for field in self._fields]
        self._numbers[number] = [sizes.tokens, sizes.images, sizes.targets, *lengths]

    def _number(self, lengths: tuple[int, ...]) -> int:
        if lengths not in self._number_of:
            self._number_of[lengths] = len(self._lengths)
            self._lengths.append(lengths)
        return self._number_of[lengths]
