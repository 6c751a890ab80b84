"""The step planner: which samples form step k, in which rows, from their sizes alone.

The stream of samples is planned one window at a time. Where a window ends follows from the sizes of its samples
(`WindowRule`), so it may hold samples of several epochs, and a sample more than once. A plan depends on the
configuration, the seed and the planner's state, never on hosts, workers or decoded data. Samples that fill no step at
the end of a window are carried into the next one. `PlannerState` is the whole state: where the window starts, its
number, the steps taken, the carried samples.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np
from jaxtyping import Int

from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.errors import DataError
from data.packing.grouping.algorithms import GroupingAlgorithm
from data.packing.grouping.grouping_policies import row_limits
from data.packing.grouping.steps import FormSteps, form_window_steps
from data.packing.grouping.windows import WindowRule
from data.packing.rows.refusals import Refusal, UnreadableInARow, call_or_refuse, oversized_refusal, too_many_in_a_row
from data.samples.sample import SampleSizes

OrderRows = Callable[[Sequence[Sequence[SampleSizes]]], Int[np.ndarray, " n"]]
"""Sizes of the samples of every row -> the order of the rows, a permutation."""

Row = tuple[int, ...]
"""Sample ids of a row."""


@dataclasses.dataclass(frozen=True)
class PlannerState:
    """Progress of a planner in the stream of samples.

    Attributes:
        window_start: Position in the stream where the current window begins.
        window_number: Number of the window.
        steps_taken: Number of steps of the window that were returned.
        carried_samples: Sample ids carried over from the window before, in order.
    """

    window_start: int = 0
    window_number: int = 0
    steps_taken: int = 0
    carried_samples: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values."""
        return dataclasses.asdict(self) | {"carried_samples": list(self.carried_samples)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "PlannerState":
        """The state that `to_json` wrote."""
        return cls(**{**fields, "carried_samples": tuple(fields["carried_samples"])})


@dataclasses.dataclass(frozen=True, eq=False)
class StepPlan:
    """The samples of one step.

    A window whose samples fill no step has a plan without rows if any are refused, so that the refusals are known.

    Attributes:
        rows: Sample ids of every row, in order.
        sizes: Sizes of each sample, by id.
        state_after: State of the planner after this step.
        refused: Samples of the step's window that are in no step.
    """

    rows: tuple[Row, ...]
    sizes: Mapping[int, SampleSizes]
    state_after: PlannerState
    refused: tuple[Refusal, ...]

    def reordered(self, order_rows: OrderRows) -> "StepPlan":
        """The plan with its rows in another order."""
        if not self.rows:
            return self
        order = order_rows([[self.sizes[sample_id] for sample_id in row] for row in self.rows])
        if sorted(order.tolist()) != list(range(len(self.rows))):
            raise ValueError("a row order must be a permutation of the rows")
        return dataclasses.replace(self, rows=tuple(self.rows[row] for row in order))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RowPlanner:
    """Plans the steps of a stream of samples.

    Attributes:
        sample_stream: Sample ids in the order of the stream; endless in training.
        sample_index: Sizes of the samples.
        capacity: Capacity of a row.
        rows_per_step: Number of rows of a step.
        window_size: Number of samples of the stream that are grouped at a time, at least (`WindowRule.least`).
        epoch_length: Number of consecutive samples of the stream of which at least one must be usable.
        group_samples: Groups samples into rows.
        form_steps: Groups rows into steps.
        seed: Seed of the groups and of the steps.
        strict: Whether a sample that does not fit into a row is an error; otherwise it is refused.
    """

    sample_stream: Sequence[int] | grain.MapDataset[int]
    sample_index: SampleIndex
    capacity: RowCapacity
    rows_per_step: int
    window_size: int
    epoch_length: int
    group_samples: GroupingAlgorithm
    form_steps: FormSteps
    seed: int
    strict: bool

    def steps(self, state: PlannerState) -> Iterator[StepPlan]:
        """The steps that follow a state.

        Raises:
            DataError: None of the samples of an epoch can be used, `MOST_IN_A_ROW` in a row are unreadable, or one is
                oversized and the planner is strict.
        """
        skipped_steps, unusable_samples, in_a_row = state.steps_taken, 0, UnreadableInARow()
        while True:
            window = self._plan_window(state, in_a_row)
            if in_a_row.too_many:
                yield StepPlan((), {}, window.next, window.refused)  # they are listed before the run ends
                last = [refusal for refusal in window.refused if refusal.cause == "unreadable"][-1]
                raise DataError(too_many_in_a_row(f"{last.key}: {last.reason}"))
            if window.refused and not window.steps:
                yield StepPlan((), {}, window.next, window.refused)
            unusable_samples = 0 if window.sizes else unusable_samples + window.next.window_start - state.window_start
            if unusable_samples >= self.epoch_length and not window.is_last:
                raise DataError(
                    f"not one of {unusable_samples} samples can be used; the last: {window.refused[-1].key}: "
                    f"{window.refused[-1].reason}"
                )
            for number, rows in enumerate(window.steps[skipped_steps:], start=skipped_steps + 1):
                window_ends = number == len(window.steps)
                state_after = window.next if window_ends else dataclasses.replace(state, steps_taken=number)
                sizes = {sample_id: window.sizes[sample_id] for row in rows for sample_id in row}
                yield StepPlan(rows, sizes, state_after, window.refused)
            if window.is_last:
                return
            state, skipped_steps = window.next, 0

    @functools.cached_property
    def window_rule(self) -> WindowRule:
        """Where windows end."""
        return WindowRule(limits=row_limits(self.capacity), rows=self.rows_per_step, least=self.window_size)

    def _plan_window(self, state: PlannerState, in_a_row: UnreadableInARow) -> "_PlannedWindow":
        read = self._read_window(state, in_a_row)
        random = np.random.default_rng((self.seed, state.window_number))
        stream_ends = read.end == len(self.sample_stream)
        steps, leftover = self._form_steps(read, random, more_windows=not stream_ends)
        if stream_ends and leftover:
            steps.append(tuple((*leftover, *[()] * self.rows_per_step)[: self.rows_per_step]))
            leftover = leftover[self.rows_per_step :]
        carried = tuple(sample_id for row in leftover for sample_id in row)
        next_state = PlannerState(read.end, state.window_number + 1, 0, carried)
        is_last = stream_ends and not carried
        return _PlannedWindow(steps, read.sizes, tuple(read.refused.values()), next_state, is_last)

    def _read_window(self, state: PlannerState, in_a_row: UnreadableInARow) -> "_ReadWindow":
        """The samples of a window; it ends early where too many in a row are unreadable, and with it the run."""
        window = _ReadWindow(state.window_start, np.zeros(len(self.window_rule.limits), np.int64))
        for sample_id in state.carried_samples:
            self._add_sample(window, sample_id)
        while (
            window.end < len(self.sample_stream)
            and not self.window_rule.is_full(window.end - state.window_start, window.content)
            and not in_a_row.too_many
        ):
            sample_id = self.sample_stream[window.end]
            assert sample_id is not None  # a grain.MapDataset that was filtered would have gaps
            self._add_sample(window, int(sample_id))
            refusal = window.refused.get(int(sample_id))
            in_a_row.add([refusal is not None and refusal.cause == "unreadable"])
            window.end += 1
        return window

    def _add_sample(self, window: "_ReadWindow", sample_id: int) -> None:
        """Adds a sample to a window: its sizes if it is usable, otherwise its refusal."""
        if sample_id in window.refused:
            return
        if sample_id not in window.sizes:
            outcome = self._sizes_or_refusal(sample_id)
            if isinstance(outcome, Refusal):
                window.refused[sample_id] = outcome
                return
            window.sizes[sample_id] = outcome
        row_units = window.sizes[sample_id].row_units
        units = [*(row_units[name] for name in self._names_in_use), 1]
        window.usable.append(sample_id)
        window.units.append(units)
        window.content += units

    def _sizes_or_refusal(self, sample_id: int) -> SampleSizes | Refusal:
        sizes = call_or_refuse(self.sample_index.sizes, self.sample_index, sample_id)
        if isinstance(sizes, Refusal):
            return sizes
        oversized = oversized_refusal(sizes, self.capacity, self.sample_index, sample_id)
        if oversized and self.strict:
            raise DataError(f"sample {sample_id} ({oversized.kind}): {oversized.reason}")
        return oversized or sizes

    @functools.cached_property
    def _names_in_use(self) -> tuple[str, ...]:
        """Names of the quantities of which a row holds any: the columns of `row_limits`, but for the last."""
        return tuple(name for name, capacity in self.capacity.units.items() if capacity)

    def _form_steps(
        self, read: "_ReadWindow", random: np.random.Generator, *, more_windows: bool
    ) -> tuple[list[tuple[Row, ...]], list[Row]]:
        """Whole steps, and the leftover rows."""
        if not read.usable:
            return [], []
        window = form_window_steps(
            np.array(read.units, float),
            self.window_rule.limits,
            self.group_samples,
            self.form_steps,
            self.rows_per_step,
            random,
            more_windows=more_windows,
        )
        rows = [tuple(read.usable[member] for member in members) for members in window.groups]
        steps = [tuple(rows[group] for group in step) for step in window.steps]
        return steps, [rows[group] for group in window.leftover]


@dataclasses.dataclass(eq=False)
class _ReadWindow:
    """The samples of a window; the samples that were carried into it come first.

    Attributes:
        end: Position in the stream behind the last one.
        content: Sums of `units`.
        usable: Ids of usable samples; one may be in it more than once.
        units: Units of each usable sample, by the quantities of a row.
        sizes: Sizes by id.
        refused: Refusals of the others, by id.
    """

    end: int
    content: Int[np.ndarray, " k"]
    usable: list[int] = dataclasses.field(default_factory=list)
    units: list[list[int]] = dataclasses.field(default_factory=list)
    sizes: dict[int, SampleSizes] = dataclasses.field(default_factory=dict)
    refused: dict[int, Refusal] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class _PlannedWindow:
    """The steps of a window, and the state after it."""

    steps: list[tuple[Row, ...]]
    sizes: Mapping[int, SampleSizes]
    refused: tuple[Refusal, ...]
    next: PlannerState
    is_last: bool
