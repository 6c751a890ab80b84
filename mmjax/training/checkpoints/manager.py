"""Checkpoints of a training run, saved while it goes on, that any plan of the same model can restore.

A checkpoint is a folder named after its step. It has `parameters` and `optimizer` by module, piece and layer, `host`
(the state of the data pipeline and of the metrics), `model` (the model's configuration, what trained and by which
algorithm), and a list of these files with sizes and checksums. It is written under another name and renamed when it is
whole.
"""

import contextlib
import logging
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint import v1 as ocp

from configs.architectures import ModelConfig
from configs.errors import UserError
from mmjax.models.model import model_modules
from mmjax.models.structure.parameters import abstract_module_parameters
from mmjax.training.checkpoints.arrays import abstract_arrays_to_load, arrays_to_save, state_from_arrays
from mmjax.training.checkpoints.discovery import (
    UNFINISHED_MARK,
    damage_found_by_any_process,
    damage_of_parameters,
    newest_whole,
    saved_steps,
)
from mmjax.training.checkpoints.file_checksums import write_file_list
from mmjax.training.checkpoints.model_identity import check_same_model, model_identity
from mmjax.training.engine.engine import Engine
from sharding.runtime.coordination import wait_for_processes
from sharding.runtime.pipeline import TrainState
from sharding.trees import Tree

_LOG = logging.getLogger(__name__)

SAVE_TIMEOUT = 3600
"""Seconds after which a save that is still being written fails."""

FORMAT = 1
"""Number of the layout of checkpoints; it grows when a checkpoint can no longer be read by what read it before."""

SET_ASIDE = "set_aside"
"""Folder, next to the checkpoints, for those that a run does not continue."""


_MOST_SHOWN = 300  # characters of another library's error in a message


class CheckpointNotWrittenError(UserError):
    """A checkpoint could not be written; those before it are as they were."""


class CheckpointManager:
    """The checkpoints of one run. All processes make every call, in the same order.

    A save that fails, as when the disk is full, does not end a run of one process: the next save says so in a warning
    and is tried. `wait` and `close` raise the error of the last save. In a run of several processes the next call of
    any kind raises it, for the others would wait for the one whose disk is full.

    Args:
        directory: Folder of the checkpoints, on a file system that all processes share.
        config: The model; checkpoints of another model are refused.
        keep: How many of the newest checkpoints are kept.
        keep_every: Checkpoints of multiples of so many steps are kept too; 0 for none.
    """

    def __init__(self, directory: pathlib.Path, config: ModelConfig, keep: int = 2, keep_every: int = 0) -> None:
        if keep < 1:
            raise UserError(f"a run that keeps {keep} checkpoints could not be resumed; keep at least 1")
        self._directory, self._config, self._keep = directory.absolute(), config, keep
        self._keep_every = keep_every
        self._continued: int | None = None
        self._newest_saved: int | None = None
        self._writer: ocp.training.Checkpointer | None = None
        self._has_set_aside = False
        self._failure: CheckpointNotWrittenError | None = None

    def latest(self) -> int | None:
        """Step of the newest checkpoint, or None if there is none."""
        steps = saved_steps(self._directory)
        return steps[-1] if steps else None

    # ------------------------------------------------------------------ saving

    def save(self, step: int, engine: Engine, state: TrainState, host_state: dict[str, Any]) -> None:
        """Starts to save the state after `step` steps, and returns when it has been copied to the host.

        The next step, which donates the state, may then be dispatched at once; the files are written in the
        background. Waits for an earlier save that is still being written. Layers are arrays of their own, so a save
        takes no device memory. Saving the newest step again does nothing. A failure is kept for `wait`.

        Args:
            step: Number of updates that made the state.
            engine: The engine that made the state.
            state: The state to save. Steps that are not finite leave it unchanged, so it is finite.
            host_state: What the host knows after as many steps: a small JSON value.
        """
        self._end_save()
        if step == self._newest_saved:
            return
        if self._failure is not None:
            _LOG.warning("%s; the run goes on", self._failure)
            self._failure = None
        self._newest_saved = step
        about = {
            "format": FORMAT,
            "model": model_identity(self._config),
            "trained": sorted(_trained_keys(engine)),
            "optimizer": _algorithm(engine),
        }
        arrays = arrays_to_save(engine, state)
        with self._keeping_failure():
            if self._writer is None:
                self._writer = self._open()
            self._writer.save_checkpointables_async(step, {**arrays, "host": host_state, "model": about}, force=True)

    def wait(self) -> None:
        """Waits until the last save is written; raises CheckpointNotWrittenError if it was not."""
        self._end_save()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Waits as `wait` does and frees all resources; the object cannot save after that."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.close()

    def _end_save(self) -> None:
        if self._writer is not None:
            with self._keeping_failure():
                self._writer.wait()

    @contextlib.contextmanager
    def _keeping_failure(self) -> Iterator[None]:
        """Keeps why the newest save failed; the next one gets a writer that knows only what the directory has."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # orbax and tensorstore raise what the system says as errors of many types
            reason = " ".join(str(error).split())[:_MOST_SHOWN]
            self._failure = CheckpointNotWrittenError(
                f"the checkpoint of step {self._newest_saved} was not written to {self._directory}: {reason}; "
                f"the newest there is that of step {self.latest()}"
            )
            writer, self._writer, self._newest_saved = self._writer, None, None
            if jax.process_count() > 1:
                raise self._failure from error
            if writer is not None:
                with contextlib.suppress(Exception):  # it raises the same error again
                    writer.close()

    def _open(self) -> ocp.training.Checkpointer:
        """Makes the writer; the first time, after setting aside the checkpoints that this run does not continue."""
        first = not self._has_set_aside
        if first:
            self._prepare_directory()
            self._has_set_aside = True
        for left in self._directory.glob(f"*{UNFINISHED_MARK}") if not first else ():
            # Threads of the failed save may still write there, so orbax would fail to remove it.
            shutil.rmtree(left, ignore_errors=True)
        context = _context()
        # Process 0 reads all that was written for the checksums, and the other processes wait for it in the background.
        context.asynchronous.timeout_secs = SAVE_TIMEOUT
        # Not the method itself: orbax copies its options deeply, and a method with its object.
        context.asynchronous.post_finalization_callback = lambda: self._add_file_list()
        policies = ocp.training.preservation_policies
        periodic = (policies.EveryNSteps(self._keep_every),) if self._keep_every else ()
        return ocp.training.Checkpointer(
            str(self._directory),
            context=context,
            # Orbax's protocol asks for another type of sequence than its own policies take.
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(self._keep), *periodic]),  # pyright: ignore[reportArgumentType]
            cleanup_tmp_directories=first,
        )

    def _prepare_directory(self) -> None:
        if jax.process_index() == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            for step in saved_steps(self._directory):
                if self._continued is None or step > self._continued:
                    self._set_aside(step)
        wait_for_processes("the first checkpoint")

    def _add_file_list(self) -> None:
        """Adds the list of files to the checkpoint that is about to be renamed; orbax writes one at a time."""
        if jax.process_index() == 0:
            write_file_list(self._directory / f"{self._newest_saved}{UNFINISHED_MARK}")

    def _set_aside(self, step: int) -> None:
        """Moves a checkpoint out of the way; it is not deleted, for its training may be worth more than this run's."""
        target = self._directory / SET_ASIDE / str(step)
        if target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(exist_ok=True)
        (self._directory / str(step)).rename(target)
        _LOG.warning("this run does not continue the checkpoint of step %d; moved to %s", step, target)

    # ------------------------------------------------------------------ restoring

    def restore(self, engine: Engine, step: int | None = None) -> tuple[TrainState, dict[str, Any], int]:
        """Restores the newest checkpoint that can be read, on the engine's plan; changes nothing in the directory.

        Checkpoints that are half-written or damaged are passed over with a warning that names the file. All processes
        call this together, and each compares the checksums of its share of the files. Parts that train now but did not
        train then get new optimizer state (moments and warm-up); that of parts that are frozen now is left out. Both
        are logged.

        Args:
            engine: Of the same model, on any plan and any number of processes.
            step: Restore this step's checkpoint and no other.

        Returns:
            The training state, the state on the host, and the number of steps done.

        Raises:
            UserError: There is no checkpoint, none that can be read, or it is another model's or another optimizer's.
        """
        self.wait()
        path = newest_whole(self._directory, step, damage_found_by_any_process)
        loaded = self._read(engine, path)
        done = self._continued = self._newest_saved = int(path.name)
        return state_from_arrays(engine, loaded), loaded["host"], done

    def restore_parameters(self, device: jax.Device) -> tuple[Tree, int]:
        """Restores the parameters of the newest checkpoint that can be read, on one device, whatever plan wrote it.

        Returns:
            `{module: {piece: {layer: {...}}}}` in float32, and the number of steps done.

        Raises:
            UserError: As `restore`.
        """
        self.wait()
        path, sharding = newest_whole(self._directory, None, damage_of_parameters), SingleDeviceSharding(device)
        shapes = {module.name: abstract_module_parameters(module) for module in model_modules(self._config)}
        wanted = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes)
        self._check_model(path)
        with _context(alone=True):
            return ocp.load_checkpointables(str(path), {"parameters": wanted})["parameters"], int(path.name)

    def layer_reader(self, device: jax.Device, step: int | None = None) -> tuple[Callable[[str, str, str], Tree], int]:
        """Makes a function that reads the parameters of one (module, piece, layer) to the host, through a device.

        Returns:
            The function, and the number of steps of the checkpoint: that of `step`, or the newest that can be read.

        Raises:
            UserError: As `restore`.
        """
        self.wait()
        path, sharding = newest_whole(self._directory, step, damage_of_parameters), SingleDeviceSharding(device)
        self._check_model(path)
        shapes = {module.name: abstract_module_parameters(module) for module in model_modules(self._config)}

        def read(module: str, piece: str, layer: str) -> Tree:
            wanted = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
                shapes[module][piece][layer],
            )
            with _context(alone=True):
                loaded = ocp.load_checkpointables(str(path), {"parameters": {module: {piece: {layer: wanted}}}})
            return jax.tree.map(np.asarray, loaded["parameters"][module][piece][layer])

        return read, int(path.name)

    def _read(self, engine: Engine, path: pathlib.Path) -> dict[str, Any]:
        """Reads what the devices of this process hold, without waiting for the other processes."""
        about = self._check_model(path)
        saved, ours = about["optimizer"], _algorithm(engine)
        if saved != ours:
            raise UserError(
                f"{path} has the optimizer state of {saved} and this run trains with {ours}: "
                f"set OptimizerConfig.algorithm to {saved}, or start anew in another workdir"
            )
        saved_keys, trained_keys = frozenset(about["trained"]), _trained_keys(engine)
        with _context(alone=True):
            loaded = ocp.load_checkpointables(str(path), {**abstract_arrays_to_load(engine, saved_keys), "host": None})
        for names, what in (
            (trained_keys - saved_keys, "starts fresh, as it has none of it"),
            (saved_keys - trained_keys, "is left out"),
        ):
            if names:
                _LOG.warning("%s: optimizer state of %s %s", path, ", ".join(sorted(names)), what)
        return loaded

    def _check_model(self, path: pathlib.Path) -> dict[str, Any]:
        """What a checkpoint says of its model, what trained and how; raises UserError if it is another model's."""
        with _context(alone=True):
            about = ocp.load_checkpointables(str(path), {"model": None})["model"]
        if about.get("format") != FORMAT:
            raise UserError(
                f"{path} has the checkpoint format {about.get('format')}, and this version of mmjax reads format "
                f"{FORMAT}; use the version that wrote it"
            )
        check_same_model(path, about["model"], self._config)
        return about


def _context(alone: bool = False) -> ocp.Context:
    """Orbax's options; `alone` for a call that each process makes on its own."""
    registry = ocp.handlers.local_registry()
    for name in ("host", "model"):
        registry.add(ocp.handlers.JsonHandler, checkpointable_name=name)
    context = ocp.Context()
    context.checkpointables.registry = registry
    # Replicas that share the writing would each need shards of every array (`ArrayPart`).
    context.array.saving.use_replica_parallel = False
    context.pytree.loading.partial_load = True
    if alone:
        context.multiprocessing.active_processes = {jax.process_index()}
        context.multiprocessing.primary_host = jax.process_index()
    return context


def _trained_keys(engine: Engine) -> frozenset[str]:
    """The keys `module/piece` of all that has optimizer state."""
    return frozenset().union(*(stage.trained_keys for stage in engine.stages.values()))


def _algorithm(engine: Engine) -> str:
    """Name of the algorithm that an engine's optimizer state is of."""
    return type(engine.settings.optimizer.algorithm).__name__
