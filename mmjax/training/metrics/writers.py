"""Metrics writers, which keep the numbers of a run. Every run writes JSON lines and TensorBoard files.

`TrainConfig.writers` names more of them: the writers of `mmjax.training.metrics.trackers`, or the user's own.
"""

import collections
import contextlib
import logging
import os
import pathlib
from collections.abc import Iterable, Mapping

from mmjax.training.metrics.interface import MetricsWriter, RunStart, WriterFactory
from mmjax.training.metrics.metric_files import TENSORBOARD_FOLDER, JsonLinesWriter, TensorBoardWriter
from mmjax.training.metrics.metrics_file import METRICS_FILE
from mmjax.training.metrics.parameters import Parameter

_LOG = logging.getLogger(__name__)


class NullWriter(MetricsWriter):
    """Keeps nothing: for every process but the first."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class RetryingWriter(MetricsWriter):
    """Writes through a writer that may fail, on a full disk for instance, without ending the run.

    Numbers that could not be written are kept and written first the next time, in the same order.

    Args:
        writer: The writer. After an OSError of its `write` it is given the same numbers again.
        name: Name of the writer in messages, such as its file.
    """

    def __init__(self, writer: MetricsWriter, name: str) -> None:
        self._writer, self._name = writer, name
        self._waiting: collections.deque[tuple[int, dict[str, float]]] = collections.deque()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the numbers, after the numbers that could not be written before; warns when writing begins to fail."""
        self._waiting.append((step, dict(scalars)))
        failed_before, first = len(self._waiting) > 1, self._waiting[0][0]
        if not (error := self._write_waiting()):
            if failed_before:
                _LOG.warning("%s: can be written again: nothing of steps %d to %d is lost", self._name, first, step)
        elif not failed_before:
            _LOG.warning(
                "%s: the metrics of step %d cannot be written (%s); training goes on, they are kept and tried again",
                *(self._name, step, error.strerror or error),
            )

    def close(self) -> None:
        """Tries once more to write the kept numbers, names the steps that are lost, and closes the writer."""
        failed_before = bool(self._waiting)
        error = self._write_waiting()
        try:
            self._writer.close()
        except OSError as failure:
            error = error or failure
            _LOG.warning("%s: cannot be closed (%s)", self._name, failure.strerror or failure)
        if self._waiting:
            _LOG.warning(
                "%s: %d reports, of steps %d to %d, are lost (%s)",
                *(self._name, len(self._waiting), self._waiting[0][0], self._waiting[-1][0], error),
            )
        elif failed_before:
            _LOG.warning("%s: could be written again at the end: nothing is lost", self._name)

    def _write_waiting(self) -> OSError | None:
        """Writes the kept numbers, in order, until a write fails; returns its error."""
        while self._waiting:
            try:
                self._writer.write(*self._waiting[0])
            except OSError as error:
                return error
            self._waiting.popleft()
        return None


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
    """Opens the writer of this process: files and the writers of `factories` for the first, nothing for the others.

    Args:
        workdir: Folder of the run.
        resumed_step: The step of the checkpoint that the run continues from; 0 for a new run.
        first_process: Whether this process writes at all.
        factories: Functions that make the writers beside the files (`TrainConfig.writers`).
        parameters: The configuration as flat parameters for these writers (`flat_parameters`).
    """
    if not first_process:
        return NullWriter()
    start = RunStart(workdir=pathlib.Path(workdir), resumed_step=resumed_step, parameters=parameters or {})
    # They may refuse to start, and the files drop lines of an earlier run.
    others = [factory(start) for factory in factories]
    return CombinedWriter(
        [
            RetryingWriter(JsonLinesWriter(start), str(start.workdir / METRICS_FILE)),
            RetryingWriter(TensorBoardWriter(start), str(start.workdir / TENSORBOARD_FOLDER)),
            *(RetryingWriter(writer, type(writer).__name__) for writer in others),
        ]
    )
