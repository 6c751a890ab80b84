"""All runs of the benchmark: the undisturbed ones, and the ones that faults hit."""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable

from benchmarks.faults.disturbed_run import DisturbedRun
from benchmarks.faults.draws import DrawnRun, Fault, draw_runs
from benchmarks.faults.end_state import Comparison, EndState, compare, read_end_state
from benchmarks.faults.execution import FaultOutcome, RunEnding, disturb
from benchmarks.faults.moments import BOUND
from benchmarks.faults.training_run import RunFolder

DAMAGED_STEPS = (37, 39)
"""The first image of each of these steps may be damaged."""

READ_AHEAD = 8
"""Steps before the one that needs it, at most, in which a sample is loaded; steps in flight count too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """A disturbed run.

    Attributes:
        processes: Processes that it began with.
        with_producers: Whether producers made its batches.
        faults: The outcomes of its faults.
        ending: How it ended after its last fault.
        comparison: Its end state against the undisturbed run's; None if it did not finish.
    """

    processes: int
    with_producers: bool
    faults: tuple[FaultOutcome, ...]
    ending: RunEnding
    comparison: Comparison | None


class Campaign:
    """Runs everything in a folder.

    Args:
        folder: Where all files go; the files of a run that ended as it should are removed.
        report: Called with each disturbed run.
    """

    def __init__(self, folder: pathlib.Path, report: Callable[[RunOutcome], None]) -> None:
        self._folder, self._report = folder, report
        self._undisturbed: dict[tuple[int, frozenset[int]], EndState] = {}
        self._count = 0

    def run(self, count: int, seed: int) -> list[RunOutcome]:
        """Lets so many faults hit runs; further runs take the faults that were too late for theirs."""
        outcomes: list[RunOutcome] = []
        waiting = draw_runs(count, seed)
        while waiting:
            drawn = waiting.pop(0)
            outcome, left = self._disturbed(drawn)
            outcomes.append(outcome)
            self._report(outcome)
            if left:
                waiting.append(dataclasses.replace(drawn, faults=tuple(left)))
        return outcomes

    def _disturbed(self, drawn: DrawnRun) -> tuple[RunOutcome, list[Fault]]:
        # The order of samples does not depend on the plan or the processes, nor on damage.
        some = next(iter(self._undisturbed.values()), None) or self._undisturbed_end(drawn.processes, frozenset())
        late_images = {some.samples[step][0]: step - READ_AHEAD for step in DAMAGED_STEPS}
        folder = self._new_folder()
        with DisturbedRun(folder, drawn.processes, drawn.with_producers, late_images) as disturbed:
            faults, left, ending = disturb(disturbed, drawn.faults)
            finished, damaged = disturbed.is_finished(), frozenset(disturbed.damaged)
            exact = not disturbed.changed_plan
        comparison = None
        if finished:
            undisturbed = self._undisturbed_end(drawn.processes, damaged)
            comparison = compare(read_end_state(folder), undisturbed, exact, not drawn.with_producers, damaged)
        outcome = RunOutcome(
            processes=drawn.processes,
            with_producers=drawn.with_producers,
            faults=tuple(faults),
            ending=ending,
            comparison=comparison,
        )
        if comparison and comparison.equal and not any(part.hang for part in (*faults, ending)):
            shutil.rmtree(folder.path)
        return outcome, left

    def _undisturbed_end(self, processes: int, damaged: frozenset[int]) -> EndState:
        """The end state of the undisturbed run, in which these images are damaged from the beginning."""
        key = (processes, damaged)
        if key not in self._undisturbed:
            folder = self._new_folder()
            with DisturbedRun(folder, processes, damaged=damaged) as undisturbed:
                code = undisturbed.run.wait_for_end(BOUND)
                if not undisturbed.is_finished():
                    raise RuntimeError(f"the undisturbed run in {folder.path} ended with code {code}")
            self._undisturbed[key] = read_end_state(folder)
            shutil.rmtree(folder.path)
        return self._undisturbed[key]

    def _new_folder(self) -> RunFolder:
        self._count += 1
        return RunFolder(self._folder / f"run-{self._count}", self._folder / "programs")
