"""Packed rows: several samples in one row of fixed capacity, with indices that count from the start of the row.

The batch loader packs decoded samples into them, and `data.packing.global_batch` names their arrays after modules.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from data.data_config import RowCapacity
from data.errors import DataError
from data.samples.encoder_format import EncoderInputs, empty_encoder_inputs
from data.samples.sample import Sample, SampleSizes
from data.samples.sample_format import SampleFormat
from data.samples.token_layout import TOKEN_COLUMNS, TokenLayout

NO_SAMPLE, REFUSED_SAMPLE = -1, -2
"""Values of `PackedRows.sample_ids` in the place of a sample's id: there is no sample, or decoding refused it."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PackedRows:
    """Rows of packed samples; dimensions as in `data.packing.global_batch`.

    Attributes:
        layout: The token columns, each [n, s]; positions with the shape of a position behind that.
        token_segments: int32[n, s], 0 for padding, else 1-based number of the sample within the row.
        encoder_inputs: By field: `values` [n, p, w]; `item_ids` [n, positions], 0 for padding, else 1-based number of
            the item within the row; `positions` [n, positions, ...].
        target_images: float32[n, g, z, z, 3].
        condition_positions: int32[n, g, q].
        target_image_samples: int32[n, g], sample id of each target image, -1 for padding.
        sample_ids: int32[n, most samples of a row]; `NO_SAMPLE` for none, `REFUSED_SAMPLE` where decoding refused one.
    """

    layout: TokenLayout
    token_segments: np.ndarray
    encoder_inputs: Mapping[str, EncoderInputs]
    target_images: np.ndarray
    condition_positions: np.ndarray
    target_image_samples: np.ndarray
    sample_ids: np.ndarray


def empty_rows(count: int, capacity: RowCapacity, sample_format: SampleFormat) -> PackedRows:
    """Rows without samples."""
    encoder_inputs = {}
    for field, encoder_format in sample_format.encoder_formats.items():
        values, item_ids, positions = empty_encoder_inputs(encoder_format)
        length = capacity.lengths[field]
        position_count = length // encoder_format.values_per_position
        encoder_inputs[field] = EncoderInputs(
            np.zeros((count, length, *values.shape[1:]), values.dtype),
            np.zeros((count, position_count), item_ids.dtype),
            np.zeros((count, position_count, *positions.shape[1:]), positions.dtype),
        )
    target = sample_format.target_images
    size, conditions = (target.size, target.conditions) if target else (1, 1)
    images = capacity.images if target else 0
    shape = (count, capacity.tokens)
    shapes = dict.fromkeys(TOKEN_COLUMNS, shape) | {"positions": shape + sample_format.tokens.position_shape}
    return PackedRows(
        layout=TokenLayout(
            **{column: np.zeros(shape, np.int32) for column, shape in shapes.items()},
            encoder_indices={field: np.full(shape, -1, np.int32) for field in sample_format.encoder_formats},
        ),
        token_segments=np.zeros(shape, np.int32),
        encoder_inputs=encoder_inputs,
        target_images=np.zeros((count, images, size, size, 3), np.float32),
        condition_positions=np.zeros((count, images, conditions), np.int32),
        target_image_samples=np.full((count, images), -1, np.int32),
        sample_ids=np.full((count, capacity.samples), NO_SAMPLE, np.int32),
    )


def pack_rows(
    rows: Sequence[Sequence[Sample | SampleSizes]], capacity: RowCapacity, sample_format: SampleFormat
) -> PackedRows:
    """Places the samples of every row one after the other; the samples of a row must fit into it.

    The places of a sample of which only the sizes are given stay empty.
    """
    packed = empty_rows(len(rows), capacity, sample_format)
    for row, samples in enumerate(rows):
        _RowFiller(packed, row, sample_format).fill(samples)
    return packed


class _RowFiller:
    """Fills one row and keeps the offsets of its next sample."""

    def __init__(self, packed: PackedRows, row: int, sample_format: SampleFormat) -> None:
        self._packed, self._row, self._format = packed, row, sample_format
        self._tokens = 0
        self._target_images = 0
        self._values = dict.fromkeys(sample_format.encoder_formats, 0)
        self._items = dict.fromkeys(sample_format.encoder_formats, 0)

    def fill(self, samples: Sequence[Sample | SampleSizes]) -> None:
        for number, sample in enumerate(samples):
            if isinstance(sample, SampleSizes):
                self._leave_out(sample)
                continue
            self._packed.sample_ids[self._row, number] = sample.id
            self._add_tokens(sample.layout, number + 1)
            self._add_target_images(sample)
            self._tokens += len(sample.layout.tokens)
            for field in self._format.encoder_formats:
                self._add_encoder_inputs(field, sample.encoder_inputs[field])

    def _leave_out(self, sizes: SampleSizes) -> None:
        self._tokens += sizes.tokens
        self._target_images += sizes.images
        for field in self._format.encoder_formats:
            self._values[field] += sizes.lengths[field]
            self._items[field] += len(sizes.items[field])

    def _add_tokens(self, layout: TokenLayout, segment: int) -> None:
        packed = self._packed
        target = (self._row, slice(self._tokens, self._tokens + len(layout.tokens)))
        for column in TOKEN_COLUMNS:
            getattr(packed.layout, column)[target] = getattr(layout, column)
        packed.token_segments[target] = segment
        for field, encoder_format in self._format.encoder_formats.items():
            index = layout.encoder_indices[field]
            offset = self._values[field] // encoder_format.values_per_token
            packed.layout.encoder_indices[field][target] = np.where(index >= 0, index + offset, index)

    def _add_target_images(self, sample: Sample) -> None:
        packed = self._packed
        target = (self._row, slice(self._target_images, self._target_images + len(sample.target_images)))
        if len(sample.target_images):
            packed.target_images[target] = sample.target_images
            packed.condition_positions[target] = sample.condition_positions + self._tokens
            packed.target_image_samples[target] = sample.id
        self._target_images += len(sample.target_images)

    def _add_encoder_inputs(self, field: str, inputs: EncoderInputs) -> None:
        if not len(inputs.values):
            return
        packed = self._packed.encoder_inputs[field]
        per_position = self._format.encoder_formats[field].values_per_position
        start, end = self._values[field], self._values[field] + len(inputs.values)
        positions = slice(start // per_position, end // per_position)
        packed.values[self._row, start:end] = inputs.values
        packed.item_ids[self._row, positions] = np.where(inputs.item_ids > 0, inputs.item_ids + self._items[field], 0)
        packed.positions[self._row, positions] = inputs.positions
        self._values[field] = end
        self._items[field] += int(inputs.item_ids.max())


def pack_samples(
    samples: Sequence[Sample], rows: int, capacity: RowCapacity, sample_format: SampleFormat
) -> PackedRows:
    """Packs samples first-fit into a number of rows: for prompts and for tests.

    Raises:
        DataError: A sample does not fit into any row, or the samples do not fit into the rows.
    """
    samples_of_rows: list[list[Sample]] = [[] for _ in range(rows)]
    room = np.tile([*capacity.vector, capacity.samples], (rows, 1))  # [rows, quantities and samples]
    for sample in samples:
        if excess := capacity.excess_reason(sample.sizes):
            raise DataError(f"sample {sample.id} ({sample.kind}): {excess}")
        sizes = sample.sizes
        needed = np.array([*(sizes.get(name, 0) for name in capacity.names), 1.0])
        fitting = np.flatnonzero((room >= needed).all(axis=1))
        if not len(fitting):
            raise DataError(f"{len(samples)} samples do not fit into {rows} rows of {capacity}; use more rows")
        samples_of_rows[fitting[0]].append(sample)
        room[fitting[0]] -= needed
    return pack_rows(samples_of_rows, capacity, sample_format)
