"""The data set of the disturbed runs, and a metrics writer that notes which samples each step was given.

Both are named in the runs' gin files, so they are imported in the processes of a run. Every sample fills a row of its
own and samples are decoded one after the other, so the order in which a process loads them says which step has them.
What is noted is therefore what process 0 loaded for a step; that every process trained on it shows in the losses of
each step and in the parameters, which are compared too.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import SupportsIndex

from configs.common.strict_json import read_json_lines
from data.datasets.conversations import Conversations
from data.datasets.dataset import RandomAccessSamples
from data.records import Media, Record, check_index
from data.samples.encoder_format import EncoderInputs
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.sources.pair_tasks import image_to_text_turns
from mmjax.training.metrics.interface import RunStart
from mmjax.training.metrics.metric_files import AppendedFile

SAMPLES_FILE = "samples.jsonl"
"""File of a run with a JSON line for each step: its number and the ids of its samples."""

_loaded: list[int] = []
"""Samples of the training split that this process has loaded, in order."""


def image_path(folder: str, number: int) -> pathlib.Path:
    """The file of an image of the data set."""
    return pathlib.Path(folder, f"{number}.png")


@dataclasses.dataclass
class NumberedImages:
    """A record source: an image for each number, whose text is the number.

    Attributes:
        folder: Folder of the images.
        first: Number of the first.
        count: How many.
        name: Name of the source.
    """

    folder: str
    first: int
    count: int
    name: str = "images"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: SupportsIndex) -> Record:
        number = self.first + check_index(index, self.count)
        media = Media.from_file(image_path(self.folder, number))
        return Record(str(number), image_to_text_turns(media, f"{number:04d}"))


@dataclasses.dataclass(frozen=True)
class _NotedSamples:
    """Samples that are noted when they are loaded."""

    samples: RandomAccessSamples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> SampleMetadata:
        metadata = self.samples[index]
        (item,) = metadata.items

        def load() -> EncoderInputs:
            _loaded.append(index)
            return item.load()

        return dataclasses.replace(metadata, items=[dataclasses.replace(item, load=load)])


class AuditedImages:
    """Numbered images as a data set (`data.datasets.dataset.Dataset`) of one kind.

    Args:
        split: `train` or `test`.
        folder: Folder of the images; the images of the test split follow the images of the training split.
        count: Images of the training split.
        held_out: Images of the test split.
    """

    def __init__(self, split: str, folder: str, count: int, held_out: int) -> None:
        train, test = NumberedImages(folder, 0, count), NumberedImages(folder, count, held_out)
        self._whole = Conversations(split, train=(("images", train),), test=(("images", test),))
        self._is_noted = split == "train"
        self.tokenizer, self.evaluated_kinds = self._whole.tokenizer, self._whole.evaluated_kinds
        self.prompt_format = self._whole.prompt_format

    def samples_by_kind(self, sample_format: SampleFormat) -> Mapping[str, RandomAccessSamples]:
        """The samples; samples of the training split are noted when they are loaded."""
        kinds = self._whole.samples_by_kind(sample_format)
        return {kind: _NotedSamples(samples) for kind, samples in kinds.items()} if self._is_noted else kinds


class SampleWriter:
    """A metrics writer that keeps the samples of each step; for runs that log every step.

    Steps after the checkpoint that a run continues from are dropped, as they are from `metrics.jsonl`.

    Args:
        rows: Samples of a step.
        start: The run.
    """

    def __init__(self, rows: int, start: RunStart) -> None:
        self._rows, self._resumed_step = rows, start.resumed_step
        path = start.workdir / SAMPLES_FILE
        kept = [line for line in read_samples(start.workdir) if line["step"] <= start.resumed_step]
        whole = path.with_suffix(".tmp")  # a process that is killed meanwhile leaves the file as it was
        whole.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        whole.replace(path)
        self._step = start.resumed_step
        self._file = AppendedFile(path)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Keeps the samples of a step; nothing if producers have loaded them."""
        first = (step - self._resumed_step - 1) * self._rows
        samples = _loaded[first : first + self._rows]
        if step > self._step and samples:
            self._file.append(json.dumps({"step": step, "samples": samples}).encode() + b"\n")
            self._step = step

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


@dataclasses.dataclass(frozen=True)
class SampleWriters:
    """Makes the writer of a run (`TrainConfig.writers`).

    Attributes:
        rows: Samples of a step.
    """

    rows: int

    def __call__(self, start: RunStart) -> SampleWriter:
        """Makes the writer for this start of the run."""
        return SampleWriter(self.rows, start)


def read_samples(workdir: pathlib.Path) -> list[dict]:
    """The lines of a run's file of samples, without one that is half-written."""
    path = workdir / SAMPLES_FILE
    return [line for _, line in read_json_lines(path) if isinstance(line, dict)]
