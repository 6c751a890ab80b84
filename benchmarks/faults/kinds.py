"""The kinds of faults: when each can hit, what it does to a run, and how one sees from outside that the run knows."""

import contextlib
import dataclasses
import os
import random
import re
import resource
import signal
from collections.abc import Callable

from benchmarks.faults.damage import damage_image, tear_checkpoint
from benchmarks.faults.disturbed_run import DisturbedRun
from benchmarks.faults.moments import BOUND, Phase
from mmjax.training.checkpoints.discovery import saved_steps
from mmjax.training.metrics.metrics_file import METRICS_FILE

DISK_BYTES = 40_000
"""Size beyond which no file grows on a full disk, at most: smaller than a checkpoint's arrays."""


_NOT_SAVED = re.compile(r"the checkpoint of step (\d+) was not written to")


def count_failed_saves(output: str, after: int) -> int:
    """How often an output says that the checkpoint of a step after this one was not written."""
    return sum(int(match[1]) > after for match in _NOT_SAVED.finditer(output))


def _nothing() -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Injection:
    """A fault that has happened.

    Attributes:
        what: A description of the fault.
        noticed: Whether the run has noticed it, as seen from outside; None where there is nothing to notice yet, or
            nobody is left to notice it.
        repair: Ends the cause, once the run has noticed it: the disk has room again, the producer is back.
    """

    what: str
    noticed: Callable[[], bool] | None
    repair: Callable[[], None] = _nothing


Inject = Callable[[DisturbedRun, random.Random], Injection | None]
"""Does a fault; None where this run cannot have it any more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultKind:
    """A kind of fault.

    Attributes:
        name: The kind in words.
        weight: How many of 100 faults are of this kind.
        phases: Phases of a run in which it can hit.
        inject: Does the fault to a run.
    """

    name: str
    weight: int
    phases: tuple[Phase, ...]
    inject: Inject


def _all_ended(disturbed: DisturbedRun) -> Callable[[], bool]:
    """Whether all processes that run now have ended, some of them by the supervisor."""
    run, pids = disturbed.run, set(disturbed.run.pids().values())
    return lambda: pids.isdisjoint(run.pids().values())


def _signal_one(disturbed: DisturbedRun, chance: random.Random, number: signal.Signals) -> Injection | None:
    pids, noticed = disturbed.run.pids(), _all_ended(disturbed)
    if not pids:
        return None
    rank = chance.choice(sorted(pids))
    try:
        os.kill(pids[rank], number)
    except ProcessLookupError:
        return None
    return Injection(f"{number.name} to process {rank} of {disturbed.run.processes}", noticed)


def kill(disturbed: DisturbedRun, chance: random.Random) -> Injection | None:
    """Kills a process."""
    return _signal_one(disturbed, chance, signal.SIGKILL)


def freeze(disturbed: DisturbedRun, chance: random.Random) -> Injection | None:
    """Stops a process, which does nothing from then on and does not end."""
    return _signal_one(disturbed, chance, signal.SIGSTOP)


def tear_newest_checkpoint(disturbed: DisturbedRun, chance: random.Random) -> Injection | None:
    """Kills all processes at once and damages the newest checkpoint, as a loss of power does."""
    run, folder = disturbed.run, disturbed.folder.checkpoints
    run.wait_until(lambda: len(saved_steps(folder)) > 1, BOUND, "a second checkpoint")
    with run.launcher_stopped():
        run.kill_processes()
        steps = saved_steps(folder)
        damage = tear_checkpoint(folder / str(steps[-1]), chance)
    return Injection(f"checkpoint {steps[-1]} of {steps}, {damage}", None)


def fill_disk(disturbed: DisturbedRun, chance: random.Random) -> Injection | None:
    """Lets no file of a process grow beyond what `metrics.jsonl` has: it can neither save nor write metrics.

    The disk has room again when the run has said that it cannot save.
    """
    run, pids = disturbed.run, disturbed.run.pids()
    if not pids:
        return None
    rank = chance.choice(sorted(pids))
    done = disturbed.steps_done  # all processes say it of a save that fails, some after the disk had room again

    def failed_saves() -> int:
        return count_failed_saves(run.all_output(), done)

    said, ended = failed_saves(), _all_ended(disturbed)
    metrics = disturbed.folder.workdir / METRICS_FILE
    size = min(metrics.stat().st_size, DISK_BYTES) if metrics.exists() else DISK_BYTES
    try:
        _, hard = resource.prlimit(pids[rank], resource.RLIMIT_FSIZE)
        resource.prlimit(pids[rank], resource.RLIMIT_FSIZE, (size, hard))
    except ProcessLookupError:
        return None

    def repair() -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pids[rank], resource.RLIMIT_FSIZE, (hard, hard))

    return Injection(
        f"disk of process {rank} of {run.processes} full", lambda: ended() or failed_saves() > said, repair
    )


def kill_producer(disturbed: DisturbedRun, chance: random.Random) -> Injection | None:
    """Kills a producer, which starts again when the run has noticed."""
    run, message = disturbed.run, "is unavailable"
    number, said = chance.randrange(len(disturbed.producers)), run.logs_say(message)
    disturbed.producers[number].kill()
    return Injection(
        f"producer {number} killed",
        lambda: run.logs_say(message) > said,
        lambda: disturbed.restart_producer(number),
    )


def damage_sample(disturbed: DisturbedRun, chance: random.Random) -> Injection | None:
    """Damages an image that no step has read yet; it is refused later."""
    done = disturbed.steps_done
    images = [number for number, last in disturbed.late_images.items() if last > done]
    images = sorted(set(images) - disturbed.damaged)
    if not images:
        return None
    number = chance.choice(images)
    damage = damage_image(disturbed.image(number), chance)
    disturbed.damaged.add(number)
    return Injection(f"image {number} {damage} after step {done}", None)


def lose_host(disturbed: DisturbedRun, chance: random.Random) -> Injection | None:
    """Kills all processes and their launcher; the run goes on with one process less, on the plan for them."""
    left = disturbed.run.processes - 1
    if left < 2:
        return None
    disturbed.relaunch(left)
    return Injection(f"{left} of {left + 1} processes are left", None)


KILL = FaultKind(
    name="killed process",
    weight=32,
    phases=("starting", "restoring", "compiling", "training", "saving", "evaluating"),
    inject=kill,
)
FREEZE = FaultKind(
    name="frozen process",
    weight=14,
    phases=("starting", "restoring", "compiling", "training", "saving", "evaluating"),
    inject=freeze,
)
TORN = FaultKind(name="torn checkpoint", weight=18, phases=("training", "saving"), inject=tear_newest_checkpoint)
FULL_DISK = FaultKind(name="full disk", weight=10, phases=("training",), inject=fill_disk)
PRODUCER = FaultKind(name="dead producer", weight=10, phases=("training",), inject=kill_producer)
SAMPLE = FaultKind(name="corrupted sample", weight=8, phases=("training",), inject=damage_sample)
LOST_HOST = FaultKind(name="lost host", weight=8, phases=("training", "saving"), inject=lose_host)

KINDS = (KILL, FREEZE, TORN, FULL_DISK, PRODUCER, SAMPLE, LOST_HOST)
