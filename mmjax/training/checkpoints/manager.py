"""Checkpoints of a training run, saved while it goes on, that any plan of the same model can restore.

A checkpoint is a folder named after its step. It has `parameters` and `optimizer` by module, piece and layer,
`host.json` (the state of the data pipeline and of the metrics), `model.json` (the model's configuration, the pieces
that trained and the optimizer's algorithm), and `files.json` (sizes and checksums). It is written under another name
and renamed when it is whole.
"""

import logging
import pathlib
import secrets
import shutil
from typing import Any

import jax

from configs.architectures import ModelConfig
from configs.common.errors import STORAGE_FAILED, UserError
from configs.optimizer import moment_dtype
from mmjax.training.checkpoints.array_files import describe_failure
from mmjax.training.checkpoints.arrays import arrays_to_save, trained_keys
from mmjax.training.checkpoints.discovery import UNFINISHED_MARK, saved_steps, set_aside
from mmjax.training.checkpoints.file_checksums import FILE_LIST
from mmjax.training.checkpoints.json_files import HOST_FILE, MODEL_FILE, ModelDocument
from mmjax.training.checkpoints.model_identity import model_identity
from mmjax.training.checkpoints.remote_folder import CLOSING_PATIENCE, RemoteFolder
from mmjax.training.checkpoints.restoring import restore_state
from mmjax.training.checkpoints.retention import DEFAULT_RETENTION, Retention
from mmjax.training.checkpoints.save_in_progress import SaveInProgress
from mmjax.training.checkpoints.score_file import read_scores, write_scores
from mmjax.training.engine.engine import Engine
from sharding.runtime.coordination import exchange_texts, wait_for_processes
from sharding.runtime.pipeline import TrainState

_LOG = logging.getLogger(__name__)


MOST_FAILED_SAVES = 3
"""Number of failed saves in a row that ends a run, which would otherwise train without being able to save."""


class CheckpointNotWrittenError(UserError):
    """A checkpoint could not be written; the checkpoints before it are unchanged."""

    exit_code = STORAGE_FAILED


class CheckpointManager:
    """The checkpoints of one run. All processes make every call, in the same order.

    A save that fails in any process, as when the disk is full, does not end a run: the next save warns of it and is
    tried. `wait` and `close` raise the error of the last save. All processes raise and warn of the same.

    Args:
        directory: Folder of the checkpoints, on a file system that all processes share.
        config: The model; checkpoints of another model are refused.
        retention: Rules for the checkpoints that are kept.
        remote: Gets a copy of each checkpoint, and provides checkpoints that the directory lacks.

    Attributes:
        passed_over: Why `restore` took no other checkpoint: a line for each that is half-written or damaged.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        config: ModelConfig,
        retention: Retention = DEFAULT_RETENTION,
        remote: RemoteFolder | None = None,
    ) -> None:
        self._directory, self._config, self._retention = directory.absolute(), config, retention
        self._remote = remote
        self.passed_over: tuple[str, ...] = ()
        self._scores: dict[int, float] = {}
        self._continued: int | None = None
        self._newest_saved: int | None = None
        self._newest_whole: int | None = None
        self._start = ""  # so that a process that an earlier start left behind writes to no folder of this one
        self._attempts = 0
        self._directory_is_ready = False
        self._saving: SaveInProgress | None = None
        self._failure: CheckpointNotWrittenError | None = None
        self._failures_in_a_row = 0

    def save(self, step: int, engine: Engine, state: TrainState, host_state: dict[str, Any]) -> None:
        """Starts to save the state after `step` steps, and returns when it has been copied to the host.

        The next step, which donates the state, may then be dispatched at once; the files are written in the
        background. Waits for an earlier save that is still being written. Layers are arrays of their own, so a save
        takes no device memory. Saving the newest step again does nothing. A failure is kept for `wait`, and the next
        save is tried, until `MOST_FAILED_SAVES` have failed.

        Args:
            step: Number of updates that made the state.
            engine: The engine that made the state.
            state: The state to save. Steps that are not finite leave it unchanged, so it is finite.
            host_state: The host's state after as many steps: a small JSON value.

        Raises:
            CheckpointNotWrittenError: As many saves in a row have failed; in all processes.
        """
        self._end_save()
        if step == self._newest_saved:
            return
        if self._failure is not None:
            if self._failures_in_a_row >= MOST_FAILED_SAVES:
                failure, self._failure = self._failure, None
                raise CheckpointNotWrittenError(f"{failure}; so ended {self._failures_in_a_row} saves in a row")
            if jax.process_index() == 0:
                _LOG.warning("%s; the run goes on", self._failure)
            self._failure = None
        self._newest_saved = step
        self._attempts += 1
        if not self._directory_is_ready:
            self._prepare_directory()
        if not self._directory_is_ready:
            return
        algorithm = engine.settings.optimizer.algorithm
        about = ModelDocument(
            model_identity(self._config), trained_keys(engine), type(algorithm).__name__, moment_dtype(algorithm)
        )
        self._saving = SaveInProgress(
            self._directory / str(step),
            self._directory / f"{step}-{self._start}-{self._attempts}{UNFINISHED_MARK}",
            arrays_to_save(engine, state),
            {HOST_FILE: host_state, MODEL_FILE: about.document()},
            self._end_in_background,
        )

    def wait(self) -> None:
        """Waits until the last save is written; raises CheckpointNotWrittenError if it was not."""
        self._end_save()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Waits as `wait` does."""
        self.wait()

    def wait_for_remote(self) -> None:
        """Waits, within a limit, until the newest checkpoint is copied to the remote folder, if there is one."""
        if self._remote:
            self._end_save()
            if jax.process_index() == 0:
                self._remote.wait()
                self._remote.copy_scores(self._directory)
            wait_for_processes("the end of the run", 2 * CLOSING_PATIENCE)

    def add_score(self, step: int, score: float) -> None:
        """Keeps the held-out accuracy of the state after `step` steps, by which the best checkpoints are chosen."""
        self._scores[step] = score
        if jax.process_index() == 0:
            write_scores(self._directory, self._scores)

    def best(self) -> tuple[int, float] | None:
        """Step and held-out accuracy of the best checkpoint that is there; None if none was evaluated."""
        scored = [(self._scores[step], step) for step in saved_steps(self._directory) if step in self._scores]
        if not scored:
            return None
        score, step = max(scored)
        return step, score

    def restore(self, engine: Engine, step: int | None = None) -> tuple[TrainState, dict[str, Any], int]:
        """Restores the newest checkpoint that is whole, on the engine's plan.

        Checkpoints that are half-written or damaged are passed over with a warning that names the file. All processes
        call this together, and each compares the checksums of its share of the files. Parts that train now but did not
        train then get new optimizer state (moments and warm-up); the optimizer state of parts that are frozen now is
        left out. Both are logged.

        Args:
            engine: An engine of the same model, on any plan and any number of processes.
            step: Restore this step's checkpoint and no other.

        Returns:
            The training state, the state on the host, and the number of steps done.

        Raises:
            UserError: There is no checkpoint, none that is whole, or it is another model's or another optimizer's.
            UnreadableCheckpointError: A file of the newest cannot be read, which is no reason to take an older one.
        """
        self.wait()
        state, host_state, done, self.passed_over = restore_state(
            self._directory, self._config, engine, step, self._remote
        )
        self._scores = {step: score for step, score in read_scores(self._directory).items() if step <= done}
        self._continued = self._newest_saved = self._newest_whole = done
        return state, host_state, done

    # ------------------------------------------------------------------ the end of a save

    def _end_save(self) -> None:
        saving, self._saving = self._saving, None
        if saving is not None and not self._keep_failure(saving.wait()):
            self._newest_whole, self._failures_in_a_row = self._newest_saved, 0

    def _keep_failure(self, failures: dict[int, str]) -> bool:
        """Keeps the reason why the newest save failed, if it did, as all processes know it, for the next call."""
        if not failures:
            return False
        (process, reason), newest = min(failures.items()), self._newest_whole
        where = f" by process {process}" if jax.process_count() > 1 else ""
        left = "there is none" if newest is None else f"the newest there is of step {newest}"
        self._failure = CheckpointNotWrittenError(
            f"the checkpoint of step {self._newest_saved} was not written to {self._directory}{where}: {reason}; {left}"
        )
        self._newest_saved = None
        self._failures_in_a_row += 1
        return True

    # ------------------------------------------------------------------ the directory, by process 0

    def _prepare_directory(self) -> None:
        """Sets aside the checkpoints that this run does not continue, and removes interrupted saves."""
        failure = ""
        if jax.process_index() == 0:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                for left in self._directory.glob(f"*{UNFINISHED_MARK}"):
                    shutil.rmtree(left)
                for step in saved_steps(self._directory):
                    if self._continued is None or step > self._continued:
                        where = set_aside(self._directory, step)
                        _LOG.warning("this run does not continue the checkpoint of step %d; moved to %s", step, where)
            except OSError as error:
                failure = describe_failure(error)
        failures = {who: text for who, text in exchange_texts("the first checkpoint", failure).items() if text}
        self._start = exchange_texts("the names of unfinished checkpoints", secrets.token_hex(4))[0]
        if self._remote and self._continued is not None:
            self._remote.continue_from(self._continued)
        self._directory_is_ready = not failures
        self._keep_failure(failures)

    def _end_in_background(self) -> None:
        """Called when a checkpoint is whole: starts to copy it, and removes checkpoints that are not kept any more."""
        scores = dict(self._scores)
        try:
            steps = saved_steps(self._directory)
            if self._remote:
                self._remote.copy(self._directory / str(steps[-1]), scores)
            needed = self._remote.being_copied() if self._remote else set()
            for step in set(self._retention.steps_to_remove(steps, scores)) - needed:
                # The list of files first, so that a half-removed checkpoint does not look whole.
                (self._directory / str(step) / FILE_LIST).unlink(missing_ok=True)
                shutil.rmtree(self._directory / str(step))
        except OSError as error:
            _LOG.warning("an old checkpoint is not removed: %s", describe_failure(error))
