"""The files with the numbers of a run, `metrics.jsonl` and TensorBoard's files, written whole record by whole record.

Both write at once and in the thread that calls: an error of the file system is raised to the caller, who may write the
same numbers again later.
"""

import json
import math
import os
import pathlib
import socket
import struct
import time
from collections.abc import Mapping

from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from mmjax.training.metrics.interface import MetricsWriter, RunStart
from mmjax.training.metrics.metrics_file import METRICS_FILE, drop_later_metrics

TENSORBOARD_FOLDER = "tensorboard"


class AppendedFile:
    """A file to which whole records are appended: the rest of a failed write is removed before the next."""

    def __init__(self, path: pathlib.Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)
        self._is_torn = False

    def append(self, record: bytes) -> None:
        """Appends a record; raises OSError if it could not be written, for instance because the disk is full."""
        if self._is_torn:
            self._file.truncate(self._size)
        self._is_torn, rest = True, memoryview(record)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._size += len(record)
        self._is_torn = False

    def close(self) -> None:
        """Removes the rest of a record that was not written whole, and closes the file."""
        try:
            if self._is_torn:
                self._file.truncate(self._size)
        finally:
            self._file.close()


class JsonLinesWriter(MetricsWriter):
    """Writes `metrics.jsonl` into the workdir.

    A run that resumes after step k drops the lines of an earlier run about later steps: it will write them again.
    Numbers of step k itself, such as its accuracy, are not written twice.
    """

    def __init__(self, start: RunStart) -> None:
        start.workdir.mkdir(parents=True, exist_ok=True)
        kept = drop_later_metrics(start.workdir, start.resumed_step)
        self._resumed_step = start.resumed_step
        self._names_of_resumed_step = {name for line in kept if line["step"] == start.resumed_step for name in line}
        self._lines = AppendedFile(start.workdir / METRICS_FILE)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends one line `{"step": …, NAME: …}`; a NaN or an infinity, which JSON lacks, is null there."""
        if step == self._resumed_step:
            scalars = {name: value for name, value in scalars.items() if name not in self._names_of_resumed_step}
            if not scalars:
                return
        finite = {name: float(value) if math.isfinite(value) else None for name, value in scalars.items()}
        self._lines.append(json.dumps({"step": step, **finite}).encode() + b"\n")

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


class TensorBoardWriter(MetricsWriter):
    """Writes a file of TensorBoard into the workdir; it hides the later steps of the files of earlier starts.

    Not by tensorboardX's own `SummaryWriter`: its thread ends at the first write that fails, and then whoever adds
    numbers waits for ever.
    """

    def __init__(self, start: RunStart) -> None:
        folder = start.workdir / TENSORBOARD_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        self._events = AppendedFile(path)
        self._events.append(_record(Event(file_version="brain.Event:2")))
        restart = SessionLog(status=SessionLog.SessionStatus.START)
        self._events.append(_record(Event(step=start.resumed_step + 1, session_log=restart)))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends an event for each number, all at once."""
        events = [Event(step=step, summary=scalar(name, float(value))) for name, value in scalars.items()]
        self._events.append(b"".join(map(_record, events)))

    def close(self) -> None:
        """Closes the file."""
        self._events.close()


def _record(event: Event) -> bytes:
    """Serialises an event, with the current time, as a TFRecord: length and its checksum, event and its checksum."""
    event.wall_time = time.time()
    content = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    return b"".join(
        (length, struct.pack("<I", masked_crc32c(length)), content, struct.pack("<I", masked_crc32c(content)))
    )
