"""Outlines: all of a sample but its pixels and sound. Rows are planned from them; what they hold is decoded later."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from data.errors import BadSampleError
from data.samples.sample import (
    EncoderInputs,
    Sample,
    SampleSizes,
    TokenLayout,
    concatenate_encoder_inputs,
    no_target_images,
)
from data.samples.sample_format import EncoderFormat, SampleFormat


@dataclasses.dataclass(frozen=True, eq=False)
class MediaItem:
    """One image or clip that an encoder reads.

    Attributes:
        field: Its stream, `patches` or `frames`.
        length: How many of these it takes of a row.
        load: Decodes it.
        where: Names it in messages.
    """

    field: str
    length: int
    load: Callable[[], EncoderInputs]
    where: str


@dataclasses.dataclass(frozen=True, eq=False)
class TargetImage:
    """One image to generate.

    Attributes:
        conditions: int32[q], positions of the tokens whose hidden states condition it.
        load: Decodes it: float32[z, z, 3] in [-1, 1].
    """

    condition_positions: np.ndarray
    load: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class SampleMetadata:
    """A sample before anything is decoded.

    Attributes:
        kind: Which sort of sample: the data set it came from.
        layout: Its tokens, as they will be.
        form: What the model asks.
        items: What encoders read, each stream's in order.
        drawings: Images to generate, in order.
        key: Names it in messages; empty for a sample whose files name themselves.
    """

    kind: str
    layout: TokenLayout
    sample_format: SampleFormat
    items: Sequence[MediaItem] = ()
    target_images: Sequence[TargetImage] = ()
    key: str = ""

    @property
    def sizes(self) -> SampleSizes:
        """What the sample will take of a row."""
        streams = self.sample_format.encoder_formats
        lengths = {field: self._lengths(field) for field in streams}
        squares = {
            field: sum(form.attended_positions(each) ** 2 for each in lengths[field]) for field, form in streams.items()
        }
        return SampleSizes(
            tokens=len(self.layout.tokens),
            patches=sum(lengths.get("patches", ())),
            frames=sum(lengths.get("frames", ())),
            images=len(self.target_images),
            targets=int(self.layout.target_mask.sum()),
            patch_squares=squares.get("patches", 0),
            frame_squares=squares.get("frames", 0),
        )

    def _lengths(self, field: str) -> list[int]:
        return [item.length for item in self.items if item.field == field]

    def load(self, number: int) -> Sample:
        """Decodes everything.

        Raises:
            BadSampleError: Something cannot be decoded, is not finite, or is not as long as its header promised.
        """
        try:
            return self._load(number)
        except BadSampleError as error:
            raise with_sample_key(self.key, error) from error

    def _load(self, number: int) -> Sample:
        parts: dict[str, list[EncoderInputs]] = {field: [] for field in self.sample_format.encoder_formats}
        for item in self.items:
            stream = item.load()
            if len(stream.values) != item.length:
                raise BadSampleError(
                    item.where, f"{len(stream.values)} {item.field} where its header promised {item.length}"
                )
            if not np.isfinite(stream.values).all():
                raise BadSampleError(item.where, f"some of its {item.field} are not finite")
            parts[item.field].append(stream)
        images, conditions = no_target_images(self.sample_format)
        if self.target_images:
            images = np.stack([drawing.load() for drawing in self.target_images])
            conditions = np.stack([drawing.condition_positions for drawing in self.target_images]).astype(np.int32)
        streams = {
            field: concatenate_encoder_inputs(parts[field], form)
            for field, form in self.sample_format.encoder_formats.items()
        }
        return Sample(number, self.kind, self._seated(), streams, images, conditions)

    def _seated(self) -> TokenLayout:
        """The layout with indices that count all cells of a stream, of which those of class tokens give no token."""
        indices = dict(self.layout.encoder_indices)
        for field, form in self.sample_format.encoder_formats.items():
            if form.prefix_length:
                cells = cells_with_tokens(self._lengths(field), form)
                indices[field] = np.append(cells, np.int32(-1))[indices[field]]  # -1 stays: it is the last
        return dataclasses.replace(self.layout, encoder_indices=indices)


def cells_with_tokens(lengths: Sequence[int], form: EncoderFormat) -> np.ndarray:
    """int32: which cells give backbone tokens, of images or clips of these lengths, one after the other."""
    ends = np.cumsum(lengths, dtype=np.int64) // form.values_per_token
    runs = [np.arange(end - form.token_count(length), end) for end, length in zip(ends, lengths, strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *runs]).astype(np.int32)


def with_sample_key(key: str, error: BadSampleError) -> BadSampleError:
    """The error under a sample's key, which names it in the quarantine; as it is without one."""
    return error if key in ("", error.where) else BadSampleError(key, f"{error.where}: {error.reason}")
