"""Parquet tables as Hugging Face writes them: media columns as structs of bytes and path, and text columns."""

import collections
import itertools
import pathlib
import threading
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from data.errors import DataError
from data.extras import missing_extra
from data.host_faults import bad_sample
from data.records import Record, check_index
from data.sources.paths import check_folder, find_files
from data.sources.record_columns import RecordColumns

try:
    import pyarrow
    import pyarrow.parquet
except ImportError as error:
    raise missing_extra("Parquet", "parquet", error) from error


class ParquetTable:
    """Rows of Parquet files, as records; `data.sources.record_columns.RecordColumns` describes the columns.

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
        question: str = "question",
        answer: str = "answer",
        image: str = "",
        audio: str = "",
        video: str = "",
        folder: str = "",
        cached_row_groups: int = 4,
        name: str = "parquet",
    ) -> None:
        """Reads the footers of the files and no row.

        Args:
            files: Paths, with braces and wildcards.
            task: The task that a row trains, and so its columns: see `data.sources.record_columns.RecordColumns`.
            text, question, answer, image, audio, video: Names of the columns.
            folder: Folder of the media that rows name by a path; the folder of the Parquet file by default.
            cached_row_groups: Number of row groups of this source that stay in memory.
            name: Name of the source.

        Raises:
            DataError: A file is missing or not Parquet, a column is missing, there are no rows, or the task is unknown.
        """
        self._columns = RecordColumns(
            "ParquetTable",
            task,
            text=text,
            question=question,
            answer=answer,
            image=image,
            audio=audio,
            video=video,
        )
        if cached_row_groups < 1:
            raise DataError(f"ParquetTable.cached_row_groups is {cached_row_groups}; it must be at least 1")
        if folder:
            check_folder(folder)
        self.name = name
        self._folder = folder
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
            table = self._row_groups.read(path, group_of_file, self._columns.names)
            row = table.slice(number - int(self._starts[group]), 1).to_pylist()[0]
        except Exception as error:
            raise bad_sample(key, error) from error
        return self._columns.record(key, row, self._folder or str(pathlib.Path(path).parent))


class _RowGroupCache:
    """The row groups read last; threads may share it, and a pickled copy is empty."""

    def __init__(self, max_row_groups: int) -> None:
        self._max_row_groups = max_row_groups
        self._lock = threading.Lock()
        self._tables: collections.OrderedDict[tuple[str, int], pyarrow.Table] = collections.OrderedDict()
        self._footers: dict[str, pyarrow.parquet.FileMetaData] = {}

    def read(self, path: str, group: int, columns: Sequence[str]) -> pyarrow.Table:
        """The columns of a row group. Two threads that miss the same row group both read it."""
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


def _row_group_sizes(path: str, columns: RecordColumns) -> list[int]:
    """Number of rows of every row group; raises DataError for a file that is not Parquet or lacks a column."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    except Exception as error:  # as for a damaged page
        raise DataError(f"{path} cannot be read as Parquet ({type(error).__name__}: {error}); replace it") from error
    columns.check(path, names)
    if any(size < 0 for size in sizes):
        raise DataError(f"{path} cannot be read as Parquet (a row group of {min(sizes)} rows); replace it")
    return sizes
