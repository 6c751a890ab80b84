"""Packing: several samples in one row of fixed capacities, with indices that count from the row's start."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from data.errors import DataError
from data.formats import SampleFormat
from data.samples import COLUMNS, Layout, Sample, Sizes, Stream, empty_stream

CAPACITIES = ("tokens", "patches", "frames", "images")


@dataclasses.dataclass(frozen=True)
class Capacity:
    """What one row holds at most.

    Attributes:
        tokens, patches, frames, images: Backbone tokens s, encoder patches p, mel frames f, generated images g; 0 of
            what the model has no module for.
        samples: Samples, whatever their size.
    """

    tokens: int
    patches: int
    images: int
    samples: int
    frames: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            least = 1 if field.name in ("tokens", "samples") else 0
            if getattr(self, field.name) < least:
                raise DataError(
                    f"capacity of {getattr(self, field.name)} {field.name} a row; it must be at least {least}"
                )

    @property
    def vector(self) -> np.ndarray:
        """float64[4], in the order of `CAPACITIES`."""
        return np.array([getattr(self, name) for name in CAPACITIES], float)

    def excess(self, sizes: Sizes | Mapping[str, int]) -> str | None:
        """Why a sample of these sizes fits no row and what would mend it, or None if it fits."""
        given = sizes if isinstance(sizes, Mapping) else sizes._asdict()
        too_much = [
            f"{given[name]} {name} where a row holds {getattr(self, name)}"
            for name in CAPACITIES
            if given[name] > getattr(self, name)
        ]
        return f"{' and '.join(too_much)}; raise the row's capacity" if too_much else None


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows of packed samples, all indices counted from the row's start; dimensions as in `data.batch`.

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

    layout: Layout
    token_segments: np.ndarray
    streams: Mapping[str, Stream]
    images: np.ndarray
    conditions: np.ndarray
    image_samples: np.ndarray
    sample_ids: np.ndarray


def empty_rows(count: int, capacity: Capacity, form: SampleFormat) -> PackedRows:
    """Rows without a sample."""
    shape = (count, capacity.tokens)
    streams = {}
    for field, each in form.streams.items():
        values, items, positions = empty_stream(each)
        length = getattr(capacity, field)
        halves = length // each.stride
        streams[field] = Stream(
            np.zeros((count, length, *values.shape[1:]), values.dtype),
            np.zeros((count, halves), items.dtype),
            np.zeros((count, halves, *positions.shape[1:]), positions.dtype),
        )
    size, conditions = (form.drawing.size, form.drawing.conditions) if form.drawing else (1, 1)
    images = capacity.images if form.drawing else 0
    return PackedRows(
        layout=Layout(
            *(np.zeros(shape, np.int32) for _ in COLUMNS),
            indices={field: np.full(shape, -1, np.int32) for field in form.streams},
        ),
        token_segments=np.zeros(shape, np.int32),
        streams=streams,
        images=np.zeros((count, images, size, size, 3), np.float32),
        conditions=np.zeros((count, images, conditions), np.int32),
        image_samples=np.full((count, images), -1, np.int32),
        sample_ids=np.full((count, capacity.samples), -1, np.int32),
    )


def pack_rows(rows: Sequence[Sequence[Sample]], capacity: Capacity, form: SampleFormat) -> PackedRows:
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
        self._places = dict.fromkeys(form.streams, 0)
        self._items = dict.fromkeys(form.streams, 0)

    def fill(self, samples: Sequence[Sample]) -> None:
        for number, sample in enumerate(samples):
            self._packed.sample_ids[self._row, number] = sample.id
            self._add_tokens(sample.layout, number + 1)
            self._add_images(sample)
            self._tokens += len(sample.layout.tokens)
            for field in self._form.streams:
                self._add_stream(field, sample.streams[field])

    def _add_tokens(self, layout: Layout, segment: int) -> None:
        packed, here = self._packed, (self._row, slice(self._tokens, self._tokens + len(layout.tokens)))
        for name in COLUMNS:
            getattr(packed.layout, name)[here] = getattr(layout, name)
        packed.token_segments[here] = segment
        for field, form in self._form.streams.items():
            index = layout.indices[field]
            first = self._places[field] // form.cell
            packed.layout.indices[field][here] = np.where(index >= 0, index + first, -1)

    def _add_images(self, sample: Sample) -> None:
        packed, here = self._packed, (self._row, slice(self._images, self._images + len(sample.images)))
        if len(sample.images):
            packed.images[here] = sample.images
            packed.conditions[here] = sample.conditions + self._tokens
            packed.image_samples[here] = sample.id
        self._images += len(sample.images)

    def _add_stream(self, field: str, stream: Stream) -> None:
        target, stride, first = self._packed.streams[field], self._form.streams[field].stride, self._places[field]
        if not len(stream.values):
            return
        last = first + len(stream.values)
        target.values[self._row, first:last] = stream.values
        numbers = np.where(stream.items > 0, stream.items + self._items[field], 0)
        target.items[self._row, first // stride : last // stride] = numbers
        target.positions[self._row, first // stride : last // stride] = stream.positions
        self._places[field] = last
        self._items[field] += int(stream.items.max())


def pack_samples(samples: Sequence[Sample], rows: int, capacity: Capacity, form: SampleFormat) -> PackedRows:
    """Packs given samples first-fit into `rows` rows, for prompts and for tests.

    Raises:
        DataError: A sample that fits no row, or more samples than the rows hold.
    """
    filled: list[list[Sample]] = [[] for _ in range(rows)]
    room = np.tile([*capacity.vector, capacity.samples], (rows, 1))
    for sample in samples:
        if excess := capacity.excess(sample.sizes):
            raise DataError(f"sample {sample.id} ({sample.kind}): {excess}")
        wanted = np.array([*(sample.sizes[name] for name in CAPACITIES), 1.0])
        fitting = np.flatnonzero((room >= wanted).all(axis=1))
        if not len(fitting):
            raise DataError(f"{len(samples)} samples do not fit {rows} rows of {capacity}; give them more rows")
        filled[fitting[0]].append(sample)
        room[fitting[0]] -= wanted
    return pack_rows(filled, capacity, form)
