"""Data sets of the `datasets` library of Hugging Face: a folder that the library wrote, or a name on its hub."""

import os
import pathlib
import typing
from typing import SupportsIndex

from data.errors import DataError
from data.extras import missing_extra
from data.host_faults import bad_sample
from data.records import Record, check_index
from data.sources.record_columns import RecordColumns

try:
    import datasets
    import datasets.config
    import pyarrow
except ImportError as error:
    raise missing_extra("a Hugging Face data set", "huggingface", error) from error

_SAVED = ("state.json", "dataset_dict.json")  # files of a folder that save_to_disk wrote


class HuggingFaceDataset:
    """Rows of one split of a map-style data set, as records.

    Media are not decoded by the `datasets` library: their bytes are read from its Arrow files, row by row, so sizes
    come from headers as for every other source. Streaming (`IterableDataset`), data sets that need a script, and
    columns of arrays in place of encoded images (`Array3D`) are not supported.

    Attributes:
        name: Name of the source.
    """

    def __init__(
        self,
        path: str,
        split: str = "train",
        task: str = "answer",
        text: str = "text",
        question: str = "question",
        answer: str = "answer",
        image: str = "",
        audio: str = "",
        video: str = "",
        subset: str = "",
        revision: str = "",
        name: str = "hugging_face",
    ) -> None:
        """Opens the split, after downloading it if it is on the hub and not in the library's cache.

        Args:
            path: A folder that `save_to_disk` wrote, a folder of files that the library loads (Parquet, JSON, images
                with metadata), or a name on the hub, `owner/name`.
            split: Name of the split, or a slice of it such as `train[:1000]` for anything but `save_to_disk`.
            task: The task that a row trains, and so its columns: see `data.sources.record_columns.RecordColumns`.
            text, question, answer, image, audio, video: Names of the columns.
            subset: Configuration of a data set that has several.
            revision: Branch, tag or commit on the hub; a commit makes runs repeatable.
            name: Name of the source.

        Raises:
            DataError: The data set cannot be loaded, has no such split or column, or no rows.
        """
        self._columns = RecordColumns(
            "HuggingFaceDataset",
            task,
            text=text,
            question=question,
            answer=answer,
            image=image,
            audio=audio,
            video=video,
        )
        loaded = _load(path, split, subset, revision)
        self._columns.check(f"{path} ({split})", loaded.column_names)
        if not len(loaded):
            raise DataError(f"{path} ({split}) has no rows; choose another split")
        self.name = name
        self._where = f"{path}[{split}]"
        # Files that rows name lie in the folder itself, or in the library's cache of what it downloaded.
        self._folder = path if os.path.isdir(path) else str(datasets.config.HF_CACHE_HOME)
        self._rows = loaded.select_columns(list(self._columns.names)).with_format("arrow")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: SupportsIndex) -> Record:
        """The record of a row; raises BadSampleError if the row cannot be read or is incomplete."""
        number = check_index(index, len(self))
        key = f"{self._where}[{number}]"
        try:
            row = typing.cast(pyarrow.Table, self._rows[number]).to_pylist()[0]
        except Exception as error:  # Arrow raises nearly anything for a damaged file
            raise bad_sample(key, error) from error
        return self._columns.record(key, row, self._folder)


def _load(path: str, split: str, subset: str, revision: str) -> datasets.Dataset:
    """A split that is read at random; raises DataError for one that cannot be loaded."""
    try:
        if any(pathlib.Path(path, file).is_file() for file in _SAVED):
            loaded = datasets.load_from_disk(path)
            if isinstance(loaded, datasets.DatasetDict):
                if split not in loaded:
                    raise DataError(f"{path} has no split {split!r}; it has {', '.join(map(str, loaded))}")
                loaded = loaded[split]
        else:
            loaded = datasets.load_dataset(path, subset or None, split=split, revision=revision or None)
    except DataError:
        raise
    except Exception as error:  # of the library, of its files, of the network
        reason = " ".join(str(error).split())
        raise DataError(
            f"HuggingFaceDataset.path {path!r}, split {split!r} cannot be loaded ({type(error).__name__}: {reason})"
        ) from error
    if not isinstance(loaded, datasets.Dataset):
        raise DataError(f"{path} ({split}) is a {type(loaded).__name__}; only map-style data sets are read")
    return loaded
