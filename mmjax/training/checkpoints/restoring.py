"""Reading checkpoints: the whole state on a plan, or parameters alone on one device.

The manager restores a run by it; inference and conversion read parameters alone.
"""

import logging
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from configs.architectures import ModelConfig
from configs.common.errors import UserError
from configs.optimizer import moment_dtype
from mmjax.models.model import model_modules
from mmjax.models.structure.parameters import abstract_module_parameters
from mmjax.training.checkpoints.array_files import read_arrays
from mmjax.training.checkpoints.arrays import (
    abstract_arrays_to_load,
    state_from_arrays,
    trained_keys,
)
from mmjax.training.checkpoints.discovery import damage_of_parameters, newest_whole, newest_whole_for_all
from mmjax.training.checkpoints.json_files import HOST_FILE, ModelDocument, read_json_object
from mmjax.training.checkpoints.model_identity import check_same_model
from mmjax.training.checkpoints.remote_folder import RemoteFolder
from mmjax.training.engine.engine import Engine
from sharding.runtime.pipeline import TrainState
from sharding.trees import Tree

_LOG = logging.getLogger(__name__)


class RestoredState(NamedTuple):
    """The state that was read from a checkpoint.

    Attributes:
        state: The training state.
        host_state: The state on the host.
        step: Number of steps done.
        passed_over: Why no other checkpoint was taken, a line each (`ChosenCheckpoint.passed_over`).
    """

    state: TrainState
    host_state: dict[str, Any]
    step: int
    passed_over: tuple[str, ...]


def restore_state(
    directory: pathlib.Path,
    config: ModelConfig,
    engine: Engine,
    step: int | None = None,
    remote: RemoteFolder | None = None,
) -> RestoredState:
    """Restores the training state from a checkpoint; see `CheckpointManager.restore`."""
    chosen = newest_whole_for_all(directory, step, remote)
    path = chosen.path
    about, trained = ModelDocument.read(path), trained_keys(engine)
    algorithm = engine.settings.optimizer.algorithm
    ours, ours_stored = type(algorithm).__name__, moment_dtype(algorithm)
    check_same_model(path, about.model, config)
    if about.optimizer != ours:
        raise UserError(
            f"{path} has the optimizer state of {about.optimizer} and this run trains with {ours}: "
            f"set OptimizerConfig.algorithm to {about.optimizer}, or start anew in another workdir"
        )
    if about.moment_dtype != ours_stored:
        _LOG.warning("%s: moments are converted from %s to %s", path, about.moment_dtype, ours_stored)
    wanted = abstract_arrays_to_load(engine, about.trained)
    # Each process reads the shards of its devices, without waiting for the others.
    loaded = {name: read_arrays(path / name, tree) for name, tree in wanted.items()}
    for names, consequence in (
        (trained - about.trained, "starts fresh, as it has none of it"),
        (about.trained - trained, "is left out"),
    ):
        if names:
            _LOG.warning("%s: optimizer state of %s %s", path, ", ".join(sorted(names)), consequence)
    host_state = read_json_object(path / HOST_FILE)
    return RestoredState(state_from_arrays(engine, loaded), host_state, int(path.name), chosen.passed_over)


def restore_parameters(
    directory: pathlib.Path, config: ModelConfig, device: jax.Device, step: int | None = None
) -> tuple[Tree, int]:
    """Restores the parameters of the newest checkpoint that can be read, or of a step, on one device.

    Returns:
        `{module: {piece: {layer: {...}}}}` in float32, and the number of steps done.

    Raises:
        UserError: As `CheckpointManager.restore`.
    """
    path = _parameters_of(directory, config, step)
    return read_arrays(path / "parameters", _on_device(_shapes(config), device)), int(path.name)


def layer_reader(
    directory: pathlib.Path, config: ModelConfig, device: jax.Device, step: int | None = None
) -> tuple[Callable[[str, str, str], Tree], int]:
    """Makes a function that reads the parameters of one (module, piece, layer) to the host, through a device.

    Returns:
        The function, and the number of steps of the checkpoint: `step`, or the newest that can be read.

    Raises:
        UserError: As `CheckpointManager.restore`.
    """
    path = _parameters_of(directory, config, step)
    shapes = _shapes(config)

    def read(module: str, piece: str, layer: str) -> Tree:
        wanted = {module: {piece: {layer: _on_device(shapes[module][piece][layer], device)}}}
        return jax.tree.map(np.asarray, read_arrays(path / "parameters", wanted)[module][piece][layer])

    return read, int(path.name)


def _parameters_of(directory: pathlib.Path, config: ModelConfig, step: int | None) -> pathlib.Path:
    """Finds the newest checkpoint with whole parameters, or a given step's, and checks that it is of this model."""
    path = newest_whole(directory, step, damage_of_parameters).path
    check_same_model(path, ModelDocument.read(path).model, config)
    return path


def _shapes(config: ModelConfig) -> Tree:
    return {module.name: abstract_module_parameters(module) for module in model_modules(config)}


def _on_device(shapes: Tree, device: jax.Device) -> Tree:
    sharding = SingleDeviceSharding(device)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes)
