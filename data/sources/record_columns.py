"""Record columns: the columns of a table that a task reads, and the conversion of a row to a record.

Parquet tables and data sets of Hugging Face have them.
"""

import logging
from collections.abc import Mapping
from typing import Any

from data.errors import BadSampleError, DataError
from data.records import MEDIA_PARTS, Media, Record
from data.sources.media_keys import names_media
from data.sources.messages import parse_messages
from data.sources.pair_tasks import PAIR_TASKS
from data.sources.parsing import media_from_path, parse_json, require_text

_LOG = logging.getLogger(__name__)

TABLE_TASKS = (*PAIR_TASKS, "answer", "converse")
"""Tasks that a row of a table may train."""


class RecordColumns:
    """The columns of a table, by their content.

    The cell of a medium is a struct of `bytes` and `path`, as of the `datasets` library's Image and Audio, or bytes, or
    the path of a file. In the tasks `answer` and `converse` it may also be a list of these, or empty.

    Attributes:
        names: The columns that are read.
    """

    def __init__(
        self,
        owner: str,
        task: str,
        *,
        text: str = "text",
        question: str = "question",
        answer: str = "answer",
        image: str = "",
        audio: str = "",
        video: str = "",
    ) -> None:
        """Chooses the columns of a task.

        Args:
            owner: Class whose parameters these are, for messages.
            task: `describe` and `generate` take an image and a text, `transcribe` an audio clip and a text,
                `describe_video` a video clip and a text (see `data.sources.pair_tasks`), `answer` a question, its
                answer and any media, and `converse` a conversation and any media.
            text: Column of the text or the conversation, as `data.sources.messages.parse_messages` reads it, or of its
                JSON text.
            question: Column of the question; `<image>`, `<audio>` and `<video>` in it are placeholders of the media.
            answer: Column of the answer.
            image: Column of images; `image` by default where the task needs one, else none.
            audio: Column of audio clips; `audio` by default where the task needs one, else none.
            video: Column of video clips; `video` by default where the task needs one, else none.

        Raises:
            DataError: The task is unknown, or takes no such column.
        """
        if task not in TABLE_TASKS:
            raise DataError(f"{owner}.task is {task!r}; choose one of {', '.join(TABLE_TASKS)}")
        needed = PAIR_TASKS[task].media if task in PAIR_TASKS else ""
        named = {"image": image, "audio": audio, "video": video}
        if needed and any(column for kind, column in named.items() if kind != needed):
            raise DataError(f"{owner}: the task {task} takes one {needed} and its text; leave the other column out")
        self._owner, self._task = owner, task
        self._warned: set[str] = set()
        self._texts = (question, answer) if task == "answer" else (text,)
        self._columns = {kind: column or (kind if kind == needed else "") for kind, column in named.items()}
        self.names = tuple(column for column in (*self._texts, *self._columns.values()) if column)

    def check(self, where: str, columns: list[str]) -> None:
        """Raises DataError unless a table has the columns; a warning names columns of media that are not read."""
        missing = [name for name in self.names if name not in columns]
        if missing:
            raise DataError(f"{where} has no column {missing[0]}; it has {', '.join(columns)}")
        unread = [name for name in columns if names_media(name) and name not in {*self.names, *self._warned}]
        if unread and self._task not in PAIR_TASKS:
            self._warned.update(unread)
            _LOG.warning(
                "%s: media in the column %s are not read; %s.image, audio or video names the columns that are",
                *(where, " and ".join(unread), self._owner),
            )

    def record(self, key: str, row: Mapping[str, Any], folder: str) -> Record:
        """The record of a row.

        Args:
            key: Name of the row.
            row: Values by column.
            folder: Folder to which the paths of media are relative and within which they lie.

        Raises:
            BadSampleError: The row is incomplete; `where` is its key.
        """
        media = {
            kind: [_medium(f"{key}.{column}", key, folder, cell) for cell in _cells(row[column])]
            for kind, column in self._columns.items()
            if column
        }
        parts = {kind: [MEDIA_PARTS[kind](medium) for medium in files] for kind, files in media.items()}
        if self._task == "converse":
            messages = row[self._texts[0]]
            messages = parse_json(key, messages) if isinstance(messages, str) else messages
            return Record(key, parse_messages(key, messages, parts))
        texts = [require_text(key, f"column {column}", row[column]) for column in self._texts]
        if self._task == "answer":
            messages = [
                {"role": role, "content": text} for role, text in zip(("user", "assistant"), texts, strict=True)
            ]
            return Record(key, parse_messages(key, messages, parts))
        paired = media[PAIR_TASKS[self._task].media]
        if len(paired) != 1:
            raise BadSampleError(key, f"it has {len(paired)} media where the task {self._task} takes one")
        return Record(key, PAIR_TASKS[self._task].turns(paired[0], texts[0]))


def _cells(cell: Any) -> list[Any]:
    """The media of a cell, which may be a list of them, or null."""
    cells = cell if isinstance(cell, list) else [cell]
    return [cell for cell in cells if not _is_null(cell)]


def _is_null(cell: object) -> bool:
    """Whether there is no medium: the cell is null, or a struct whose fields are."""
    return cell is None or (isinstance(cell, Mapping) and cell.get("path") is None and cell.get("bytes") is None)


def _medium(where: str, key: str, folder: str, cell: object) -> Media:
    """The medium of a cell."""
    path = cell
    if isinstance(cell, Mapping):
        path, cell = cell.get("path"), cell.get("bytes")
    if isinstance(cell, bytes):
        if not cell:
            raise BadSampleError(key, "its medium has no bytes")
        return Media(f"{where} ({path})" if isinstance(path, str) else where, content=cell)
    return media_from_path(key, folder, path)
