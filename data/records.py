"""What a source holds of one training example, before any model is known: a conversation of texts and media."""

import dataclasses
import io
import os
import pathlib

from data.errors import BadSampleError

ROLES = ("system", "user", "assistant")


@dataclasses.dataclass(frozen=True)
class Media:
    """An image or a clip where it lies: a file, a stretch of a file such as a member of a tar, or bytes in memory.

    Attributes:
        where: Names it in messages.
        path: The file; empty for bytes in memory.
        offset, size: The stretch of the file in bytes; a size of -1 is all that follows.
        content: The bytes in memory.
    """

    where: str
    path: str = ""
    offset: int = 0
    size: int = -1
    content: bytes = dataclasses.field(default=b"", repr=False)

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> "Media":
        """A whole file."""
        return cls(where=os.fspath(path), path=os.fspath(path))

    def read(self) -> bytes:
        """All its bytes; raises BadSampleError where they cannot be read, or fewer are there than were promised."""
        if not self.path:
            return self.content
        try:
            with pathlib.Path(self.path).open("rb") as file:
                file.seek(self.offset)
                read = file.read(self.size)
        except OSError as error:
            raise BadSampleError(self.where, error.strerror or type(error).__name__) from error
        if len(read) < self.size:
            raise BadSampleError(self.where, f"{len(read)} of {self.size} bytes are there: the file is cut")
        return read

    def open(self) -> io.BufferedIOBase:
        """A stream over its bytes that a header can be read from without the rest; the caller closes it."""
        if self.path and not self.offset and self.size < 0:
            try:
                return pathlib.Path(self.path).open("rb")
            except OSError as error:
                raise BadSampleError(self.where, error.strerror or type(error).__name__) from error
        return io.BytesIO(self.read())


@dataclasses.dataclass(frozen=True)
class Text:
    """Words."""

    text: str


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image: seen where a user shows it, to be generated where the assistant does."""

    media: Media


@dataclasses.dataclass(frozen=True)
class Clip:
    """Sound that is heard."""

    media: Media


Part = Text | Picture | Clip


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one side says, part after part.

    Attributes:
        role: `system`, `user` or `assistant`; the language loss is on the assistant's texts alone.
        parts: Texts and media in the order in which they stand.
    """

    role: str
    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Record:
    """One training example of a source.

    Attributes:
        key: Names it within its source, for people: a file and line, a tar's key, a row.
        turns: The conversation.
    """

    key: str
    turns: tuple[Turn, ...]
