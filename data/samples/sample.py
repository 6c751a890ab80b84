"""Samples: what one training example provides to every module, and how large it is."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data.samples.sample_format import EncoderFormat, SampleFormat
from data.samples.token_layout import TokenLayout


class EncoderInputs(NamedTuple):
    """Inputs of one encoder from a sample, of one image or clip after the other.

    p is the number of values; an encoder position covers `EncoderFormat.values_per_position` of them.

    Attributes:
        values: float32[p, w], flattened patches or mel frames; every item has a multiple of `values_per_token`.
        item_ids: int32[positions], 1-based number of the image or clip of each position; 0 for none.
        positions: int32[positions, 2], (row, column) of a patch in its image, -1 for a class token; or
            int32[positions], the position in the clip.
    """

    values: np.ndarray
    item_ids: np.ndarray
    positions: np.ndarray


class SampleSizes(NamedTuple):
    """What a sample takes of a row and what balancing needs; known before anything is decoded.

    Attributes:
        tokens: Backbone tokens.
        patches: Patches of the vision encoder.
        frames: Mel frames of the audio encoder.
        images: Images to generate.
        targets: Tokens that count in the loss.
        patch_squares: Sum over images of the square of their attended positions.
        frame_squares: Sum over audio clips of the square of their attended positions.
    """

    tokens: int
    patches: int = 0
    frames: int = 0
    images: int = 0
    targets: int = 0
    patch_squares: int = 0
    frame_squares: int = 0

    @property
    def token_squares(self) -> int:
        """Square of the number of backbone tokens, for the backbone's attention."""
        return self.tokens**2


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Sample:
    """One decoded training example; all indices count from its own start.

    Attributes:
        id: Global sample id; keys the noise of generators.
        kind: Kind of sample: the data set it came from.
        layout: Its t tokens.
        encoder_inputs: By field, `patches` or `frames`: one for every encoder, empty where the sample has no media.
        target_images: float32[g, z, z, 3] in [-1, 1], the images to generate.
        condition_positions: int32[g, q], positions of the tokens whose hidden states condition each target image.
    """

    id: int
    kind: str
    layout: TokenLayout
    encoder_inputs: Mapping[str, EncoderInputs]
    target_images: np.ndarray
    condition_positions: np.ndarray

    @property
    def sizes(self) -> dict[str, int]:
        """What the sample takes of a row, by `data.data_config.CAPACITY_FIELDS`."""
        lengths = {
            field: len(self.encoder_inputs[field].values) if field in self.encoder_inputs else 0
            for field in ("patches", "frames")
        }
        return {"tokens": len(self.layout.tokens), **lengths, "images": len(self.target_images)}


def empty_encoder_inputs(encoder_format: EncoderFormat) -> EncoderInputs:
    """Encoder inputs of a sample without an image or clip."""
    return EncoderInputs(
        np.zeros((0, encoder_format.value_width), np.float32),
        np.zeros(0, np.int32),
        np.zeros((0, *encoder_format.position_shape), np.int32),
    )


def concatenate_encoder_inputs(items: Sequence[EncoderInputs], encoder_format: EncoderFormat) -> EncoderInputs:
    """Encoder inputs of several images or clips, numbered in their order."""
    if not items:
        return empty_encoder_inputs(encoder_format)
    item_ids = [np.where(item.item_ids > 0, np.int32(number), 0) for number, item in enumerate(items, start=1)]
    values, _, positions = zip(*items, strict=True)
    return EncoderInputs(np.concatenate(values), np.concatenate(item_ids), np.concatenate(positions))


def no_target_images(sample_format: SampleFormat) -> tuple[np.ndarray, np.ndarray]:
    """`target_images` and `condition_positions` of a sample that generates nothing."""
    target = sample_format.target_images
    size, conditions = (target.size, target.conditions) if target else (1, 1)
    return np.zeros((0, size, size, 3), np.float32), np.zeros((0, conditions), np.int32)
