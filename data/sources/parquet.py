"""Parquet tables as Hugging Face writes them: media columns as structs of bytes and path, and text columns."""

import collections
import itertools
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from data.errors import BadSampleError, DataError
from data.extras import missing_extra
from data.records import Media, Record, check_index
from data.sources.messages import parse_messages
from data.sources.pair_tasks import PAIR_TASKS
from data.sources.parsing import media_from_path, parse_json, require_text
from data.sources.paths import find_files

try:
    import pyarrow
    import pyarrow.parquet
except ImportError as error:
    raise missing_extra("Parquet", "parquet", error) from error

_CONVERSE = "converse"


class ParquetTable:
    """Rows of Parquet files: pairs of a medium and its text, or whole conversations.

    The cell of a medium is a struct of `bytes` and `path`, as of the `datasets` library's Image and Audio, or bytes,
    or the path of a file; a path is relative to its Parquet file. In a conversation the cell may also be a list of
    these, and the messages are as `data.sources.messages.parse_messages` reads them, or a JSON text of that.

    A row is read with its whole row group, and only the last few row groups are cached, so random access costs a row
    group for each row: write files for training with small row groups, or convert them with `write_array_record`.

    Attributes:
        name: Name of the source.
    """

    def __init__(
        self,
        files: str | Sequence[str],
        task: str = "describe",
        text: str = "text",
        image: str = "",
        audio: str = "",
        cached_row_groups: int = 4,
        name: str = "parquet",
    ) -> None:
        """Reads the footers of the files and no row.

        Args:
            files: Paths, with braces and wildcards.
            task: `describe` and `generate` take an image and a text, `transcribe` an audio clip and a text (see
                `data.sources.pair_tasks`), `converse` a conversation and any media.
            text: Column of the text or the conversation.
            image: Column of images; `image` by default where the task needs one, else none.
            audio: Column of audio clips; `audio` by default where the task needs one, else none.
            cached_row_groups: Number of row groups of this source that stay in memory.
            name: Name of the source.

        Raises:
            DataError: A file is missing or not Parquet, a column is missing, there are no rows, or the task is unknown.
        """
        if task not in (*PAIR_TASKS, _CONVERSE):
            raise DataError(f"ParquetTable.task is {task!r}; choose one of {', '.join((*PAIR_TASKS, _CONVERSE))}")
        if cached_row_groups < 1:
            raise DataError(f"ParquetTable.cached_row_groups is {cached_row_groups}; it must be at least 1")
        self.name = name
        self._task = task
        needed = PAIR_TASKS[task].media if task in PAIR_TASKS else ""
        self._text = text
        self._image = image or ("image" if needed == "image" else "")
        self._audio = audio or ("audio" if needed == "audio" else "")
        if needed == "image" and audio or needed == "audio" and image:
            raise DataError(
                f"ParquetTable: the task {task} takes one {needed} and its text; leave the other column out"
            )
        self._columns = [column for column in (self._text, self._image, self._audio) if column]
        self._files = find_files(files)
        group_sizes = [_row_group_sizes(path, self._columns) for path in self._files]
        # Row groups of all files in order: the file and the number within it of each, and its first row.
        self._groups = [(file, group) for file, sizes in enumerate(group_sizes) for group in range(len(sizes))]
        self._starts = np.array([0, *itertools.accumulate(itertools.chain(*group_sizes))], np.int64)
        if not len(self):
            raise DataError(f"{self._files[0]} and the other files have no rows; check the pattern of their paths")
        self._row_groups = _RowGroupCache(cached_row_groups)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: SupportsIndex) -> Record:
        """The record of a row; raises BadSampleError if the row cannot be read or is incomplete."""
        number = check_index(index, len(self))
        group = int(np.searchsorted(self._starts, number, "right")) - 1
        file, group_of_file = self._groups[group]
        first_of_file = self._starts[group - group_of_file]
        path = self._files[file]
        key = f"{path}[{number - first_of_file}]"
        # Arrow raises nearly anything for a damaged page; a text that is not UTF-8 is detected here too.
        try:
            table = self._row_groups.read(path, group_of_file, self._columns)
            row = table.slice(number - int(self._starts[group]), 1).to_pylist()[0]
        except Exception as error:
            raise BadSampleError(key, f"{type(error).__name__}: {error}") from error
        images, clips = (self._media(key, path, row, column) for column in (self._image, self._audio))
        if self._task == _CONVERSE:
            messages = row[self._text]
            messages = parse_json(key, messages) if isinstance(messages, str) else messages
            return Record(key, parse_messages(key, messages, images, clips))
        media = images or clips
        if len(media) != 1:
            raise BadSampleError(key, f"it has {len(media)} media where the task {self._task} takes one")
        return Record(
            key, PAIR_TASKS[self._task].turns(media[0], require_text(key, f"column {self._text}", row[self._text]))
        )

    def _media(self, key: str, path: str, row: Mapping[str, Any], column: str) -> list[Media]:
        """The media in a column of a row; none without a column or with an empty cell."""
        cell = row[column] if column else None
        cells = cell if isinstance(cell, list) else [] if cell is None else [cell]
        folder = str(pathlib.Path(path).parent)
        return [_medium(f"{key}.{column}", key, folder, cell) for cell in cells]


class _RowGroupCache:
    """The row groups read last; threads may share it, and a pickled copy is empty."""

    def __init__(self, max_row_groups: int) -> None:
        self._max_row_groups = max_row_groups
        self._lock = threading.Lock()
        self._tables: collections.OrderedDict[tuple[str, int], pyarrow.Table] = collections.OrderedDict()
        self._footers: dict[str, pyarrow.parquet.FileMetaData] = {}

    def read(self, path: str, group: int, columns: Sequence[str]) -> pyarrow.Table:
        """The columns of a row group. Two threads that miss the same one both read it."""
        with self._lock:
            table = self._tables.get((path, group))
            footer = self._footers.get(path)
            if table is not None:
                self._tables.move_to_end((path, group))
                return table
        with pyarrow.parquet.ParquetFile(path, metadata=footer) as file:
            footer = file.metadata
            table = file.read_row_group(group, columns=list(columns))
        with self._lock:
            self._footers[path] = footer
            self._tables[path, group] = table
            while len(self._tables) > self._max_row_groups:
                self._tables.popitem(last=False)
        return table

    def __reduce__(self) -> tuple[type["_RowGroupCache"], tuple[int]]:
        return _RowGroupCache, (self._max_row_groups,)


def _row_group_sizes(path: str, columns: Sequence[str]) -> list[int]:
    """Number of rows of every row group; raises DataError for a file that is not Parquet or lacks a column."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    except Exception as error:  # as for a damaged page
        raise DataError(f"{path} cannot be read as Parquet ({type(error).__name__}: {error}); replace it") from error
    missing = [column for column in columns if column not in names]
    if missing:
        raise DataError(f"{path} has no column {missing[0]}; it has {', '.join(names)}")
    if any(size < 0 for size in sizes):
        raise DataError(f"{path} cannot be read as Parquet (a row group of {min(sizes)} rows); replace it")
    return sizes


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
