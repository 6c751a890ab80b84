"""Lets faults hit a run one after the other, and measures how it takes them."""

import dataclasses
import random
import time
from collections.abc import Sequence

from benchmarks.faults.disturbed_run import DisturbedRun
from benchmarks.faults.draws import Fault
from benchmarks.faults.launched_run import BoundExceededError, LaunchedRun, RunEndedError
from benchmarks.faults.moments import BOUND, START_PHASES, wait_for
from configs.common.errors import USAGE_ERROR

DETECTION_BOUND = 60.0
"""Seconds within which a fault leads to a restart, or is known to a run that goes on."""

START_BOUND = 75.0
"""This bound until the first program is compiled: before data are open, JAX's own heartbeat needs 60 seconds."""

RESUMPTION_BOUND = 180.0
"""Seconds from the detection of a fault to the next step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultOutcome:
    """How a run took a fault.

    Attributes:
        kind: Name of its kind.
        phase: The phase of the run.
        what: A description of the fault.
        detection: Seconds until the run knew of it, or had ended its processes; None if it did not within the bound.
        resumption: Seconds from there to the next step; None if it did not come within the bound, or where the next
            fault hit before.
        hang: What did not happen within its bound, with the last output; empty if all did.
        exit_code: The launcher's exit code, if the fault ended it; None if the run went on by itself.
        failed_last_save: Whether the launcher ended because the last save of the run failed, as it must.
    """

    kind: str
    phase: str
    what: str
    detection: float | None = None
    resumption: float | None = None
    hang: str = ""
    exit_code: int | None = None
    failed_last_save: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunEnding:
    """How a run ended after its last fault.

    Attributes:
        hang: As in `FaultOutcome`, if the run did not end within its bound.
        exit_code: The launcher's exit code, if it ended with an error and was started once more.
        failed_last_save: As in `FaultOutcome`.
    """

    hang: str = ""
    exit_code: int | None = None
    failed_last_save: bool = False


def disturb(disturbed: DisturbedRun, faults: Sequence[Fault]) -> tuple[list[FaultOutcome], list[Fault], RunEnding]:
    """Lets the faults hit a run in order, and the run end.

    Returns: The outcome of each fault; the faults for which it was too late: the run was finished, or past what they
        damage; and how the run ended.
    """
    outcomes: list[FaultOutcome] = []
    too_late: list[Fault] = []
    for number, fault in enumerate(faults):
        following = faults[number + 1] if number + 1 < len(faults) else None
        next_is_early = following is not None and following.moment.phase in START_PHASES
        try:
            outcome = _hit(disturbed, fault, next_is_early)
        except RunEndedError as ended:
            if ended.code == 0:
                return outcomes, [*too_late, *faults[number:]], RunEnding()
            outcome = _failed_before(disturbed, fault, str(ended))
        except BoundExceededError as exceeded:
            outcome = _failed_before(disturbed, fault, str(exceeded))
        if outcome is None:
            too_late.append(fault)
        else:
            outcomes.append(outcome)
    return outcomes, too_late, finish(disturbed)


def _hit(disturbed: DisturbedRun, fault: Fault, next_is_early: bool) -> FaultOutcome | None:
    wait_for(fault.moment, disturbed.run)
    begin, pids = time.monotonic(), set(disturbed.run.pids().values())
    injection = fault.kind.inject(disturbed, random.Random(fault.seed))
    if injection is None:
        return None
    run = disturbed.run
    outcome = FaultOutcome(kind=fault.kind.name, phase=fault.moment.phase, what=injection.what)
    noticed = begin
    try:
        if injection.noticed:
            bound = START_BOUND if fault.moment.phase in ("starting", "restoring") else DETECTION_BOUND
            noticed = run.wait_until(injection.noticed, bound, "the detection")
            outcome = dataclasses.replace(outcome, detection=noticed - begin)
    except BoundExceededError as exceeded:
        injection.repair()
        return _hung(disturbed, outcome, str(exceeded))
    except RunEndedError as ended:
        injection.repair()
        if ended.code == 0:  # it was done before it could notice
            return None
        noticed = time.monotonic()
        outcome = dataclasses.replace(outcome, detection=noticed - begin)
    injection.repair()
    if (code := run.exit_code()) is not None and code:
        outcome = dataclasses.replace(outcome, exit_code=code, failed_last_save=failed_last_save(run))
        disturbed.relaunch(run.processes)
        run = disturbed.run
    elif pids.isdisjoint(run.pids().values()):
        run.expect_start()
    if next_is_early:
        return outcome
    since = len(run.lines)
    try:
        resumed = run.wait_until(lambda: bool(run.steps_shown(since)), RESUMPTION_BOUND, "the next step")
    except BoundExceededError as exceeded:
        return _hung(disturbed, outcome, str(exceeded))
    except RunEndedError as ended:
        if ended.code == 0:
            return outcome
        outcome = dataclasses.replace(outcome, exit_code=ended.code, failed_last_save=failed_last_save(run))
        disturbed.relaunch(run.processes)
        return outcome
    return dataclasses.replace(outcome, resumption=resumed - noticed)


def _hung(disturbed: DisturbedRun, outcome: FaultOutcome, reason: str) -> FaultOutcome:
    said = "\n".join(disturbed.run.last_output())
    disturbed.relaunch(disturbed.run.processes)
    return dataclasses.replace(outcome, hang=f"{reason}\n{said}")


def _failed_before(disturbed: DisturbedRun, fault: Fault, reason: str) -> FaultOutcome:
    """The run did not reach the moment of a fault: what came before has left it so."""
    outcome = FaultOutcome(kind=fault.kind.name, phase=fault.moment.phase, what="not injected")
    return _hung(disturbed, outcome, reason)


def failed_last_save(run: LaunchedRun) -> bool:
    """Whether the launcher has ended with the error of the last save, which could not be written."""
    return run.exit_code() == USAGE_ERROR and any(
        line.startswith("error: the checkpoint of step") and "was not written to" in line
        for line in run.lines[run.last_start :]
    )


def finish(disturbed: DisturbedRun) -> RunEnding:
    """Lets the run end; one that ends with an error is started once more, as a queue of jobs does."""
    ending = RunEnding()
    for is_last in (False, True):
        try:
            code = disturbed.run.wait_for_end(BOUND)
        except BoundExceededError as exceeded:
            said = "\n".join(disturbed.run.last_output())
            return dataclasses.replace(ending, hang=f"{exceeded}\n{said}")
        if not code:
            break
        failed = failed_last_save(disturbed.run) and (ending.exit_code is None or ending.failed_last_save)
        ending = RunEnding(exit_code=code, failed_last_save=failed)
        if not is_last:
            disturbed.relaunch(disturbed.run.processes)
    return ending
