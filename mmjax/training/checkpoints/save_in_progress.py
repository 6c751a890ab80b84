"""One save: every process writes its shards in the background, all learn whether all did, process 0 makes it whole.

The manager starts one and waits for it before the next, or at the end of the run.
"""

import contextlib
import errno
import json
import logging
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping

import jax

from configs.common.errors import UserError
from configs.common.strict_json import parse_json
from mmjax.training.checkpoints.array_files import (
    describe_failure,
    join_process_files,
    process_folder,
    write_parts,
    written_by_process,
)
from mmjax.training.checkpoints.file_checksums import write_file_list
from mmjax.training.checkpoints.json_files import JsonDocument, write_json_file
from sharding.runtime.coordination import exchange_texts
from sharding.trees import Tree

_LOG = logging.getLogger(__name__)

SAVE_PATIENCE = 3600.0
"""Seconds that a process waits in the background until the others have written their shards of a checkpoint."""


class SaveInProgress:
    """A checkpoint that a thread writes. No process waits for another but at two points, which all processes reach.

    An error of one process, whatever it is, is known to all at the next of these points. The folder gets its name after
    both, so a checkpoint that has its name is whole.

    Args:
        target: Folder of the checkpoint.
        unfinished: Folder in which it is written, beside the target; the same in all processes.
        arrays: Trees of `ArrayPart` by name, on the host.
        documents: JSON documents by file name; process 0 writes them.
        when_whole: Called in the background, in process 0, when the checkpoint has its name.
    """

    def __init__(
        self,
        target: pathlib.Path,
        unfinished: pathlib.Path,
        arrays: Mapping[str, Tree],
        documents: Mapping[str, JsonDocument],
        when_whole: Callable[[], None],
    ) -> None:
        self._target, self._unfinished = target, unfinished
        self._documents, self._when_whole = documents, when_whole
        self._failures: dict[int, str] = {}
        self._written: dict[int, dict[str, list[int]]] = {}  # files and bytes, by process and tree
        self._thread = threading.Thread(target=self._save, args=(arrays,), name="checkpoint")
        self._thread.start()

    def wait(self) -> dict[int, str]:
        """Waits until the save has ended; returns the failures by process, empty if the checkpoint is whole."""
        self._thread.join()
        return self._failures

    def _save(self, arrays: Mapping[str, Tree]) -> None:
        try:
            self._write_and_join(arrays)
        except Exception as error:  # such as a process that is not there any more: never a thread that ends in silence
            self._failures = {jax.process_index(): describe_failure(error)}
        if jax.process_index() == 0:
            if self._failures:
                # Threads of the failed write may still add files; the next run removes what they leave.
                shutil.rmtree(self._unfinished, ignore_errors=True)
            else:
                self._when_whole()

    def _write_and_join(self, arrays: Mapping[str, Tree]) -> None:
        written: dict[str, tuple[int, int]] = {}
        with _failure() as failure:
            for name, parts in arrays.items():
                write_parts(self._unfinished / name, parts)
            own_folder = process_folder(jax.process_index())
            written = {name: written_by_process(self._unfinished / name).get(own_folder, (0, 0)) for name in arrays}
        self._exchange("the checkpoint is written", failure, written)
        with _failure() as failure:
            if jax.process_index() == 0 and not self._failures:
                self._make_whole()
        self._exchange("the checkpoint is whole", failure, {})

    def _make_whole(self) -> None:
        self._check_parts()
        for folder in self._unfinished.iterdir():
            join_process_files(folder)
        for name, document in self._documents.items():
            write_json_file(self._unfinished / name, document)
        write_file_list(self._unfinished)
        # What comes next may be the removal of an older checkpoint.
        for path in (*self._unfinished.rglob("*"), self._unfinished):
            _write_to_disk(path)
        self._unfinished.rename(self._target)
        try:
            _write_to_disk(self._target.parent)
        except OSError as error:  # the checkpoint is whole and has its name
            _LOG.warning("%s may be lost if the power fails now: %s", self._target, describe_failure(error))

    def _check_parts(self) -> None:
        """Raises UserError if this process does not see all files of each process: orbax joins the ones it finds."""
        for name in {name for written in self._written.values() for name in written}:
            seen = written_by_process(self._unfinished / name)
            for process, written in sorted(self._written.items()):
                files, size = written.get(name, (0, 0))
                files_seen, size_seen = seen.get(process_folder(process), (0, 0))
                if (files, size) != (files_seen, size_seen):
                    raise UserError(
                        f"process {process} wrote {files} files of {size} bytes of {name}, and process 0 sees "
                        f"{files_seen} of {size_seen} bytes: all processes need one workdir on a shared file system"
                    )

    def _exchange(self, phase: str, failure: list[str], written: Mapping[str, tuple[int, int]]) -> None:
        """Exchanges failures and written files between all processes, and keeps them by process."""
        text = json.dumps({"failure": "".join(failure), "written": written})
        for process, said in exchange_texts(phase, text, SAVE_PATIENCE).items():
            document = parse_json(said, f"what process {process} says of the checkpoint")
            self._written.setdefault(process, document["written"])
            if document["failure"]:
                self._failures[process] = document["failure"]


def _write_to_disk(path: pathlib.Path) -> None:
    """Waits until a file or folder would survive a loss of power (fsync), where the file system supports it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems in user space have no fsync of folders.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _failure() -> Iterator[list[str]]:
    """Yields a list to which an exception inside the block is appended, as one line, instead of being raised."""
    failure: list[str] = []
    try:
        yield failure
    except Exception as error:  # orbax and tensorstore raise what the system says as errors of many types
        failure.append(describe_failure(error))
