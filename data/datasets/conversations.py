"""Conversations: records of one or several sources as samples, laid out by a chat template.

This is the data set of all sources of a user's own: `samples_by_kind` gives metadata of samples, sized from headers,
from which the packing plans rows.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np

from configs.common.short_repr import short_repr
from data.datasets.dataset import RandomAccessSamples
from data.datasets.media_parts import MediaParts
from data.datasets.sample_draft import SampleDraft
from data.errors import BadSampleError, DataError
from data.host_faults import retried
from data.media.tilings.tiling import ImageTiling
from data.records import Record, RecordSource
from data.samples.encoder_format import EncoderFormat
from data.samples.image_format import PatchFormat
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata, with_sample_key
from data.samples.token_layout import lay_out_tokens
from data.text.byte_tokenizer import ByteTokenizer
from data.text.image_layout import ImageLayout
from data.text.prompt_format import PromptFormat
from data.text.rendering import (
    ChatElement,
    ConversationTemplate,
    Expand,
    render_conversation,
    render_prompt,
)
from data.text.templates.find_template import find_template
from data.text.tokenizer import Tokenizer
from data.text.video_layout import VideoLayout

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclasses.dataclass(frozen=True, eq=False)
class Conversations:
    """A data set (`data.datasets.dataset.Dataset`) of records; each record source is a kind of samples.

    Attributes:
        split: `train` or `test`.
        train: (kind, records) of the training split; `DataConfig.mixture` says how often each kind is drawn.
        test: (kind, records) of the test split.
        tokenizer: Encodes the texts.
        template: Name of a chat template (`data.text.templates.chat_template.CHAT_TEMPLATES`), or `tokenizer` for the
            template that comes with the tokenizer.
        tiling: How an input image becomes encoder images; None for one at its own resolution, as large as a row
            allows.
        images: How the tokens of an input image are laid out.
        video: How the frames of a video clip are chosen and laid out.
        join_tokens: Number of tokens up to which consecutive records are joined into one sample, as interleaved
            documents are; 0 makes every record a sample.
    """

    split: str
    _: dataclasses.KW_ONLY
    train: tuple[tuple[str, RecordSource], ...] = ()
    test: tuple[tuple[str, RecordSource], ...] = ()
    tokenizer: Tokenizer = ByteTokenizer()
    template: str = "question"
    tiling: ImageTiling | None = None
    images: ImageLayout = ImageLayout()
    video: VideoLayout = VideoLayout()
    join_tokens: int = 0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise DataError(f"Conversations.split is {self.split!r}; choose one of {', '.join(SPLITS)}")
        if self.join_tokens < 0:
            raise DataError(f"Conversations.join_tokens is {self.join_tokens}; it must be 0 or a number of tokens")
        kinds = [kind for kind, _ in self.sources]
        if len(set(kinds)) < len(kinds):
            raise DataError(f"Conversations.{self.split} names {', '.join(kinds)}; give each source a name of its own")
        self._chat_template.check_tokenizer(self.tokenizer)
        self.images.check_tokenizer(self.tokenizer)

    @functools.cached_property
    def _chat_template(self) -> ConversationTemplate:
        return find_template(self.template, self.tokenizer, "Conversations.template")

    @property
    def sources(self) -> tuple[tuple[str, RecordSource], ...]:
        """(kind, records) of the split."""
        return self.train if self.split == "train" else self.test

    @property
    def evaluated_kinds(self) -> tuple[str, ...]:
        """Kinds whose answers are scored on held-out data: all of them."""
        return tuple(kind for kind, _ in self.sources)

    @property
    def prompt_format(self) -> PromptFormat:
        """The template, for answers in text and in images, and how images and clips are laid out."""
        return PromptFormat(self.template, self.template, self.tiling, self.images, self.video)

    def samples_by_kind(self, sample_format: SampleFormat) -> Mapping[str, RandomAccessSamples]:
        """The samples of every kind; raises DataError if the tokenizer lacks a token that the model's modules need."""
        for role in (
            *(encoder.special_token for encoder in sample_format.encoders),
            *(("generate",) if sample_format.target_images else ()),
        ):
            self.tokenizer.special_tokens.require(role)
        builder = SampleBuilder(
            self._chat_template, self.tokenizer, sample_format, self.tiling, self.images, self.video
        )
        return {
            kind: join_records(records, builder, kind, self.join_tokens)
            if self.join_tokens
            else RecordSamples(records, builder, kind)
            for kind, records in self.sources
        }


BuildSample = Callable[[Record, str], SampleMetadata]
"""(record, kind) -> sample metadata, such as a `SampleBuilder`."""


@dataclasses.dataclass(frozen=True, eq=False)
class RecordSamples:
    """The records of a source, one sample each.

    Attributes:
        records: The records.
        build: Makes the sample metadata of a record.
        kind: Kind of the samples.
    """

    records: RecordSource
    build: BuildSample
    kind: str

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> SampleMetadata:
        return self.build(self.records[index], self.kind)


@dataclasses.dataclass(frozen=True, eq=False)
class JoinedRecords:
    """Runs of consecutive records, one sample each.

    Attributes:
        records: The records.
        build: Makes the sample metadata of a record.
        kind: Kind of the samples.
        starts: int[n + 1], the first record of each run, and the number of records.
    """

    records: RecordSource
    build: BuildSample
    kind: str
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> SampleMetadata:
        first, last = int(self.starts[index]), int(self.starts[index + 1])
        records = [self.records[number] for number in range(first, last)]
        key = records[0].key if len(records) == 1 else f"{records[0].key} to {records[-1].key}"
        return self.build(Record(key, tuple(turn for record in records for turn in record.turns)), self.kind)


def join_records(records: RecordSource, build: BuildSample, kind: str, tokens: int) -> JoinedRecords:
    """Joins consecutive records into runs of at most `tokens` tokens, in one pass over the headers of all.

    A record that cannot be used is a run of its own, so that it is refused alone; so is a record of more tokens.
    """
    starts, room = [0], 0
    for number in range(len(records)):
        try:
            sample = retried(lambda number=number: build(records[number], kind), f"record {number} of {kind}")
            length = len(sample.layout.tokens)
        except BadSampleError:
            length = tokens + 1
        if number and length > room:
            starts.append(number)
            room = tokens
        elif not number:
            room = tokens
        room = room - length if length <= tokens else 0
    return JoinedRecords(records, build, kind, np.array([*starts, len(records)]) if len(records) else np.zeros(1, int))


@dataclasses.dataclass(frozen=True, eq=False)
class SampleBuilder:
    """Builds sample metadata from records.

    Attributes:
        template: Chat template.
        tokenizer: Encodes texts.
        sample_format: Formats that the model requires.
        tiling, images, video: See `Conversations`.

    Raises:
        DataError: Two encoders have the same special token, or the layout needs a newline vector and there is none.
    """

    template: ConversationTemplate
    tokenizer: Tokenizer
    sample_format: SampleFormat
    tiling: ImageTiling | None
    images: ImageLayout = ImageLayout()
    video: VideoLayout = VideoLayout()

    def __post_init__(self) -> None:
        if self.images.joined and not self.sample_format.tokens.newline:
            raise DataError(
                "ImageLayout.joined ends rows by the backbone's newline vector, and this backbone has none; set "
                "BackboneConfig.newline = True, or ImageLayout.joined = False"
            )
        encoder_of_token: dict[str, EncoderFormat] = {}
        for encoder in self.sample_format.encoders:
            other = encoder_of_token.setdefault(encoder.special_token, encoder)
            if other is not encoder:
                raise DataError(
                    f"outputs of {other.module} and of {encoder.module} both take the place of the tokenizer's token "
                    f"for {encoder.special_token!r}; set {type(encoder).__name__}.special_token to another one"
                )

    def __call__(self, record: Record, kind: str) -> SampleMetadata:
        """The metadata of a record, from headers alone.

        Raises:
            BadSampleError: The record cannot be used; `where` is its key.
        """
        return self._build(record, kind, render_conversation)

    def prompt(self, record: Record) -> SampleMetadata:
        """The metadata of a conversation up to the assistant's next answer; errors as of a record."""
        return self._build(record, "prompt", render_prompt)

    def image_prompt(self, record: Record) -> SampleMetadata:
        """The metadata of a conversation up to the assistant's next image, with the place of that image."""
        return self._build(record, "image_prompt", render_prompt, generates_image=True)

    @functools.cached_property
    def _placeholders(self) -> dict[str, tuple[int, ...]]:
        """By encoder field, the tokens that stand for its outputs."""
        special = self.tokenizer.special_tokens
        video_tokens = () if special.video is None else (special.video,)
        return {
            field: (special.require(encoder.special_token), *(video_tokens if isinstance(encoder, PatchFormat) else ()))
            for field, encoder in self.sample_format.encoder_formats.items()
        }

    def _build(
        self,
        record: Record,
        kind: str,
        render: Callable[[Record, ConversationTemplate, Tokenizer, Expand], list[ChatElement]],
        generates_image: bool = False,
    ) -> SampleMetadata:
        try:
            media = MediaParts(
                key=record.key,
                patch_format=self.sample_format.encoder_of(PatchFormat),
                tiling=self.tiling,
                images=self.images,
                video=self.video,
            )
            draft = SampleDraft(self.sample_format, self.tokenizer, media)
            for element in render(record, self.template, self.tokenizer, media.expand):
                draft.add(element)
            if generates_image:
                draft.add_empty_target_image()
        except BadSampleError as error:
            raise with_sample_key(record.key, error) from error
        if 0 in draft.loss_positions:
            raise BadSampleError(record.key, "it begins with an answer, which nothing predicts without a bos token")
        layout = lay_out_tokens(draft.tokens, [], [draft.loss_positions], self._placeholders, draft.outputs)
        return SampleMetadata(
            kind=kind,
            layout=layout,
            sample_format=self.sample_format,
            items=draft.items,
            target_images=draft.target_images,
            key=record.key,
        )
