"""The files that keep the numbers of a run: JSON lines and TensorBoard."""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import tensorboardX

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


@runtime_checkable
class MetricsWriter(Protocol):
    """Keeps the numbers of a run."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Keeps numbers of a step, by name."""

    def close(self) -> None:
        """Flushes and closes what the numbers are written to."""


class NullWriter(MetricsWriter):
    """Keeps nothing: for every process but the first."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class FileWriter(MetricsWriter):
    """Writes `metrics.jsonl` and TensorBoard files into the workdir.

    A run that resumes after step k drops what an earlier run wrote about later steps: it will write them again.
    """

    def __init__(self, workdir: str, resumed_step: int = 0) -> None:
        folder = pathlib.Path(workdir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS_FILE
        kept_lines = [line for line in read_metrics(workdir) if line["step"] <= resumed_step]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept_lines))
        self._lines = path.open("a")
        self._events = tensorboardX.SummaryWriter(str(folder / TENSORBOARD_FOLDER), purge_step=resumed_step + 1)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends one line `{"step": …, NAME: …}`; a NaN or an infinity, which JSON lacks, is null there."""
        finite = {name: float(value) if math.isfinite(value) else None for name, value in scalars.items()}
        self._lines.write(json.dumps({"step": step, **finite}) + "\n")
        self._lines.flush()
        for name, value in scalars.items():
            self._events.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Closes both files."""
        self._lines.close()
        self._events.close()


def open_metrics_writer(workdir: str, resumed_step: int = 0, first_process: bool = True) -> MetricsWriter:
    """The writer of this process: files for the first one, nothing for the others."""
    return FileWriter(workdir, resumed_step) if first_process else NullWriter()


def read_metrics(workdir: str) -> list[dict]:
    """The lines of `metrics.jsonl`, oldest first; none without the file.

    A last line that a killed run left half-written is not among them.
    """
    path = pathlib.Path(workdir) / METRICS_FILE
    whole_lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole_lines]
