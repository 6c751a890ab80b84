"""Outlines: all of a sample but its pixels and sound. Rows are planned from them; what they hold is decoded later."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from data.errors import BadSampleError
from data.formats import SampleFormat, StreamFormat
from data.samples import Layout, Sample, Sizes, Stream, join_streams, no_images


@dataclasses.dataclass(frozen=True, eq=False)
class Item:
    """One image or clip that an encoder reads.

    Attributes:
        field: Its stream, `patches` or `frames`.
        length: How many of these it takes of a row.
        load: Decodes it.
        where: Names it in messages.
    """

    field: str
    length: int
    load: Callable[[], Stream]
    where: str


@dataclasses.dataclass(frozen=True, eq=False)
class Drawing:
    """One image to generate.

    Attributes:
        conditions: int32[q], positions of the tokens whose hidden states condition it.
        load: Decodes it: float32[z, z, 3] in [-1, 1].
    """

    conditions: np.ndarray
    load: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Outline:
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
    layout: Layout
    form: SampleFormat
    items: Sequence[Item] = ()
    drawings: Sequence[Drawing] = ()
    key: str = ""

    @property
    def sizes(self) -> Sizes:
        """What the sample will take of a row."""
        streams = self.form.streams
        lengths = {field: self._lengths(field) for field in streams}
        squares = {field: sum(form.attended(each) ** 2 for each in lengths[field]) for field, form in streams.items()}
        return Sizes(
            tokens=len(self.layout.tokens),
            patches=sum(lengths.get("patches", ())),
            frames=sum(lengths.get("frames", ())),
            images=len(self.drawings),
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
            raise by_key(self.key, error) from error

    def _load(self, number: int) -> Sample:
        parts: dict[str, list[Stream]] = {field: [] for field in self.form.streams}
        for item in self.items:
            stream = item.load()
            if len(stream.values) != item.length:
                raise BadSampleError(
                    item.where, f"{len(stream.values)} {item.field} where its header promised {item.length}"
                )
            if not np.isfinite(stream.values).all():
                raise BadSampleError(item.where, f"some of its {item.field} are not finite")
            parts[item.field].append(stream)
        images, conditions = no_images(self.form)
        if self.drawings:
            images = np.stack([drawing.load() for drawing in self.drawings])
            conditions = np.stack([drawing.conditions for drawing in self.drawings]).astype(np.int32)
        streams = {field: join_streams(parts[field], form) for field, form in self.form.streams.items()}
        return Sample(number, self.kind, self._seated(), streams, images, conditions)

    def _seated(self) -> Layout:
        """The layout with indices that count all cells of a stream, of which those of class tokens give no token."""
        indices = dict(self.layout.indices)
        for field, form in self.form.streams.items():
            if form.front:
                cells = seats(self._lengths(field), form)
                indices[field] = np.append(cells, np.int32(-1))[indices[field]]  # -1 stays: it is the last
        return dataclasses.replace(self.layout, indices=indices)


def seats(lengths: Sequence[int], form: StreamFormat) -> np.ndarray:
    """int32: which cells give backbone tokens, of images or clips of these lengths, one after the other."""
    ends = np.cumsum(lengths, dtype=np.int64) // form.cell
    runs = [np.arange(end - form.tokens(length), end) for end, length in zip(ends, lengths, strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *runs]).astype(np.int32)


def by_key(key: str, error: BadSampleError) -> BadSampleError:
    """The error under a sample's key, which names it in the quarantine; as it is without one."""
    return error if key in ("", error.where) else BadSampleError(key, f"{error.where}: {error.reason}")
