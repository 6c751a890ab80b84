"""Workers: batches are planned, decoded and packed ahead of the step that uses them, by a thread or by processes.

Grain runs them. Each worker plans all steps, which is cheap, and decodes every n-th one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grain
from absl import flags

from data.packing.global_batch import GlobalBatch
from data.packing.rows.row_planner import PlannerState, StepPlan

PlanSteps = Callable[[PlannerState], Iterator[StepPlan]]
"""The steps that follow a state."""


def batches_ahead(
    plan_steps: PlanSteps,
    load: Callable[[StepPlan], GlobalBatch],
    prepare: Callable[[GlobalBatch], GlobalBatch],
    state: PlannerState,
    *,
    workers: int,
    prefetch: int,
) -> grain.IterDataset[GlobalBatch]:
    """The batches that follow a state, in order; their iterator has `close`.

    Args:
        plan_steps: Plans the steps; pickled for worker processes, as `load` is.
        load: Decodes and packs a step.
        prepare: Adds to a batch what this process prepares ahead; called in a thread of the process, never pickled.
        state: Where the batches begin.
        workers: Worker processes; 0 for a thread of this process.
        prefetch: Batches that each worker prepares ahead; 0, without workers, prepares each batch on request.
    """
    count = max(workers, 1)
    batches_of_workers = [_StridedSteps(plan_steps, state, worker, count).map(load) for worker in range(count)]
    if not workers:
        batches = batches_of_workers[0].map(prepare)
        return grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=prefetch)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # grain's workers read flags, which a notebook never parses
    one_worker = grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=max(prefetch, 1))
    interleaved = grain.experimental.InterleaveIterDataset(
        [batches.mp_prefetch(one_worker) for batches in batches_of_workers], cycle_length=count
    )
    return grain.experimental.ThreadPrefetchIterDataset(interleaved.map(prepare), prefetch_buffer_size=1)


class _StridedSteps(grain.IterDataset[StepPlan]):
    """Every n-th step after a state."""

    def __init__(self, plan_steps: PlanSteps, state: PlannerState, first: int, stride: int) -> None:
        super().__init__()
        self._plan_steps, self._state, self._first, self._stride = plan_steps, state, first, stride

    def __iter__(self) -> grain.DatasetIterator[StepPlan]:
        return _StridedStepIterator(self._plan_steps(self._state), self._first, self._stride)


class _StridedStepIterator(grain.DatasetIterator[StepPlan]):
    """Iterator of `_StridedSteps`. Every plan carries the planner's state, so grain's own state is not used."""

    def __init__(self, plans: Iterator[StepPlan], first: int, stride: int) -> None:
        super().__init__()
        self._plans, self._skipped, self._stride = plans, first, stride

    def __next__(self) -> StepPlan:
        for _ in range(self._skipped):
            next(self._plans)
        self._skipped = self._stride - 1
        return next(self._plans)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("a planner continues from a PlannerState")
