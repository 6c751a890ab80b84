"""Metrics writers: what keeps the numbers of a run. Every run writes JSON lines and TensorBoard files.

`TrainConfig.writers` names more of them: those of `mmjax.training.metrics.trackers`, or the user's own.
"""

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping

import tensorboardX

from mmjax.training.metrics.interface import MetricsWriter, RunStart, WriterFactory
from mmjax.training.metrics.metrics_file import METRICS_FILE, drop_later_metrics
from mmjax.training.metrics.parameters import Parameter

TENSORBOARD_FOLDER = "tensorboard"


class NullWriter(MetricsWriter):
    """Keeps nothing: for every process but the first."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class FileWriter(MetricsWriter):
    """Writes `metrics.jsonl` and TensorBoard files into the workdir.

    A run that resumes after step k drops what an earlier run wrote about later steps: it will write them again. What
    was written about step k itself, such as its accuracy, is not written twice.
    """

    def __init__(self, start: RunStart) -> None:
        start.workdir.mkdir(parents=True, exist_ok=True)
        kept = drop_later_metrics(start.workdir, start.resumed_step)
        self._resumed_step = start.resumed_step
        self._names_of_resumed_step = {name for line in kept if line["step"] == start.resumed_step for name in line}
        self._lines = (start.workdir / METRICS_FILE).open("a")
        self._events = tensorboardX.SummaryWriter(
            str(start.workdir / TENSORBOARD_FOLDER), purge_step=start.resumed_step + 1
        )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends one line `{"step": …, NAME: …}`; a NaN or an infinity, which JSON lacks, is null there."""
        if step == self._resumed_step:
            scalars = {name: value for name, value in scalars.items() if name not in self._names_of_resumed_step}
            if not scalars:
                return
        finite = {name: float(value) if math.isfinite(value) else None for name, value in scalars.items()}
        self._lines.write(json.dumps({"step": step, **finite}) + "\n")
        self._lines.flush()
        for name, value in scalars.items():
            self._events.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Closes both files."""
        self._lines.close()
        self._events.close()


class CombinedWriter(MetricsWriter):
    """Passes every number to several writers, in their order."""

    def __init__(self, writers: Iterable[MetricsWriter]) -> None:
        self._writers = tuple(writers)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Passes the numbers on."""
        for writer in self._writers:
            writer.write(step, scalars)

    def close(self) -> None:
        """Closes all writers."""
        with contextlib.ExitStack() as stack:  # one that fails does not keep the others open
            for writer in self._writers:
                stack.callback(writer.close)


def open_metrics_writer(
    workdir: str | os.PathLike[str],
    resumed_step: int = 0,
    first_process: bool = True,
    factories: Iterable[WriterFactory] = (),
    parameters: Mapping[str, Parameter] | None = None,
) -> MetricsWriter:
    """The writer of this process: files and those of `factories` for the first one, nothing for the others.

    Args:
        workdir: Folder of the run.
        resumed_step: The step of the checkpoint that the run continues from; 0 for a new run.
        first_process: Whether this process writes at all.
        factories: What makes the writers beside the files (`TrainConfig.writers`).
        parameters: The configuration for them (`flat_parameters`).
    """
    if not first_process:
        return NullWriter()
    start = RunStart(workdir=pathlib.Path(workdir), resumed_step=resumed_step, parameters=parameters or {})
    # They may refuse to start, and the files drop lines of an earlier run.
    others = [factory(start) for factory in factories]
    return CombinedWriter([FileWriter(start), *others])
