"""Which samples form step k, in which rows: planned from sizes alone, a window of the stream at a time.

A plan depends on the configuration, the seed and what came before, never on hosts, workers or what was decoded. Samples
that do not fill a step at the end of a window are carried into the next; they and three numbers are the whole state.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np
from jaxtyping import Int

from data.data_config import CAPACITY_FIELDS, RowCapacity
from data.datasets.dataset import SampleIndex
from data.errors import DataError
from data.packing.grouping.algorithms import GroupingAlgorithm
from data.packing.grouping.steps import FormSteps, form_window_steps
from data.packing.refusals import Refusal, call_or_refuse, oversized_refusal
from data.samples.sample import SampleSizes

OrderRows = Callable[[Sequence[Sequence[SampleSizes]]], Int[np.ndarray, " n"]]


@dataclasses.dataclass(frozen=True)
class PlannerState:
    """Where a planner is.

    Attributes:
        position: In the stream, where its window begins.
        window: Number of the window.
        taken: Steps of the window handed out.
        carried: Global ids brought over from the window before, in order.
    """

    window_start: int = 0
    window_number: int = 0
    steps_taken: int = 0
    carried_samples: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dataclasses.asdict(self) | {"carried_samples": list(self.carried_samples)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "PlannerState":
        """What `to_json` gave."""
        return cls(**{**fields, "carried_samples": tuple(fields["carried_samples"])})


@dataclasses.dataclass(frozen=True, eq=False)
class StepPlan:
    """One step.

    Attributes:
        rows: Global ids of every row's samples, in order.
        sizes: What each of them takes.
        after: Where the planner is behind this step.
        refused: Samples of the step's window that no step has.
    """

    rows: tuple[tuple[int, ...], ...]
    sizes: Mapping[int, SampleSizes]
    state_after: PlannerState
    refused: tuple[Refusal, ...]

    def reordered(self, arrange: OrderRows) -> "StepPlan":
        """The same rows in the order that `arrange` gives."""
        order = arrange([[self.sizes[number] for number in row] for row in self.rows])
        if sorted(order.tolist()) != list(range(len(self.rows))):
            raise ValueError("an arrangement must be a permutation of the rows")
        return dataclasses.replace(self, rows=tuple(self.rows[row] for row in order))


@dataclasses.dataclass(frozen=True, eq=False)
class StepPlanner:
    """Makes steps of a stream of samples.

    Attributes:
        order: The stream of global ids; endless in training.
        catalogue: Knows their sizes.
        capacity: Of a row.
        rows: Of a step.
        window: Samples of the stream that are grouped at once.
        epoch: Samples of the stream in which none comes twice; no window reaches over a multiple of it, so that an
            epoch's samples come before the next one's.
        group: Puts samples into rows.
        form: Puts rows into steps.
        seed: Of both.
        strict: Whether a sample that fits no row is an error; else it is refused and noted.
    """

    sample_stream: grain.MapDataset
    sample_index: SampleIndex
    capacity: RowCapacity
    rows: int
    window: int
    epoch: int
    group_samples: GroupingAlgorithm
    form_steps: FormSteps
    seed: int
    strict: bool

    def steps(self, place: PlannerState) -> Iterator[StepPlan]:
        """The steps from a place on."""
        skipped, empty = place.steps_taken, 0
        while True:
            window = self._window(place)
            empty = 0 if window.sizes else empty + window.next.window_start - place.window_start
            if empty >= self.epoch and not window.last:
                raise DataError(
                    f"not one of {empty} samples can be used; the last: {window.refused[-1].key}: "
                    f"{window.refused[-1].reason}"
                )
            for number, rows in enumerate(window.steps[skipped:], start=skipped + 1):
                full = number == len(window.steps)
                after = window.next if full else dataclasses.replace(place, steps_taken=number)
                sizes = {sample: window.sizes[sample] for row in rows for sample in row}
                yield StepPlan(rows, sizes, after, window.refused)
            if window.last:
                return
            place, skipped = window.next, 0

    def _window(self, place: PlannerState) -> "_Window":
        epoch_end = (place.window_start // self.epoch + 1) * self.epoch
        stop = min(place.window_start + self.window, epoch_end, len(self.sample_stream))
        numbers = [*place.carried_samples, *(int(self.sample_stream[at]) for at in range(place.window_start, stop))]
        sizes, refused = self._sizes(numbers)
        accepted = [number for number in numbers if number in sizes]
        random = np.random.default_rng((self.seed, place.window_number))
        last = stop == len(self.sample_stream)
        steps, left = self._group(accepted, sizes, random, last)
        if last and left:
            steps.append(tuple((*left, *[()] * self.rows)[: self.rows]))
            left = left[self.rows :]
        carried = tuple(number for row in left for number in row)
        following = PlannerState(stop, place.window_number + 1, 0, carried)
        return _Window(steps, sizes, refused, following, last and not carried)

    def _sizes(self, numbers: Sequence[int]) -> tuple[dict[int, SampleSizes], tuple[Refusal, ...]]:
        """The sizes of all samples that can be used, and the others."""
        sizes, refused = {}, []
        for number in dict.fromkeys(numbers):
            found = call_or_refuse(self.sample_index.sizes, self.sample_index, number)
            if isinstance(found, Refusal):
                refused.append(found)
            elif excess := oversized_refusal(found, self.capacity, self.sample_index, number):
                if self.strict:
                    raise DataError(f"sample {number} ({excess.kind}): {excess.reason}")
                refused.append(excess)
            else:
                sizes[number] = found
        return sizes, tuple(refused)

    def _group(
        self, numbers: list[int], sizes: Mapping[int, SampleSizes], random: np.random.Generator, last: bool
    ) -> tuple[list[tuple[tuple[int, ...], ...]], list[tuple[int, ...]]]:
        """Full steps, and the rows that are left."""
        if not numbers:
            return [], []
        limits = np.array([*self.capacity.vector, self.capacity.samples])
        used = limits > 0
        units = np.array(
            [[*(getattr(sizes[number], name) for name in CAPACITY_FIELDS), 1] for number in numbers], float
        )
        window = form_window_steps(
            units[:, used], limits[used], self.group_samples, self.form_steps, self.rows, random, waits=not last
        )
        rows = [tuple(numbers[member] for member in members) for members in window.groups]
        return [tuple(rows[group] for group in step) for step in window.steps], [
            rows[group] for group in window.leftover
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class _Window:
    """A window's steps and what comes behind it."""

    steps: list[tuple[tuple[int, ...], ...]]
    sizes: Mapping[int, SampleSizes]
    refused: tuple[Refusal, ...]
    next: PlannerState
    last: bool
