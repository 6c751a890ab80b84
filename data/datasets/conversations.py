"""Records of any source as outlines: a chat template lays out the texts, and media take as many tokens as they need."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NoReturn

import numpy as np

from data.datasets.dataset import RandomAccessSamples
from data.datasets.joined_records import join_records
from data.errors import BadSampleError, DataError
from data.media.audio import audio_length, read_audio
from data.media.images import image_size, read_image
from data.media.mel import split_into_chunks
from data.media.patches import resize_to_square
from data.media.tiling import ImageTiling
from data.records import ImagePart, Media, Record, RecordSource
from data.samples.media_items import audio_items, image_items
from data.samples.sample_format import FrameFormat, PatchFormat, SampleFormat, TargetImageFormat
from data.samples.sample_metadata import MediaItem, SampleMetadata, TargetImage, with_sample_key
from data.samples.token_layout import lay_out_tokens
from data.text.byte_tokenizer import ByteTokenizer
from data.text.chat_template import (
    CHAT_TEMPLATES,
    ChatElement,
    ChatTemplate,
    MediaPlaceholder,
    TokenRun,
    render_conversation,
    render_prompt,
)
from data.text.prompt_format import PromptFormat
from data.text.tokenizer import Tokenizer

SPLITS = ("train", "test")
_NEEDED = {"patches": "image", "frames": "audio", "target_images": "generate"}  # special tokens, by part of the format


@dataclasses.dataclass(frozen=True, eq=False)
class Conversations:
    """A source (`data.datasets.dataset.Source`) of records: a kind of samples for each of its record sources, by name.

    Attributes:
        split: `train` or `test`.
        train, test: (name, records) of each split; how often each name comes is `DataConfig.mixture`.
        tokenizer: Encodes texts.
        template: Name of a chat template (`data.text.chat_template.TEMPLATES`).
        tiling: How a picture becomes images; None for one image of its own resolution, as large as a row allows.
        join: Tokens up to which records that follow each other are made one sample, as interleaved documents are; 0
            leaves each alone.
    """

    split: str
    train: tuple[tuple[str, RecordSource], ...] = ()
    test: tuple[tuple[str, RecordSource], ...] = ()
    tokenizer: Tokenizer = ByteTokenizer()
    template: str = "question"
    tiling: ImageTiling | None = None
    join_tokens: int = 0

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise DataError(f"Conversations.split is {self.split!r}; choose one of {', '.join(SPLITS)}")
        if self.template not in CHAT_TEMPLATES:
            raise DataError(f"Conversations.template is {self.template!r}; choose one of {', '.join(CHAT_TEMPLATES)}")
        if self.join_tokens < 0:
            raise DataError(f"Conversations.join_tokens is {self.join_tokens}; it must be 0 or a number of tokens")
        names = [name for name, _ in self.sources]
        if len(set(names)) < len(names):
            raise DataError(f"Conversations.{self.split} names {', '.join(names)}; give each source a name of its own")
        CHAT_TEMPLATES[self.template].check_tokenizer(self.tokenizer)

    @property
    def sources(self) -> tuple[tuple[str, RecordSource], ...]:
        """Those of the split."""
        return {"train": self.train, "test": self.test}[self.split]

    @property
    def evaluated_kinds(self) -> tuple[str, ...]:
        """Kinds whose answers are scored on held-out data: all of them."""
        return tuple(name for name, _ in self.sources)

    @property
    def prompt_format(self) -> PromptFormat:
        """Its template, for questions and for what is drawn, and its tiling."""
        return PromptFormat(self.template, self.template, self.tiling)

    def samples_by_kind(self, form: SampleFormat) -> Mapping[str, RandomAccessSamples]:
        """The samples by kind; DataError if the tokenizer lacks a token that the model's modules need."""
        for field, role in _NEEDED.items():
            if getattr(form, field):
                self.tokenizer.special_tokens.require(role)
        builder = SampleBuilder(CHAT_TEMPLATES[self.template], self.tokenizer, form, self.tiling)
        return {
            name: join_records(records, builder, name, self.join_tokens)
            if self.join_tokens
            else RecordSamples(records, builder, name)
            for name, records in self.sources
        }


@dataclasses.dataclass(frozen=True, eq=False)
class RecordSamples:
    """The records of a source, outlined one by one."""

    records: RecordSource
    builder: "SampleBuilder"
    kind: str

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> SampleMetadata:
        return self.builder(self.records[index], self.kind)


@dataclasses.dataclass(frozen=True, eq=False)
class SampleBuilder:
    """Outlines records.

    Attributes:
        template, tokenizer: Lay out the texts.
        form: What the model asks.
        tiling: See `Conversations`.
    """

    template: ChatTemplate
    tokenizer: Tokenizer
    form: SampleFormat
    tiling: ImageTiling | None

    def __call__(self, record: Record, kind: str) -> SampleMetadata:
        """The outline of a record, from headers alone; BadSampleError, by the record's key, if it cannot be used."""
        return self._outline(record, kind, render_conversation)

    def prompt(self, record: Record) -> SampleMetadata:
        """The outline of a conversation up to where the assistant answers next; errors as of a record."""
        return self._outline(record, "prompt", render_prompt)

    def image_prompt(self, record: Record) -> SampleMetadata:
        """The outline of a conversation up to where the assistant draws next, and the place of that picture."""
        return self._outline(record, "drawing", render_prompt, draws=True)

    def _outline(
        self, record: Record, kind: str, rendered: Callable[..., list[ChatElement]], draws: bool = False
    ) -> SampleMetadata:
        draft = _Draft(self, record.key)
        try:
            for piece in rendered(record, self.template, self.tokenizer):
                draft.add(piece)
            if draws:
                draft.make_room()
        except BadSampleError as error:
            raise with_sample_key(record.key, error) from error
        special = self.tokenizer.special_tokens
        placeholders = {field: special.require(_NEEDED[field]) for field in self.form.encoder_formats}
        if 0 in draft.losses:
            raise BadSampleError(record.key, "it begins with an answer: nothing predicts that without a bos")
        layout = lay_out_tokens(draft.tokens, [], [draft.losses], placeholders)
        return SampleMetadata(kind, layout, self.form, draft.items, draft.target_images, record.key)


class _Draft:
    """A sample being put together, piece by piece."""

    def __init__(self, builder: SampleBuilder, key: str) -> None:
        self._form, self._tiling, self._key = builder.form, builder.tiling, key
        self._special = builder.tokenizer.special_tokens
        self.tokens: list[int] = []
        self.losses: list[int] = []
        self.items: list[MediaItem] = []
        self.target_images: list[TargetImage] = []

    def add(self, piece: TokenRun | MediaPlaceholder) -> None:
        if isinstance(piece, TokenRun):
            if piece.in_loss:
                self.losses += range(len(self.tokens), len(self.tokens) + len(piece.ids))
            self.tokens += piece.ids
        elif piece.generated:
            self._draw(piece.part.media)
        elif isinstance(piece.part, ImagePart):
            self._show(piece.part.media)
        else:
            self._play(piece.part.media)

    def make_room(self) -> None:
        """The place of a picture that is still to be drawn."""
        self._generate(lambda form: np.zeros((form.size, form.size, 3), np.float32))

    def _draw(self, media: Media) -> None:
        image_size(media)  # what cannot be read is refused before rows are planned
        self._generate(lambda form: resize_to_square(read_image(media), form.size))

    def _generate(self, load: Callable[[TargetImageFormat], np.ndarray]) -> None:
        form = self._form.target_images or self._refuse("the assistant shows a picture, and the model has no generator")
        first = len(self.tokens)
        self.tokens += [self._special.require("generate")] * form.conditions
        conditions = np.arange(first, len(self.tokens), dtype=np.int32)
        self.target_images.append(TargetImage(conditions, lambda: load(form)))

    def _show(self, media: Media) -> None:
        form = self._form.patches or self._refuse("it shows a picture, and the model has no vision encoder")
        size = image_size(media)
        self._read("image", form, image_items(lambda: read_image(media), size, form, media.where, self._tiling))

    def _play(self, media: Media) -> None:
        form = self._form.frames or self._refuse("it plays a clip, and the model has no audio encoder")
        parts = split_into_chunks(audio_length(media))
        self._read("audio", form, audio_items(lambda: read_audio(media), parts, form, media.where))

    def _read(self, role: str, form: PatchFormat | FrameFormat, items: list[MediaItem]) -> None:
        """Each item's placeholders between the tokenizer's delimiters, where it has them."""
        start, end = (getattr(self._special, f"{role}_{side}") for side in ("start", "end"))
        for item in items:
            self.tokens += [token for token in (start,) if token is not None]
            self.tokens += [self._special.require(role)] * form.token_count(item.length)
            self.tokens += [token for token in (end,) if token is not None]
        self.items += items

    def _refuse(self, reason: str) -> NoReturn:
        raise BadSampleError(self._key, reason)
