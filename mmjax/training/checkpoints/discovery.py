"""Which checkpoints a directory has, and which of them is the newest that is whole."""

import logging
import pathlib
import zlib
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from configs.errors import UserError
from mmjax.training.checkpoints.file_checksums import find_damage
from sharding.runtime.coordination import wait_for_processes

_LOG = logging.getLogger(__name__)

UNFINISHED_MARK = ".orbax-checkpoint-tmp"
"""Part of the name of a checkpoint that is being written, or whose writing was interrupted."""

FindDamage = Callable[[pathlib.Path], str | None]
"""What is wrong with the checkpoint in a folder, or None."""


def saved_steps(directory: pathlib.Path) -> list[int]:
    """Steps with a checkpoint in the directory, ascending, whether they can be read or not."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit() and path.is_dir())


def refuse_existing_checkpoints(directory: pathlib.Path) -> None:
    """Raises UserError if a run that does not resume would mix its checkpoints with those of another run."""
    if steps := saved_steps(directory):
        raise UserError(
            f"{directory} already holds checkpoints, the newest of step {steps[-1]}; "
            "add --resume to continue from it, or choose another workdir"
        )


def newest_whole(directory: pathlib.Path, step: int | None, damage_of: FindDamage) -> pathlib.Path:
    """Path of the newest whole checkpoint, or of that of a step; warns of those passed over.

    Args:
        directory: Folder of the checkpoints.
        step: Take this step's checkpoint and no other.
        damage_of: What is wrong with a checkpoint.

    Raises:
        UserError: There is no checkpoint, or none that is whole.
    """
    steps = saved_steps(directory)
    for path in sorted(directory.glob(f"*{UNFINISHED_MARK}*")):
        _LOG.warning("%s passed over: half-written, its run was stopped while saving", path)
    if step is not None and step not in steps:
        raise UserError(f"{directory} has no checkpoint of step {step}; it has those of {steps}")
    if not steps:
        raise UserError(f"{directory} has no checkpoint to continue from; start without --resume")
    reasons = []
    for candidate in reversed(steps) if step is None else [step]:
        path = directory / str(candidate)
        damage = damage_of(path)
        if damage is None:
            return path
        reasons.append(f"{path} passed over: {damage}")
        _LOG.warning(reasons[-1])
    raise UserError(f"no checkpoint is whole; start anew in another workdir ({'; '.join(reasons)})")


def damage_of_parameters(checkpoint: pathlib.Path) -> str | None:
    """What is wrong with a checkpoint of which the parameters alone are read, by this process alone."""
    return find_damage(checkpoint, lambda name: name.partition("/")[0] in ("parameters", "model"))


def damage_found_by_any_process(checkpoint: pathlib.Path) -> str | None:
    """What is wrong with a checkpoint; each process compares its share of the files, and all learn the outcome."""
    processes, process = jax.process_count(), jax.process_index()
    damage = find_damage(checkpoint, lambda name: zlib.crc32(name.encode()) % processes == process)
    if processes == 1:
        return damage
    wait_for_processes("the choice of a checkpoint")
    found = multihost_utils.process_allgather(np.array(damage is not None))
    return damage or (f"damaged, as process {int(np.argmax(found))} reports" if np.any(found) else None)
