"""Finding the checkpoints in a directory, and the newest whole one among them.

Resuming, inference and the launcher call it; checkpoints that are being written, or do not match their checksums, are
passed over.
"""

import dataclasses
import itertools
import json
import logging
import pathlib
import shutil
import zlib
from collections.abc import Callable, Collection

import jax

from configs.common.errors import UserError
from mmjax.training.checkpoints.array_files import describe_failure
from mmjax.training.checkpoints.file_checksums import (
    FILE_LIST,
    UnreadableCheckpointError,
    file_crc32,
    find_damage,
)
from mmjax.training.checkpoints.json_files import MODEL_FILE
from mmjax.training.checkpoints.remote_folder import RemoteFolder, RemoteNotListedError
from sharding.runtime.coordination import exchange_texts

_LOG = logging.getLogger(__name__)

UNFINISHED_MARK = ".unfinished"
"""End of the name of a checkpoint that is being written, or whose writing was interrupted."""

SET_ASIDE = "set_aside"
"""Folder, next to the checkpoints, for checkpoints that a run does not continue."""

FindDamage = Callable[[pathlib.Path], str | None]
"""Describes the damage of the checkpoint in a folder, or returns None; raises UnreadableCheckpointError if unknown."""


@dataclasses.dataclass(frozen=True)
class ChosenCheckpoint:
    """The checkpoint that is taken.

    Attributes:
        path: Its folder.
        passed_over: A line with the reason for each checkpoint that was tried before it and is not whole, and for
            each half-written checkpoint.
    """

    path: pathlib.Path
    passed_over: tuple[str, ...]


def saved_steps(directory: pathlib.Path) -> list[int]:
    """Steps with a checkpoint in the directory, ascending, whether they can be read or not."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit() and path.is_dir())


def refuse_existing_checkpoints(directory: pathlib.Path, remote: RemoteFolder | None = None) -> None:
    """Raises UserError if a run that does not resume would mix its checkpoints with another run's."""
    for place, steps in ((directory, saved_steps(directory)), (remote, remote.steps() if remote else [])):
        if steps:
            raise UserError(
                f"{place} already holds checkpoints, the newest of step {steps[-1]}; "
                f"add --resume to continue from it, or choose another {'workdir' if place is directory else 'folder'}"
            )


def newest_whole(directory: pathlib.Path, step: int | None, damage_of: FindDamage) -> ChosenCheckpoint:
    """Finds the newest whole checkpoint, or a given step's, for this process alone; warns of checkpoints passed over.

    Args:
        directory: Folder of the checkpoints.
        step: Take this step's checkpoint and no other.
        damage_of: Describes the damage of a checkpoint.

    Raises:
        UserError: There is no checkpoint, none that is whole, or the directory cannot be listed.
        UnreadableCheckpointError: A file of the newest cannot be read.
    """
    try:
        steps = saved_steps(directory)
    except OSError as error:
        raise UnreadableCheckpointError(f"{directory} cannot be listed: {error.strerror}") from error
    return _choose(directory, step, damage_of, steps)


def newest_whole_for_all(
    directory: pathlib.Path, step: int | None, remote: RemoteFolder | None = None
) -> ChosenCheckpoint:
    """As `newest_whole`, with the same result in all processes, which all call this; any process may find damage.

    Args:
        directory: Folder of the checkpoints.
        step: Take this step's checkpoint and no other.
        remote: Folder of copies, which are fetched where the directory has no whole checkpoint.

    Raises:
        UserError: There is no checkpoint, or none that is whole, or the processes see different ones.
        UnreadableCheckpointError: Some process cannot read a file of the newest.
    """
    local = steps_for_all(directory)
    copies = remote_steps(remote, bool(local)) if remote else []
    chosen = _choose(directory, step, damage_found_by_any_process, local, remote, copies)
    path = chosen.path
    try:
        seen = f"CRC-32 {file_crc32(path / FILE_LIST):08x}"
    except OSError as error:
        seen = f"not readable: {error.strerror}"
    choices = exchange_texts("the chosen checkpoint", f"step {path.name} ({FILE_LIST}: {seen})")
    for process, choice in sorted(choices.items()):
        if choice != choices[0]:
            raise UserError(
                f"the processes see different checkpoints in {directory}: process 0 {choices[0]}, process {process} "
                f"{choice}; all processes need one workdir on a shared file system"
            )
    return chosen


def _choose(
    directory: pathlib.Path,
    step: int | None,
    damage_of: FindDamage,
    local: list[int],
    remote: RemoteFolder | None = None,
    copies: Collection[int] = (),
) -> ChosenCheckpoint:
    """Chooses for both functions above, among the steps in the directory and the copies in a remote folder."""
    steps = sorted({*local, *copies})
    unfinished = [
        f"{path} passed over: half-written, its run was stopped while saving"
        for path in sorted(directory.glob(f"*{UNFINISHED_MARK}"))
    ]
    for said in unfinished:
        _LOG.warning("%s", said)
    if step is not None and step not in steps:
        raise UserError(f"{directory} has no checkpoint of step {step}; it has checkpoints of {steps}")
    if not steps:
        raise UserError(f"{directory} has no checkpoint to continue from; start without --resume")
    reasons: list[str] = []
    for candidate in reversed(steps) if step is None else [step]:
        path = directory / str(candidate)
        damage = damage_of(path) if candidate in local else None
        if candidate in local:
            if damage is None:
                return ChosenCheckpoint(path, (*unfinished, *reasons))
            reasons.append(f"{path} passed over: {damage}")
            _LOG.warning("%s", reasons[-1])
        if remote and candidate in copies:
            damage = fetch_checkpoint(remote, directory, candidate) or damage_of(path)
            if damage is None:
                return ChosenCheckpoint(path, (*unfinished, *reasons))
            reasons.append(f"step {candidate} of {remote} passed over: {damage}")
            _LOG.warning("%s", reasons[-1])
    raise UserError(f"no checkpoint is whole; start anew in another workdir ({'; '.join(reasons)})")


def steps_for_all(directory: pathlib.Path) -> list[int]:
    """As `saved_steps`, as process 0 lists them; all processes call this.

    Raises:
        UserError: The directory cannot be listed.
    """
    steps, failure = "", ""
    if jax.process_index() == 0:
        try:
            steps = " ".join(map(str, saved_steps(directory)))
        except OSError as error:
            failure = f"{directory} cannot be listed: {error.strerror}"
    if failure := exchange_texts("a failure to list the checkpoints", failure)[0]:
        raise UserError(failure)
    return [int(step) for step in exchange_texts("the checkpoints", steps)[0].split()]


def remote_steps(remote: RemoteFolder, can_do_without: bool) -> list[int]:
    """Steps of the copies in a remote folder, as process 0 lists them; all processes call this.

    Raises:
        UserError: As `RemoteFolder.steps`, if the run cannot do without it; if it can, that is a warning.
    """
    steps, failure = "", None
    if jax.process_index() == 0:
        try:
            steps = " ".join(map(str, remote.steps()))
        except UserError as error:
            failure = error
    said = exchange_texts("a failure to list the remote checkpoints", str(failure or ""))[0]
    steps = exchange_texts("the remote checkpoints", steps)[0]
    if said and not can_do_without:
        raise failure or RemoteNotListedError(said)
    if said and jax.process_index() == 0:
        _LOG.warning("%s; its checkpoints are left out", said)
    return [int(step) for step in steps.split()]


def fetch_checkpoint(remote: RemoteFolder, directory: pathlib.Path, step: int) -> str | None:
    """Copies a checkpoint from the remote folder in process 0; returns its damage, if any, in all processes.

    Raises:
        UnreadableCheckpointError: The copy is there and could not be fetched.
    """
    damage = unreadable = ""
    if jax.process_index() == 0:
        unfinished = directory / f"{step}-fetched{UNFINISHED_MARK}"
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            remote.fetch(step, unfinished)
            if (directory / str(step)).exists():
                set_aside(directory, step)
            unfinished.rename(directory / str(step))
            _LOG.warning("step %d is fetched from %s", step, remote)
        except Exception as error:  # file systems of object stores raise errors of many types
            said = f"cannot be fetched: {describe_failure(error)}"
            if isinstance(error, UserError | FileNotFoundError) and not isinstance(error, UnreadableCheckpointError):
                damage = f"it {said}"
            else:
                unreadable = f"the checkpoint of step {step} in {remote} {said}; no older one is taken for it"
            shutil.rmtree(unfinished, ignore_errors=True)
    return _agree_on_damage("the fetched checkpoint", damage, unreadable)


def set_aside(directory: pathlib.Path, step: int) -> pathlib.Path:
    """Moves a checkpoint to the folder for set-aside ones, and returns its path; it may be worth keeping."""
    folder = directory / SET_ASIDE
    folder.mkdir(exist_ok=True)
    names = (f"{step}-{number}" if number > 1 else str(step) for number in itertools.count(1))
    target = next(path for name in names if not (path := folder / name).exists())
    (directory / str(step)).rename(target)
    return target


def damage_of_parameters(checkpoint: pathlib.Path) -> str | None:
    """Describes the damage of a checkpoint of which the parameters alone are read, found by this process alone."""
    return find_damage(checkpoint, lambda name: name == MODEL_FILE or name.startswith("parameters/"))


def damage_found_by_any_process(checkpoint: pathlib.Path) -> str | None:
    """Describes the damage of a checkpoint; each process compares its share of the files, and all learn the outcome.

    Raises:
        UnreadableCheckpointError: In all processes, if one of them cannot read a file.
    """
    processes, process = jax.process_count(), jax.process_index()
    damage, unreadable = None, ""
    try:
        damage = find_damage(checkpoint, lambda name: zlib.crc32(name.encode()) % processes == process)
    except UnreadableCheckpointError as error:
        unreadable = str(error)
    return _agree_on_damage("the choice of a checkpoint", damage or "", unreadable)


def _agree_on_damage(phase: str, damage: str, unreadable: str) -> str | None:
    """Returns the damage that this process has found or, if it has found none, another process; None if none has.

    Raises:
        UnreadableCheckpointError: In all processes, if one of them could not read a file.
    """
    said = {who: json.loads(text) for who, text in exchange_texts(phase, json.dumps([damage, unreadable])).items()}
    for who, (_, reason) in sorted(said.items()):
        if reason:
            raise UnreadableCheckpointError(reason if len(said) == 1 else f"process {who}: {reason}")
    reports = [(who, reason) for who, (reason, _) in sorted(said.items()) if reason]
    if not reports or damage:
        return damage or None
    who, reason = reports[0]
    return f"{reason} (as process {who} reports)"
