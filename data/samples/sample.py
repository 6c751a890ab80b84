"""Samples: what one training example brings to every module, and the pure function that lays out its tokens."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data.errors import DataError
from data.samples.sample_format import EncoderFormat, SampleFormat
from data.text.word_tokenizer import PAD

TOKEN_COLUMNS = ("tokens", "branches", "positions", "targets", "target_mask")


@dataclasses.dataclass(frozen=True, eq=False)
class TokenLayout:
    """Tokens of a sample, column by column; each int32[t], `target_mask` 0 or 1.

    Attributes:
        tokens: Token ids.
        branches: 0 for the trunk, b > 0 for branch b, which sees the trunk and itself.
        positions: Position in the sample; every branch continues from the end of the trunk.
        targets: The next token of the same branch, `PAD` where there is none.
        target_mask: Whether predicting the target counts in the loss.
        indices: By stream: -1, or which of the stream's merged tokens takes the token's place: of those that images
            and clips give in an outline, of all its cells, a class token's too, in a sample.
    """

    tokens: np.ndarray
    branches: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    target_mask: np.ndarray
    encoder_indices: Mapping[str, np.ndarray]


class EncoderInputs(NamedTuple):
    """What an encoder reads of a sample, one image or clip after the other.

    Attributes:
        values: float32[p, w], flattened patches or mel frames; a multiple of the format's `cell` for every item.
        items: int32[p / stride], number 1.. of the image or clip that a position belongs to, 0 of none.
        positions: int32[p / stride, 2] (row, column) of a patch in its image, -1 of a class token, or int32[p / stride]
            in the clip.
    """

    values: np.ndarray
    item_ids: np.ndarray
    positions: np.ndarray


class SampleSizes(NamedTuple):
    """What a sample takes of a row, and what balancing asks of it; all known before anything is decoded.

    Attributes:
        tokens, patches, frames, images: Backbone tokens, encoder patches and mel frames, images to generate.
        targets: Tokens that count in the loss.
        patch_squares, frame_squares: Sums of squares of the lengths of its images and of its clips, for attention.
        token_squares: The square of `tokens`.
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
        """For the backbone's attention."""
        return self.tokens**2


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """One training example; everything counts from the sample's own start.

    Attributes:
        id: Number that names the sample; keys its noise.
        kind: Which sort of sample: the data set it came from.
        layout: Its t tokens.
        streams: By field, `patches` or `frames`; one for every encoder of the format, empty where it has none.
        images: float32[g, z, z, 3] in [-1, 1], the images to generate.
        conditions: int32[g, q], positions of the tokens whose hidden states condition each.
    """

    id: int
    kind: str
    layout: TokenLayout
    encoder_inputs: Mapping[str, EncoderInputs]
    target_images: np.ndarray
    condition_positions: np.ndarray

    @property
    def sizes(self) -> dict[str, int]:
        """What the sample takes of a row: tokens, patches, frames and generated images."""
        values = {
            name: len(self.encoder_inputs[name].values) if name in self.encoder_inputs else 0
            for name in ("patches", "frames")
        }
        return {"tokens": len(self.layout.tokens), **values, "images": len(self.target_images)}


def empty_encoder_inputs(form: EncoderFormat) -> EncoderInputs:
    """A stream of a sample without an image or clip."""
    return EncoderInputs(
        np.zeros((0, form.value_width), np.float32),
        np.zeros(0, np.int32),
        np.zeros((0, *form.position_shape), np.int32),
    )


def concatenate_encoder_inputs(parts: Sequence[EncoderInputs], form: EncoderFormat) -> EncoderInputs:
    """One stream of several images' or clips', each numbered anew."""
    if not parts:
        return empty_encoder_inputs(form)
    items = [np.where(part.item_ids > 0, np.int32(number), 0) for number, part in enumerate(parts, start=1)]
    values, _, positions = zip(*parts, strict=True)
    return EncoderInputs(np.concatenate(values), np.concatenate(items), np.concatenate(positions))


def lay_out_tokens(
    trunk: Sequence[int],
    branches: Iterable[Sequence[int]],
    losses: Sequence[Iterable[int]],
    placeholders: Mapping[str, int],
) -> TokenLayout:
    """Lays out a trunk and the branches behind it.

    Args:
        trunk: Token ids; each placeholder takes the next merged token of its stream.
        branches: Token ids of each branch.
        losses: For the trunk and then every branch, the places in it (from its start) whose *token is a target*.
        placeholders: The token id that stands for a merged token, by stream.

    Raises:
        DataError: The first token of a trunk or of a branch is a target: nothing predicts it.
    """
    runs = [trunk, *branches]
    lengths = [len(run) for run in runs]
    tokens = np.fromiter((token for run in runs for token in run), np.int32, sum(lengths))
    starts = np.cumsum([0, *lengths[:-1]])
    branch = np.repeat(np.arange(len(runs), dtype=np.int32), lengths)
    positions = np.arange(len(tokens)) - np.repeat(starts, lengths) + np.where(branch > 0, len(trunk), 0)
    targets = np.full(len(tokens), PAD, np.int32)
    mask = np.zeros(len(tokens), np.int32)
    same_run = branch[1:] == branch[:-1]
    targets[:-1][same_run] = tokens[1:][same_run]
    for start, places in zip(starts, losses, strict=True):
        places = np.fromiter(places, np.int64)
        if (places == 0).any():
            raise DataError("the first token of a trunk or branch cannot be a target: no token of it comes before")
        mask[start - 1 + places] = 1
    indices = {}
    for stream, placeholder in placeholders.items():
        here = tokens == placeholder
        indices[stream] = np.where(here, np.cumsum(here) - 1, -1).astype(np.int32)
    return TokenLayout(tokens, branch, positions.astype(np.int32), targets, mask, indices)


def no_target_images(form: SampleFormat) -> tuple[np.ndarray, np.ndarray]:
    """`images` and `conditions` of a sample that generates nothing."""
    size, conditions = (form.target_images.size, form.target_images.conditions) if form.target_images else (1, 1)
    return np.zeros((0, size, size, 3), np.float32), np.zeros((0, conditions), np.int32)
