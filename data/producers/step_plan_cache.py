"""The step-plan cache: planned steps by planner state, for requests slightly out of order and of several trainers.

Each producer has one.
"""

import collections
import threading
from collections.abc import Iterator

from data.errors import DataError
from data.packing.pipeline import BatchPipeline
from data.packing.rows.row_planner import PlannerState, StepPlan
from data.producers.step_request import MAX_STEPS_AHEAD

MAX_CHAINS = 8
"""Sequences of steps, each from another state, that are cached."""

MAX_PLANS = 2 * MAX_STEPS_AHEAD
"""Newest plans of a sequence that are cached."""


class _PlanChain:
    """Consecutive steps from a state on, of which the newest are cached."""

    def __init__(self, plans: Iterator[StepPlan], state: PlannerState) -> None:
        self._plans = plans
        # Each plan with the state before it.
        self._cached: collections.deque[tuple[PlannerState, StepPlan]] = collections.deque()
        self._end = state
        self._first = 0  # number of the first cached plan
        self._numbers = {state: 0}  # number of the step that follows a state

    def __contains__(self, state: PlannerState) -> bool:
        return state in self._numbers

    def step(self, state: PlannerState, skip: int) -> StepPlan:
        """The step that comes `skip` steps after a state of the chain."""
        number = self._numbers[state] + skip
        while number >= self._first + len(self._cached):
            self._extend()
        return self._cached[number - self._first][1]

    def _extend(self) -> None:
        plan = next(self._plans, None)
        if plan is None:
            raise DataError("there are no more steps: the data has an end")
        self._cached.append((self._end, plan))
        self._end = plan.state_after
        self._numbers[plan.state_after] = self._first + len(self._cached)
        if len(self._cached) > MAX_PLANS:
            state_before, _ = self._cached.popleft()
            del self._numbers[state_before]
            self._first += 1


class StepPlanCache:
    """The steps of a pipeline by the state that they follow; threads may share it.

    A request that continues from an earlier answer costs the planning of one step. Another state starts another chain
    of steps, which costs the planning of the window that the state is in; least recently used chains are dropped.
    """

    def __init__(self, pipeline: BatchPipeline) -> None:
        self._pipeline = pipeline
        self._chains: list[_PlanChain] = []  # least recently used first
        self._lock = threading.Lock()

    def step(self, state: PlannerState, skip: int) -> StepPlan:
        """The step that comes `skip` steps after a state.

        Raises:
            DataError: The state is outside the stream of samples, or planning fails.
        """
        stream_length = len(self._pipeline.planner.sample_stream)
        if state.window_start >= stream_length:
            raise DataError(f"there is no position {state.window_start} in a stream of {stream_length} samples")
        with self._lock:
            chain = next((chain for chain in self._chains if state in chain), None)
            if chain is None:
                chain = _PlanChain(self._pipeline.steps(state), state)
            others = [other for other in self._chains if other is not chain]
            self._chains = others  # a chain whose planning fails cannot continue
            plan = chain.step(state, skip)
            self._chains = [*others[1 - MAX_CHAINS :], chain]
            return plan
