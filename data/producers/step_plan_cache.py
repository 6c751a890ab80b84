"""Planned steps kept for a while: requests come a little out of order, and are of several trainers."""

import collections
import threading
from collections.abc import Iterator

from data.errors import DataError
from data.packing.pipeline import BatchRecipe
from data.packing.step_planner import PlannerState, StepPlan
from data.producers.step_request import MAX_STEPS_AHEAD

CHAINS = 8
KEPT = 2 * MAX_STEPS_AHEAD


class _Chain:
    """Steps planned one behind the other from a place on, of which the newest are kept."""

    def __init__(self, plans: Iterator[StepPlan], place: PlannerState) -> None:
        self._plans = plans
        self._kept: collections.deque[tuple[PlannerState, StepPlan]] = (
            collections.deque()
        )  # each with the place before it
        self._end = place
        self._first = 0
        self._numbers = {place: 0}

    def __contains__(self, place: PlannerState) -> bool:
        return place in self._numbers

    def step(self, place: PlannerState, skip: int) -> StepPlan:
        """The step so many behind a place of the chain."""
        number = self._numbers[place] + skip
        while number >= self._first + len(self._kept):
            self._extend()
        return self._kept[number - self._first][1]

    def _extend(self) -> None:
        plan = next(self._plans, None)
        if plan is None:
            raise DataError("there are no steps behind the one before: the data has an end")
        self._kept.append((self._end, plan))
        self._end = plan.state_after
        self._numbers[plan.state_after] = self._first + len(self._kept)
        if len(self._kept) > KEPT:
            before, _ = self._kept.popleft()
            del self._numbers[before]
            self._first += 1


class StepPlanCache:
    """The steps of a recipe by the place that they come behind; threads may share it.

    Asking on from where an earlier answer ended costs one step's planning. Another place begins another chain of steps,
    at the cost of the window that the place is in; the chains used least recently are forgotten.
    """

    def __init__(self, recipe: BatchRecipe) -> None:
        self._recipe = recipe
        self._chains: list[_Chain] = []  # used last, last
        self._lock = threading.Lock()

    def step(self, place: PlannerState, skip: int) -> StepPlan:
        """The step so many behind a place.

        Raises:
            DataError: A place that the stream of samples does not have, or what planning raises.
        """
        if place.window_start >= len(self._recipe.planner.sample_stream):
            raise DataError(
                f"there is no place {place.window_start} in a stream of {len(self._recipe.planner.sample_stream)} samples"
            )
        with self._lock:
            chain = next((chain for chain in self._chains if place in chain), None)
            if chain is None:
                chain = _Chain(self._recipe.steps(place), place)
            others = [other for other in self._chains if other is not chain]
            self._chains = others  # a chain whose planning fails cannot go on
            plan = chain.step(place, skip)
            self._chains = [*others[1 - CHAINS :], chain]
            return plan
