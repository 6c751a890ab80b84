"""Sample metadata: a sample before its media are decoded. Rows are planned from metadata, media are decoded later."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from configs.common.short_repr import short_repr
from data.errors import BadSampleError
from data.samples.encoder_format import EncoderFormat, EncoderInputs, MediaItem, concatenate_encoder_inputs
from data.samples.sample import Sample, SampleSizes, no_target_images
from data.samples.sample_format import SampleFormat
from data.samples.token_layout import TokenLayout


@dataclasses.dataclass(frozen=True, eq=False)
class TargetImage:
    """One image to generate.

    Attributes:
        condition_positions: int32[q], positions of the tokens whose hidden states condition it.
        load: Decodes the image: float32[z, z, 3] in [-1, 1].
    """

    condition_positions: np.ndarray
    load: Callable[[], np.ndarray]

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SampleMetadata:
    """A sample before anything is decoded.

    Attributes:
        kind: Kind of sample: the data set it came from.
        layout: Layout of its tokens.
        sample_format: Formats that the model requires.
        items: Items that encoders read, such as images; the items of one encoder are in order.
        target_images: Images to generate, in order.
        key: Name in messages; empty for a sample whose files name themselves.
    """

    kind: str
    layout: TokenLayout
    sample_format: SampleFormat
    items: Sequence[MediaItem] = ()
    target_images: Sequence[TargetImage] = ()
    key: str = ""

    __repr__ = short_repr

    @property
    def sizes(self) -> SampleSizes:
        """Sizes of the sample, from headers."""
        return SampleSizes(
            tokens=len(self.layout.tokens),
            items={field: tuple(self._item_lengths(field)) for field in self.sample_format.encoder_formats},
            images=len(self.target_images),
            targets=int(self.layout.target_mask.sum()),
        )

    def _item_lengths(self, field: str) -> list[int]:
        return [item.length for item in self.items if item.field == field]

    def load(self, sample_id: int) -> Sample:
        """Decodes all media.

        Raises:
            BadSampleError: A medium cannot be decoded, has values that are not finite, or another length than its
                header announced.
        """
        try:
            return self._load(sample_id)
        except BadSampleError as error:
            raise with_sample_key(self.key, error) from error

    def _load(self, sample_id: int) -> Sample:
        encoder_formats = self.sample_format.encoder_formats
        inputs_of_items: dict[str, list[EncoderInputs]] = {field: [] for field in encoder_formats}
        for item in self.items:
            inputs = item.load()
            if len(inputs.values) != item.length:
                raise BadSampleError(
                    item.where, f"{len(inputs.values)} {item.field} where its header announced {item.length}"
                )
            width = encoder_formats[item.field].value_width
            if inputs.values.shape[1:] != (width,):
                raise BadSampleError(
                    item.where, f"its {item.field} have shape {inputs.values.shape}; {width} numbers each are read"
                )
            if not np.isfinite(inputs.values).all():
                raise BadSampleError(item.where, f"some of its {item.field} are not finite")
            inputs_of_items[item.field].append(inputs)
        images, conditions = no_target_images(self.sample_format)
        if self.target_images:
            images = np.stack([target.load() for target in self.target_images])
            conditions = np.stack([target.condition_positions for target in self.target_images]).astype(np.int32)
        return Sample(
            id=sample_id,
            kind=self.kind,
            layout=self._decoded_layout(),
            encoder_inputs={
                field: concatenate_encoder_inputs(inputs_of_items[field], encoder_format)
                for field, encoder_format in encoder_formats.items()
            },
            target_images=images,
            condition_positions=conditions,
        )

    def _decoded_layout(self) -> TokenLayout:
        """The layout as the backbone reads it, with indices that count all cells of an encoder, class tokens' too."""
        layout = self.sample_format.tokens.complete(self.layout, self.items, self.sample_format.encoder_formats)
        indices = dict(layout.encoder_indices)
        for field, encoder_format in self.sample_format.encoder_formats.items():
            if encoder_format.prefix_length:
                cells = cells_with_tokens(self._item_lengths(field), encoder_format)
                index = indices[field]
                indices[field] = np.where(index >= 0, np.append(cells, np.int32(-1))[np.maximum(index, -1)], index)
        return dataclasses.replace(layout, encoder_indices=indices)


def cells_with_tokens(lengths: Sequence[int], encoder_format: EncoderFormat) -> np.ndarray:
    """int32: the cells that become backbone tokens, of consecutive items with these numbers of values."""
    ends = np.cumsum(lengths, dtype=np.int64) // encoder_format.values_per_token
    ranges = [
        np.arange(end - encoder_format.token_count(length), end) for end, length in zip(ends, lengths, strict=True)
    ]
    return np.concatenate([np.zeros(0, np.int64), *ranges]).astype(np.int32)


def with_sample_key(key: str, error: BadSampleError) -> BadSampleError:
    """The error named after the sample's key, which identifies it in the quarantine; unchanged for an empty key."""
    return error if key in ("", error.where) else BadSampleError(key, f"{error.where}: {error.reason}")
