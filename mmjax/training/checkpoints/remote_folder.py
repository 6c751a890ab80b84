"""The remote tier: copies of whole checkpoints in a folder that outlives the cluster, made in the background.

The folder is a plain one, or `gs://` or `s3://` of an object store, where nothing can be renamed. So the list of files
comes last, and goes first: a copy without it is half-written, like a checkpoint without it.
"""

import logging
import pathlib
import shutil
import threading

from etils import epath

from configs.common.errors import STORAGE_FAILED, UserError
from mmjax.training.checkpoints.array_files import describe_failure
from mmjax.training.checkpoints.file_checksums import FILE_LIST, read_file_records
from mmjax.training.checkpoints.retention import Retention
from mmjax.training.checkpoints.score_file import SCORE_FILE

_LOG = logging.getLogger(__name__)

CLOSING_PATIENCE = 1800.0
"""Seconds that a finished run waits for its newest checkpoint to be copied."""

SET_ASIDE_LIST = "files.set_aside.json"
"""Name that the list of files gets in a copy that a run does not continue, so that the copy does not count as whole."""

_CHUNK = 1 << 24  # bytes copied at once


class RemoteNotListedError(UserError):
    """A remote folder could not be listed."""

    exit_code = STORAGE_FAILED


class RemoteFolder:
    """Checkpoints in a remote folder. One process copies to it; all may read.

    Args:
        folder: Its name.
        retention: Rules for the checkpoints that are kept there.
    """

    def __init__(self, folder: str, retention: Retention) -> None:
        self._name = folder
        self._folder = epath.Path(folder) if "://" in folder else epath.Path(pathlib.Path(folder).absolute())
        self._retention = retention
        self._changed = threading.Condition()
        self._waiting: pathlib.Path | None = None
        self._copying: pathlib.Path | None = None
        self._scores: dict[int, float] = {}
        self._continued: int | None = None
        self._thread: threading.Thread | None = None

    def __str__(self) -> str:
        return self._name

    def steps(self) -> list[int]:
        """Returns the steps with a copy that is marked as whole, in ascending order.

        Raises:
            RemoteNotListedError: The folder cannot be listed; says why.
            UserError: A package for it is not installed.
        """
        try:
            if not self._folder.exists():
                return []
            steps = [int(path.name) for path in self._folder.iterdir() if path.name.isdigit()]
            return sorted(step for step in steps if (self._folder / str(step) / FILE_LIST).exists())
        except Exception as error:  # file systems of object stores raise errors of many types
            said = f"{self._name} cannot be listed: {describe_failure(error)}"
            if isinstance(error, ImportError):
                raise UserError(f"{said}; pip install 'mmjax[remote]' installs it") from error
            raise RemoteNotListedError(said) from error

    def fetch(self, step: int, target: pathlib.Path) -> None:
        """Copies a checkpoint to a local folder, and the scores beside it; raises the file system's errors."""
        source, scores = self._folder / str(step), self._folder / SCORE_FILE
        # Only the files that the list names: nothing else decides which files are written here.
        _copy(source / FILE_LIST, epath.Path(target / FILE_LIST))
        for name in read_file_records(target):
            _copy(source / name, epath.Path(target / name))
        if scores.exists() and not (target.parent / SCORE_FILE).exists():
            _copy(scores, epath.Path(target.parent / SCORE_FILE))

    def continue_from(self, step: int) -> None:
        """Lets copies of later steps be set aside before the first copy: the run that copies does not continue them."""
        self._continued = step

    def copy(self, checkpoint: pathlib.Path, scores: dict[int, float]) -> None:
        """Copies a local checkpoint in the background; a checkpoint that still waits for its turn is left out."""
        with self._changed:
            self._waiting, self._scores = checkpoint, scores
            self._changed.notify_all()
        if self._thread is None:
            # A daemon: a run that is told to stop does not wait for it.
            self._thread = threading.Thread(target=self._copy_by_turns, name="remote checkpoints", daemon=True)
            self._thread.start()

    def being_copied(self) -> set[int]:
        """Steps of local checkpoints that must stay until they are copied."""
        with self._changed:
            return {int(path.name) for path in (self._waiting, self._copying) if path is not None}

    def wait(self) -> None:
        """Waits, within a limit, until nothing is left to copy; warns if something is."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting is self._copying is None, CLOSING_PATIENCE):
                _LOG.warning(
                    "%s: copying takes more than %g s; the newest may be missing", self._name, CLOSING_PATIENCE
                )

    def copy_scores(self, directory: pathlib.Path) -> None:
        """Copies the scores beside the local checkpoints, which change after the last save; failing is a warning."""
        try:
            if (scores := directory / SCORE_FILE).exists():
                _copy(epath.Path(scores), self._folder / SCORE_FILE)
        except Exception as error:  # file systems of object stores raise errors of many types
            _LOG.warning("the scores are not copied to %s: %s", self._name, describe_failure(error))

    def _copy_by_turns(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None)
                self._copying, self._waiting = self._waiting, None
                scores = self._scores
            assert self._copying is not None
            try:
                self._set_aside_later_steps()
                self._copy_whole(self._copying)
                for step in self._retention.steps_to_remove(self.steps(), scores):
                    if step != int(self._copying.name):
                        self._remove(step)
            except Exception as error:  # file systems of object stores raise errors of many types
                _LOG.warning(
                    "the checkpoint %s is not copied to %s: %s; the run goes on",
                    self._copying,
                    self._name,
                    describe_failure(error),
                )
            with self._changed:
                self._copying = None
                self._changed.notify_all()

    def _copy_whole(self, checkpoint: pathlib.Path) -> None:
        """Copies all files, the list of files last; other files of this step are removed from the folder."""
        target = self._folder / checkpoint.name
        if target.exists():
            self._remove(int(checkpoint.name))
        files = sorted(file for file in checkpoint.rglob("*") if file.is_file() and file.name != FILE_LIST)
        for file in [*files, checkpoint / FILE_LIST]:
            _copy(epath.Path(file), target / file.relative_to(checkpoint).as_posix())
        self.copy_scores(checkpoint.parent)

    def _set_aside_later_steps(self) -> None:
        if self._continued is None:
            return
        for step in self.steps():
            if step > self._continued:
                path = self._folder / str(step)
                _copy(path / FILE_LIST, path / SET_ASIDE_LIST)
                (path / FILE_LIST).unlink()
                _LOG.warning(
                    "this run does not continue the checkpoint of step %d in %s; its list of files is now %s",
                    step,
                    self._name,
                    SET_ASIDE_LIST,
                )
        self._continued = None

    def _remove(self, step: int) -> None:
        path = self._folder / str(step)
        (path / FILE_LIST).unlink(missing_ok=True)
        path.rmtree()


def _copy(source: epath.Path, target: epath.Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing, _CHUNK)
