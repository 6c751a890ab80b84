"""Records: training examples as a source holds them, conversations of texts and media, before any model is known.

Sources (`data.sources`) read records, and data sets (`data.datasets`) lay them out as samples for a model.
"""

import dataclasses
import io
import operator
import os
import pathlib
from typing import Any, ClassVar, Protocol, SupportsIndex, runtime_checkable

from configs.modules.encoders import AudioConfig, VisionConfig
from data.errors import BadSampleError
from data.host_faults import bad_sample

ROLES = ("system", "user", "assistant")


class MediaFile(io.FileIO):
    """An opened file that remembers that a read failed, which most decoders take for its end.

    Attributes:
        failed: The first error of a read.
    """

    failed: OSError | None = None

    def readinto(self, buffer: Any, /) -> int:
        """Reads as `FileIO.readinto`, and keeps the error of a failed read."""
        try:
            return super().readinto(buffer)
        except OSError as error:
            self.failed = self.failed or error
            raise

    def readall(self) -> bytes:
        """Reads as `FileIO.readall`, and keeps the error of a failed read."""
        try:
            return super().readall()
        except OSError as error:
            self.failed = self.failed or error
            raise


@dataclasses.dataclass(frozen=True)
class Media:
    """Reference to an encoded image or clip: a file, a range of a file (such as a tar member), or bytes.

    Attributes:
        where: Name in messages.
        path: The file; empty for bytes in memory.
        offset: Where the range begins, in bytes.
        size: Length of the range in bytes; -1 for the rest of the file.
        content: The bytes in memory.
    """

    where: str
    path: str = ""
    offset: int = 0
    size: int = -1
    content: bytes = dataclasses.field(default=b"", repr=False)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Media":
        """A whole file."""
        return cls(where=os.fspath(path), path=os.fspath(path))

    def read(self) -> bytes:
        """Reads all bytes.

        Raises:
            BadSampleError: The file is missing or ends before the range does.
            HostError: The host fails to read it.
        """
        if not self.path:
            return self.content
        try:
            with pathlib.Path(self.path).open("rb") as file:
                file.seek(self.offset)
                content = file.read(self.size)
        except (OSError, MemoryError) as error:
            raise bad_sample(self.where, error, getattr(error, "strerror", None) or "") from error
        if len(content) < self.size:
            raise BadSampleError(self.where, f"{len(content)} of {self.size} bytes are there: the file is truncated")
        return content

    def open(self) -> io.BufferedReader | io.BytesIO:
        """Opens a stream over the bytes, of which a decoder may read the header alone; the caller closes it.

        Raises:
            BadSampleError, HostError: As `read`.
        """
        if self.path and not self.offset and self.size < 0:
            try:
                return io.BufferedReader(MediaFile(self.path))
            except OSError as error:
                raise bad_sample(self.where, error, error.strerror or "") from error
        return io.BytesIO(self.read())


@dataclasses.dataclass(frozen=True)
class TextPart:
    """A text within a turn."""

    text: str


@dataclasses.dataclass(frozen=True)
class ImagePart:
    """An image within a turn: model input in a user's turn, to be generated in an assistant's."""

    media: Media

    field: ClassVar[str] = VisionConfig.field
    content: ClassVar[str] = "an image"


@dataclasses.dataclass(frozen=True)
class AudioPart:
    """An audio clip within a turn: model input."""

    media: Media

    field: ClassVar[str] = AudioConfig.field
    content: ClassVar[str] = "audio"


@dataclasses.dataclass(frozen=True)
class EncoderPart:
    """A file within a turn that an encoder of another kind reads: model input.

    Attributes:
        media: The file.
        field: Field of the encoder that reads it (`EncoderConfig.field`).
    """

    media: Media
    field: str

    @property
    def content(self) -> str:
        """Description of the file's content, for messages."""
        return self.field


@dataclasses.dataclass(frozen=True)
class VideoPart:
    """A video clip within a turn: model input, of which the vision encoder reads frames as it reads images."""

    media: Media

    field: ClassVar[str] = VisionConfig.field
    content: ClassVar[str] = "video"


@dataclasses.dataclass(frozen=True)
class FramesPart:
    """Frames of a clip that the vision encoder reads together; a `VideoPart` becomes several once they are chosen.

    Attributes:
        media: The file of the clip.
        clip: Number of the clip in its record, from 0.
        group: Number of these frames in their clip, from 0.
    """

    media: Media
    clip: int
    group: int

    field: ClassVar[str] = VisionConfig.field
    content: ClassVar[str] = VideoPart.content


@dataclasses.dataclass(frozen=True)
class TilesPart:
    """Encoder images of an input image whose tokens stand together; an `ImagePart` becomes one or several.

    Attributes:
        media: The file of the image.
        image: Number of the image in its record, from 0.
        first, last: Numbers of its first and last encoder image here, the last excluded.
    """

    media: Media
    image: int
    first: int
    last: int

    field: ClassVar[str] = VisionConfig.field
    content: ClassVar[str] = ImagePart.content


StoredPart = ImagePart | AudioPart | VideoPart
"""A medium that sources read, by the types of `MEDIA_PARTS`."""

MediaPart = StoredPart | EncoderPart | FramesPart | TilesPart
ContentPart = TextPart | MediaPart

MEDIA_PARTS: dict[str, type[StoredPart]] = {"image": ImagePart, "audio": AudioPart, "video": VideoPart}
"""By name, the media of sources and prompts; `<name>` is a placeholder in their texts."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """One message of a conversation.

    Attributes:
        role: `system`, `user` or `assistant`; the language loss covers the assistant's texts only.
        parts: Texts and media in order.
    """

    role: str
    parts: tuple[ContentPart, ...]


@dataclasses.dataclass(frozen=True)
class Record:
    """One training example of a source.

    Attributes:
        key: Human-readable name within the source: a file and line, a key within a tar, a row.
        turns: The conversation.
    """

    key: str
    turns: tuple[Turn, ...]


@runtime_checkable
class RecordSource(Protocol):
    """Random access to records in a fixed order.

    Construction reads an index and no payload; payloads are read through `Media`. A source can be pickled, because
    worker processes receive a copy, and may be read from several threads.

    Attributes:
        name: Name in messages and in the quarantine.
    """

    name: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: SupportsIndex) -> Record:
        """Reads a record.

        Raises:
            BadSampleError: The record cannot be used; `where` names it within the source, as its key does.
            IndexError: The index is outside [0, len(self)).
        """
        ...


def check_index(index: SupportsIndex, length: int) -> int:
    """The index as an int; raises IndexError outside [0, length)."""
    number = operator.index(index)
    if not 0 <= number < length:
        raise IndexError(f"record {number} of {length}")
    return number
