"""LLaVA's layout: a JSON array or JSON lines of conversations, and a folder of images or sound."""

import pathlib
from collections.abc import Mapping
from typing import SupportsIndex

from data.errors import BadSampleError, DataError
from data.records import Media, Record, check_index
from data.sources.json_index import index_json_array, index_json_lines, starts_with_json_array
from data.sources.messages import parse_messages
from data.sources.parsing import decode_utf8, media_from_path, parse_json
from data.sources.paths import check_file, check_folder

_UNREAD = ("video", "videos")


class LlavaJson:
    """Conversations about images, about sound, or of text alone.

    An entry is `{"id": ..., "image": "a.jpg", "conversations": [{"from": "human", "value": "<image>\\nWhat is it?"},
    {"from": "gpt", "value": "A ship."}]}`. `image` and `audio` name one file, a list of files, or none; `<image>` and
    `<audio>` in the texts say where each is shown, and files without any mark come before the user's first words.
    See `data.sources.messages.conversation` for what else a message may look like.

    Only the places of the entries are kept, 24 bytes an entry; entries are read when asked for. A malformed line of
    JSON lines is a bad sample, a malformed array an error at the start.

    Attributes:
        name: Names the source.
    """

    def __init__(self, path: str, folder: str = "", name: str = "") -> None:
        """Finds the entries; reads no image.

        Args:
            path: The JSON array or the JSON lines, told apart by their first character.
            folder: What the entries' paths are relative to; the file's own folder by default.
            name: Names the source; the file's name without its suffix by default.

        Raises:
            DataError: A file or folder that is not there, a malformed array, or nothing in the file.
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
        """The record of an entry; raises BadSampleError for one that is malformed or whose marks do not fit."""
        place = check_index(index, len(self))
        offset, size, line = map(int, self._index[place])
        file = pathlib.Path(self._path).name
        key = f"{file}[{place}]" if self._is_array else f"{file}:{line}"
        entry = parse_json(key, decode_utf8(key, Media(key, self._path, offset, size).read()))
        if not isinstance(entry, Mapping):
            raise BadSampleError(key, "the entry is no object")
        unread = [field for field in _UNREAD if entry.get(field)]
        if unread:
            raise BadSampleError(key, f"it has {unread[0]}, which this source does not read")
        images, clips = (self._media(key, entry.get(field)) for field in ("image", "audio"))
        return Record(key, parse_messages(key, entry.get("conversations"), images, clips))

    def _media(self, key: str, value: object) -> list[Media]:
        values = value if isinstance(value, list) else [value] if value else []
        return [media_from_path(key, self._folder, path) for path in values]
