"""LLaVA's layout: a JSON array or JSON lines of conversations, and a folder of images, audio or video."""

import pathlib
from collections.abc import Mapping
from typing import SupportsIndex

from data.errors import BadSampleError, DataError
from data.records import MEDIA_PARTS, Media, Record, StoredPart, check_index
from data.sources.json_index import index_json_array, index_json_lines, starts_with_json_array
from data.sources.media_keys import media_values
from data.sources.messages import parse_messages
from data.sources.parsing import decode_utf8, media_from_path, parse_json
from data.sources.paths import check_file, check_folder


class LlavaJson:
    r"""Conversations about images, audio or video, or of text alone.

    An entry is `{"id": ..., "image": "a.jpg", "conversations": [{"from": "human", "value": "<image>\nWhat is it?"},
    {"from": "gpt", "value": "A ship."}]}`. `image`, `audio` and `video` name one file, a list of files, or none; so do
    `images`, `image_path` and the like (`data.sources.media_keys.media_values`), and another key that names media is
    refused. `<image>`, `<audio>` and `<video>` in the texts are their placeholders; files of a kind without
    placeholders precede the user's first text. Where an entry has clips and no images, `<image>` stands for the clips
    too (LLaVA-Video). See `data.sources.messages.parse_messages` for other forms of messages.

    Only the index is kept in memory, 24 bytes an entry; entries are read on access. A malformed line of JSON lines is
    an unreadable sample, a malformed array an error at the start.

    Attributes:
        name: Name of the source.
    """

    def __init__(self, path: str, folder: str = "", name: str = "") -> None:
        """Indexes the entries; reads no media.

        Args:
            path: JSON array or JSON lines, distinguished by their first character.
            folder: Folder to which the paths of entries are relative; the file's own by default.
            name: Name of the source; the file's name without its suffix by default.

        Raises:
            DataError: The file or folder is missing, the array is malformed, or there are no entries.
        """
        check_file(path)
        self._path = path
        self._folder = folder or str(pathlib.Path(path).parent)
        check_folder(self._folder)
        self.name = name or pathlib.Path(path).stem
        self._is_array = starts_with_json_array(path)
        self._index = index_json_array(path) if self._is_array else index_json_lines(path)
        if not len(self._index):
            raise DataError(f"{path} has no entries; replace it or leave it out")

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: SupportsIndex) -> Record:
        """The record of an entry; raises BadSampleError if it is malformed or placeholders and files do not match."""
        number = check_index(index, len(self))
        offset, size, line = map(int, self._index[number])
        file = pathlib.Path(self._path).name
        key = f"{file}[{number}]" if self._is_array else f"{file}:{line}"
        entry = parse_json(key, decode_utf8(key, Media(key, self._path, offset, size).read()))
        if not isinstance(entry, Mapping):
            raise BadSampleError(key, "the entry is not an object")
        messages = entry.get("conversations")
        values = media_values(key, entry, ("id", "conversations"))
        media = {kind: self._parts(key, kind, value) for kind, value in values.items()}
        if media.get("video") and not media.get("image") and "<image>" in str(messages):
            media |= {"image": media["video"], "video": []}
        return Record(key, parse_messages(key, messages, media))

    def _parts(self, key: str, kind: str, value: object) -> list[StoredPart]:
        values = value if isinstance(value, list) else [value] if value else []
        return [MEDIA_PARTS[kind](media_from_path(key, self._folder, path)) for path in values]
