"""Packing: several samples in one row of fixed capacities, with indices that count from the row's start."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from data.data_config import CAPACITY_FIELDS, RowCapacity
from data.errors import DataError
from data.samples.sample import EncoderInputs, Sample, empty_encoder_inputs
from data.samples.sample_format import SampleFormat
from data.samples.token_layout import TOKEN_COLUMNS, TokenLayout


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows of packed samples, all indices counted from the row's start; dimensions as in `data.packing.global_batch`.

    Attributes:
        layout: The token columns, each [n, s].
        token_segments: int32[n, s], 0 for padding, else number of the sample within the row.
        streams: By field; `values` [n, p, w], `items` [n, p / stride], 0 for padding, else number of the image or clip
            within the row, `positions` [n, p / stride, ...].
        images: float32[n, g, z, z, 3].
        conditions: int32[n, g, q].
        image_samples: int32[n, g], sample id of each generated image, -1 for padding.
        sample_ids: int32[n, most samples a row], -1 for none.
    """

    layout: TokenLayout
    token_segments: np.ndarray
    encoder_inputs: Mapping[str, EncoderInputs]
    target_images: np.ndarray
    condition_positions: np.ndarray
    target_image_samples: np.ndarray
    sample_ids: np.ndarray


def empty_rows(count: int, capacity: RowCapacity, form: SampleFormat) -> PackedRows:
    """Rows without a sample."""
    shape = (count, capacity.tokens)
    streams = {}
    for field, each in form.encoder_formats.items():
        values, items, positions = empty_encoder_inputs(each)
        length = getattr(capacity, field)
        halves = length // each.values_per_position
        streams[field] = EncoderInputs(
            np.zeros((count, length, *values.shape[1:]), values.dtype),
            np.zeros((count, halves), items.dtype),
            np.zeros((count, halves, *positions.shape[1:]), positions.dtype),
        )
    size, conditions = (form.target_images.size, form.target_images.conditions) if form.target_images else (1, 1)
    images = capacity.images if form.target_images else 0
    return PackedRows(
        layout=TokenLayout(
            *(np.zeros(shape, np.int32) for _ in TOKEN_COLUMNS),
            encoder_indices={field: np.full(shape, -1, np.int32) for field in form.encoder_formats},
        ),
        token_segments=np.zeros(shape, np.int32),
        encoder_inputs=streams,
        target_images=np.zeros((count, images, size, size, 3), np.float32),
        condition_positions=np.zeros((count, images, conditions), np.int32),
        target_image_samples=np.full((count, images), -1, np.int32),
        sample_ids=np.full((count, capacity.samples), -1, np.int32),
    )


def pack_rows(rows: Sequence[Sequence[Sample]], capacity: RowCapacity, form: SampleFormat) -> PackedRows:
    """Lays every row's samples one behind the other; what each row is given must fit it."""
    packed = empty_rows(len(rows), capacity, form)
    for row, samples in enumerate(rows):
        _Row(packed, row, form).fill(samples)
    return packed


class _Row:
    """One row being filled: how far each of its parts is."""

    def __init__(self, packed: PackedRows, row: int, form: SampleFormat) -> None:
        self._packed, self._row, self._form = packed, row, form
        self._tokens = self._images = 0
        self._places = dict.fromkeys(form.encoder_formats, 0)
        self._items = dict.fromkeys(form.encoder_formats, 0)

    def fill(self, samples: Sequence[Sample]) -> None:
        for number, sample in enumerate(samples):
            self._packed.sample_ids[self._row, number] = sample.id
            self._add_tokens(sample.layout, number + 1)
            self._add_images(sample)
            self._tokens += len(sample.layout.tokens)
            for field in self._form.encoder_formats:
                self._add_stream(field, sample.encoder_inputs[field])

    def _add_tokens(self, layout: TokenLayout, segment: int) -> None:
        packed, here = self._packed, (self._row, slice(self._tokens, self._tokens + len(layout.tokens)))
        for name in TOKEN_COLUMNS:
            getattr(packed.layout, name)[here] = getattr(layout, name)
        packed.token_segments[here] = segment
        for field, form in self._form.encoder_formats.items():
            index = layout.encoder_indices[field]
            first = self._places[field] // form.values_per_token
            packed.layout.encoder_indices[field][here] = np.where(index >= 0, index + first, -1)

    def _add_images(self, sample: Sample) -> None:
        packed, here = self._packed, (self._row, slice(self._images, self._images + len(sample.target_images)))
        if len(sample.target_images):
            packed.target_images[here] = sample.target_images
            packed.condition_positions[here] = sample.condition_positions + self._tokens
            packed.target_image_samples[here] = sample.id
        self._images += len(sample.target_images)

    def _add_stream(self, field: str, stream: EncoderInputs) -> None:
        target, stride, first = (
            self._packed.encoder_inputs[field],
            self._form.encoder_formats[field].values_per_position,
            self._places[field],
        )
        if not len(stream.values):
            return
        last = first + len(stream.values)
        target.values[self._row, first:last] = stream.values
        numbers = np.where(stream.item_ids > 0, stream.item_ids + self._items[field], 0)
        target.item_ids[self._row, first // stride : last // stride] = numbers
        target.positions[self._row, first // stride : last // stride] = stream.positions
        self._places[field] = last
        self._items[field] += int(stream.item_ids.max())


def pack_samples(samples: Sequence[Sample], rows: int, capacity: RowCapacity, form: SampleFormat) -> PackedRows:
    """Packs given samples first-fit into `rows` rows, for prompts and for tests.

    Raises:
        DataError: A sample that fits no row, or more samples than the rows hold.
    """
    filled: list[list[Sample]] = [[] for _ in range(rows)]
    room = np.tile([*capacity.vector, capacity.samples], (rows, 1))
    for sample in samples:
        if excess := capacity.excess_reason(sample.sizes):
            raise DataError(f"sample {sample.id} ({sample.kind}): {excess}")
        wanted = np.array([*(sample.sizes[name] for name in CAPACITY_FIELDS), 1.0])
        fitting = np.flatnonzero((room >= wanted).all(axis=1))
        if not len(fitting):
            raise DataError(f"{len(samples)} samples do not fit {rows} rows of {capacity}; give them more rows")
        filled[fitting[0]].append(sample)
        room[fitting[0]] -= wanted
    return pack_rows(filled, capacity, form)
