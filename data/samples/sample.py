"""Samples: the decoded inputs and targets of one training example for every module, and their sizes.

Planning reads `SampleSizes` from headers; the batch loader packs `Sample` into rows.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from configs.common.short_repr import short_repr
from data.samples.encoder_format import EncoderInputs
from data.samples.sample_format import SampleFormat
from data.samples.token_layout import TokenLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleSizes:
    """Sizes of a sample, by which rows are planned and balanced; known before anything is decoded.

    Attributes:
        tokens: Backbone tokens.
        items: By encoder field, the number of values (patches, mel frames, ...) of each of its items, in order.
        images: Images to generate.
        targets: Tokens that count in the loss.
    """

    tokens: int
    items: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    images: int = 0
    targets: int = 0

    __repr__ = short_repr

    @property
    def lengths(self) -> dict[str, int]:
        """By encoder field, the number of values of all its items."""
        return {field: sum(lengths) for field, lengths in self.items.items()}

    @property
    def token_squares(self) -> int:
        """Square of the number of backbone tokens, for the backbone's attention."""
        return self.tokens**2

    @property
    def row_units(self) -> dict[str, int]:
        """Units that the sample takes of a row, by `data.data_config.RowCapacity.names`."""
        return {"tokens": self.tokens, **self.lengths, "images": self.images}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Sample:
    """One decoded training example; all indices count from its own start.

    Attributes:
        id: Global sample id; keys the noise of generators.
        kind: Kind of sample: the data set it came from.
        layout: Layout of its t tokens.
        encoder_inputs: By field, such as `patches`: one for every encoder, empty where the sample has no items.
        target_images: float32[g, z, z, 3] in [-1, 1], the images to generate.
        condition_positions: int32[g, q], positions of the tokens whose hidden states condition each target image.
    """

    id: int
    kind: str
    layout: TokenLayout
    encoder_inputs: Mapping[str, EncoderInputs]
    target_images: np.ndarray
    condition_positions: np.ndarray

    __repr__ = short_repr

    @property
    def sizes(self) -> dict[str, int]:
        """Units that the sample takes of a row, by `data.data_config.RowCapacity.names`."""
        lengths = {field: len(inputs.values) for field, inputs in self.encoder_inputs.items()}
        return {"tokens": len(self.layout.tokens), **lengths, "images": len(self.target_images)}


def no_target_images(sample_format: SampleFormat) -> tuple[np.ndarray, np.ndarray]:
    """`target_images` and `condition_positions` of a sample that generates nothing."""
    target = sample_format.target_images
    size, conditions = (target.size, target.conditions) if target else (1, 1)
    return np.zeros((0, size, size, 3), np.float32), np.zeros((0, conditions), np.int32)
