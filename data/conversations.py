"""Records of any source as outlines: a chat template lays out the texts, and media take as many tokens as they need."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NoReturn

import numpy as np

from data.audio import clip_samples, read_clip, split_clip
from data.chat import TEMPLATES, ChatTemplate, MediaPiece, Piece, TokenRun, render, render_prompt
from data.errors import BadSampleError, DataError
from data.formats import DrawingFormat, FrameFormat, PatchFormat, SampleFormat
from data.images import resize
from data.items import clip_items, picture_items
from data.joining import joined
from data.outline import Drawing, Item, Outline, by_key
from data.pictures import picture_size, read_picture
from data.prompting import Prompting
from data.records import Media, Picture, Record
from data.samples import lay_out
from data.source import RandomAccess
from data.sources.record_source import RecordSource
from data.tiling import Tiling
from data.tokenizers.byte_level import ByteTokenizer
from data.tokenizers.interface import Tokenizer

SPLITS = ("train", "test")
_NEEDED = {"patches": "image", "frames": "audio", "drawing": "generate"}  # special tokens, by part of the format


@dataclasses.dataclass(frozen=True, eq=False)
class Conversations:
    """A source (`data.source.Source`) of records: a kind of samples for each of its record sources, by name.

    Attributes:
        split: `train` or `test`.
        train, test: (name, records) of each split; how often each name comes is `DataConfig.mixture`.
        tokenizer: Encodes texts.
        template: Name of a chat template (`data.chat.TEMPLATES`).
        tiling: How a picture becomes images; None for one image of its own resolution, as large as a row allows.
        join: Tokens up to which records that follow each other are made one sample, as interleaved documents are; 0
            leaves each alone.
    """

    split: str
    train: tuple[tuple[str, RecordSource], ...] = ()
    test: tuple[tuple[str, RecordSource], ...] = ()
    tokenizer: Tokenizer = ByteTokenizer()
    template: str = "question"
    tiling: Tiling | None = None
    join: int = 0

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise DataError(f"Conversations.split is {self.split!r}; choose one of {', '.join(SPLITS)}")
        if self.template not in TEMPLATES:
            raise DataError(f"Conversations.template is {self.template!r}; choose one of {', '.join(TEMPLATES)}")
        if self.join < 0:
            raise DataError(f"Conversations.join is {self.join}; it must be 0 or a number of tokens")
        names = [name for name, _ in self.sources]
        if len(set(names)) < len(names):
            raise DataError(f"Conversations.{self.split} names {', '.join(names)}; give each source a name of its own")
        TEMPLATES[self.template].require(self.tokenizer)

    @property
    def sources(self) -> tuple[tuple[str, RecordSource], ...]:
        """Those of the split."""
        return {"train": self.train, "test": self.test}[self.split]

    @property
    def judged(self) -> tuple[str, ...]:
        """Kinds whose answers are scored on held-out data: all of them."""
        return tuple(name for name, _ in self.sources)

    @property
    def prompting(self) -> Prompting:
        """Its template, for questions and for what is drawn, and its tiling."""
        return Prompting(self.template, self.template, self.tiling)

    def datasets(self, form: SampleFormat) -> Mapping[str, RandomAccess]:
        """The samples by kind; DataError if the tokenizer lacks a token that the model's modules need."""
        for field, role in _NEEDED.items():
            if getattr(form, field):
                self.tokenizer.special.need(role)
        builder = Builder(TEMPLATES[self.template], self.tokenizer, form, self.tiling)
        return {
            name: joined(records, builder, name, self.join) if self.join else Outlines(records, builder, name)
            for name, records in self.sources
        }


@dataclasses.dataclass(frozen=True, eq=False)
class Outlines:
    """The records of a source, outlined one by one."""

    records: RecordSource
    builder: "Builder"
    kind: str

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Outline:
        return self.builder(self.records[index], self.kind)


@dataclasses.dataclass(frozen=True, eq=False)
class Builder:
    """Outlines records.

    Attributes:
        template, tokenizer: Lay out the texts.
        form: What the model asks.
        tiling: See `Conversations`.
    """

    template: ChatTemplate
    tokenizer: Tokenizer
    form: SampleFormat
    tiling: Tiling | None

    def __call__(self, record: Record, kind: str) -> Outline:
        """The outline of a record, from headers alone; BadSampleError, by the record's key, if it cannot be used."""
        return self._outline(record, kind, render)

    def prompt(self, record: Record) -> Outline:
        """The outline of a conversation up to where the assistant answers next; errors as of a record."""
        return self._outline(record, "prompt", render_prompt)

    def drawing(self, record: Record) -> Outline:
        """The outline of a conversation up to where the assistant draws next, and the place of that picture."""
        return self._outline(record, "drawing", render_prompt, draws=True)

    def _outline(self, record: Record, kind: str, rendered: Callable[..., list[Piece]], draws: bool = False) -> Outline:
        draft = _Draft(self, record.key)
        try:
            for piece in rendered(record, self.template, self.tokenizer):
                draft.add(piece)
            if draws:
                draft.make_room()
        except BadSampleError as error:
            raise by_key(record.key, error) from error
        special = self.tokenizer.special
        placeholders = {field: special.need(_NEEDED[field]) for field in self.form.streams}
        if 0 in draft.losses:
            raise BadSampleError(record.key, "it begins with an answer: nothing predicts that without a bos")
        layout = lay_out(draft.tokens, [], [draft.losses], placeholders)
        return Outline(kind, layout, self.form, draft.items, draft.drawings, record.key)


class _Draft:
    """A sample being put together, piece by piece."""

    def __init__(self, builder: Builder, key: str) -> None:
        self._form, self._tiling, self._key = builder.form, builder.tiling, key
        self._special = builder.tokenizer.special
        self.tokens: list[int] = []
        self.losses: list[int] = []
        self.items: list[Item] = []
        self.drawings: list[Drawing] = []

    def add(self, piece: TokenRun | MediaPiece) -> None:
        if isinstance(piece, TokenRun):
            if piece.in_loss:
                self.losses += range(len(self.tokens), len(self.tokens) + len(piece.ids))
            self.tokens += piece.ids
        elif piece.generated:
            self._draw(piece.part.media)
        elif isinstance(piece.part, Picture):
            self._show(piece.part.media)
        else:
            self._play(piece.part.media)

    def make_room(self) -> None:
        """The place of a picture that is still to be drawn."""
        self._generate(lambda form: np.zeros((form.size, form.size, 3), np.float32))

    def _draw(self, media: Media) -> None:
        picture_size(media)  # what cannot be read is refused before rows are planned
        self._generate(lambda form: resize(read_picture(media), form.size))

    def _generate(self, load: Callable[[DrawingFormat], np.ndarray]) -> None:
        form = self._form.drawing or self._refuse("the assistant shows a picture, and the model has no generator")
        first = len(self.tokens)
        self.tokens += [self._special.need("generate")] * form.conditions
        conditions = np.arange(first, len(self.tokens), dtype=np.int32)
        self.drawings.append(Drawing(conditions, lambda: load(form)))

    def _show(self, media: Media) -> None:
        form = self._form.patches or self._refuse("it shows a picture, and the model has no vision encoder")
        size = picture_size(media)
        self._read("image", form, picture_items(lambda: read_picture(media), size, form, media.where, self._tiling))

    def _play(self, media: Media) -> None:
        form = self._form.frames or self._refuse("it plays a clip, and the model has no audio encoder")
        parts = split_clip(clip_samples(media))
        self._read("audio", form, clip_items(lambda: read_clip(media), parts, form, media.where))

    def _read(self, role: str, form: PatchFormat | FrameFormat, items: list[Item]) -> None:
        """Each item's placeholders between the tokenizer's delimiters, where it has them."""
        start, end = (getattr(self._special, f"{role}_{side}") for side in ("start", "end"))
        for item in items:
            self.tokens += [token for token in (start,) if token is not None]
            self.tokens += [self._special.need(role)] * form.tokens(item.length)
            self.tokens += [token for token in (end,) if token is not None]
        self.items += items

    def _refuse(self, reason: str) -> NoReturn:
        raise BadSampleError(self._key, reason)
