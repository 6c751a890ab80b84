"""Records from Python: a sequence of dictionaries with questions about images, audio or video, and their answers."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import numpy as np
from PIL import Image

from data.errors import BadSampleError
from data.host_faults import bad_sample
from data.media.images import encode_image
from data.records import MEDIA_PARTS, Media, Record, check_index
from data.sources.messages import parse_messages
from data.sources.parsing import require_text

_FIELDS = ("question", "answer", *MEDIA_PARTS)


@runtime_checkable
class IndexedDictionaries(Protocol):
    """Dictionaries by their number: a list, or an object that makes them on access."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Any]: ...


class RecordList:
    """A sequence of dictionaries `{"image": ..., "question": ..., "answer": ...}` as records.

    An image is the path of a file, the bytes of one, a PIL image, or uint8[height, width, 3] or uint8[height, width];
    `audio` and `video` are the path or the bytes of a clip. Each may be a list or left out; `<image>`, `<audio>` and
    `<video>` in the question are their placeholders. The sequence may make its dictionaries on access. Worker
    processes get a pickled copy of it.

    Attributes:
        name: Name of the source.
    """

    def __init__(self, records: IndexedDictionaries, folder: str = "", name: str = "records") -> None:
        """Keeps the sequence; reads nothing.

        Args:
            records: The dictionaries.
            folder: Folder to which paths are relative; the current one by default. They may lead anywhere.
            name: Name of the source.
        """
        self.name = name
        self._records, self._folder = records, folder

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: SupportsIndex) -> Record:
        """The record of a dictionary; raises BadSampleError for one that is incomplete or has other fields."""
        number = check_index(index, len(self))
        key = f"{self.name}[{number}]"
        try:
            fields = self._records[number]
        except OSError as error:  # of a sequence that opens files
            raise bad_sample(key, error) from error
        if not isinstance(fields, Mapping) or not set(fields) <= set(_FIELDS):
            content = ", ".join(map(repr, fields)) if isinstance(fields, Mapping) else type(fields).__name__
            raise BadSampleError(key, f"a record is a dictionary of {', '.join(_FIELDS)}; this one is of {content}")
        media = {
            kind: [part(self._medium(key, kind, value)) for value in _listed(fields[kind])]
            for kind, part in MEDIA_PARTS.items()
            if kind in fields
        }
        messages = [
            {"role": role, "content": require_text(key, f"the {field}", fields.get(field))}
            for role, field in (("user", "question"), ("assistant", "answer"))
        ]
        return Record(key, parse_messages(key, messages, media))

    def _medium(self, key: str, field: str, value: object) -> Media:
        if isinstance(value, str | os.PathLike):
            return Media.from_file(os.path.join(self._folder, value))
        where = f"{key}.{field}"
        if field == "image" and isinstance(value, np.ndarray | Image.Image):
            try:
                return Media(where, content=encode_image(value))
            except (ValueError, OSError) as error:
                raise bad_sample(key, error, str(error)) from error
        if isinstance(value, bytes) and value:
            return Media(where, content=value)
        raise BadSampleError(key, f"the {field} is a {type(value).__name__}, neither a path nor the bytes of a file")


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else [] if value is None else [value]
