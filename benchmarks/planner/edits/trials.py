"""Tries random edits of a plan: which are refused and why, and which shortens the simulated step most."""

import collections
import dataclasses
import random
from collections.abc import Callable

from benchmarks.planner.edits.draws import DrawnEdit, draw_edit
from benchmarks.planner.edits.placement import place_devices
from benchmarks.planner.edits.repairs import build_plan
from configs.common.errors import UserError
from sharding.planners.policies.auto import is_trainable
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.planners.simulated_plan import SimulatedPlan
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan

MOST_DRAWS = 40
"""Draws for each valid edit that is wanted, after which the search for valid edits ends."""


@dataclasses.dataclass(frozen=True)
class TriedEdit:
    """A valid edit.

    Attributes:
        edit: The edit.
        plan: The edited plan.
        step: Seconds of its simulated step; where its lower bound is longer than the step of the plan before the edit,
            this bound.
    """

    edit: DrawnEdit
    plan: Plan
    step: float


@dataclasses.dataclass
class EditTrials:
    """The edits of one plan that were tried.

    Attributes:
        chosen: The plan before the edits.
        draws: Draws of an edit; some give none, or one that was there before.
        valid: The valid edits.
        bounded: How many of them were not simulated because their lower bound is longer than the chosen plan's step.
            Whether these fit into the memory is not known.
        refused: By reason, how many edits were refused.
        examples: By reason, one of the refused edits with the message.
    """

    chosen: SimulatedPlan
    draws: int = 0
    valid: list[TriedEdit] = dataclasses.field(default_factory=list)
    bounded: int = 0
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    examples: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def best(self) -> TriedEdit | None:
        """The valid edit with the shortest step, of the edits that the planner prefers; None without any.

        A planner takes a step that is up to STEP_SLACK longer for fewer device-seconds.
        """
        preferred = [
            tried for tried in self.valid if self.more_device_seconds(tried) <= 0 or self.shorter_by(tried) > STEP_SLACK
        ]
        return min(preferred, key=lambda tried: tried.step, default=None)

    def shorter_by(self, tried: TriedEdit) -> float:
        """The share of the chosen plan's step by which an edit shortens it; negative if it is longer."""
        return 1 - tried.step / self.chosen.timeline.step

    def more_device_seconds(self, tried: TriedEdit) -> float:
        """The share by which an edit raises devices times seconds of a step; negative if it lowers them."""
        before = self.chosen.plan.device_count * self.chosen.timeline.step
        return tried.plan.device_count * tried.step / before - 1

    @property
    def tried_fields(self) -> dict[str, int]:
        """By field, the number of valid edits."""
        return dict(collections.Counter(tried.edit.field for tried in self.valid))

    @property
    def best_by_field(self) -> dict[str, float]:
        """By field, the largest share by which an edit of it shortens the step, if one does; the largest first."""
        shares: dict[str, float] = {}
        for tried in self.valid:
            shares[tried.edit.field] = max(self.shorter_by(tried), shares.get(tried.edit.field, 0.0))
        return {field: share for field, share in sorted(shares.items(), key=lambda item: -item[1]) if share > 0}


class RefusedEditError(Exception):
    """An edit that is not valid.

    Attributes:
        reason: Kind of the reason, for counts.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def try_edits(
    problem: PlanningProblem,
    chosen: SimulatedPlan,
    count: int,
    seed: int = 0,
    draw: Callable[[PlanningProblem, Plan, random.Random], DrawnEdit | None] = draw_edit,
) -> EditTrials:
    """Draws edits of a plan until so many different ones are valid, or there were `MOST_DRAWS` draws for each.

    An edited plan is valid if it can be resolved, fits the memory and, if the chosen plan is trainable, is so too.

    Args:
        problem: The problem.
        chosen: The plan and its simulated step.
        count: How many valid edits are wanted.
        seed: Seed of the draws.
        draw: Draws an edit.
    """
    choice, trials = random.Random(seed), EditTrials(chosen)
    trainable = is_trainable(problem, chosen.plan)
    seen: set[str] = set()
    while len(trials.valid) < count and trials.draws < MOST_DRAWS * count:
        trials.draws += 1
        edit = draw(problem, chosen.plan, choice)
        if edit is None or edit.words in seen:
            continue
        seen.add(edit.words)
        try:
            _judge(problem, trials, edit, _build(problem, edit, trainable))
        except RefusedEditError as refused:
            trials.refused[refused.reason] += 1
            trials.examples.setdefault(refused.reason, f"{edit.words}: {refused}")
    return trials


def _build(problem: PlanningProblem, edit: DrawnEdit, trainable: bool) -> Plan:
    """The edited plan; raises RefusedEditError if it has too many devices or cannot be resolved."""
    if (needed := max(map(max, place_devices(edit.draft).values())) + 1) > problem.devices:
        raise RefusedEditError("devices", f"it needs {needed} devices, but there are {problem.devices}")
    try:
        plan = build_plan(problem, edit.draft)
    except PlanError as error:
        raise RefusedEditError("fields", str(error)) from error
    try:
        resolve_plan(plan, problem.graph, problem.devices)
    except PlanError as error:
        raise RefusedEditError("model", str(error)) from error
    try:
        resolve_plan(plan, problem.graph, problem.devices, problem.rows if trainable else None)
    except PlanError as error:
        raise RefusedEditError("rows", str(error)) from error
    return plan


def _judge(problem: PlanningProblem, trials: EditTrials, edit: DrawnEdit, plan: Plan) -> None:
    """Adds a plan to the valid edits; raises RefusedEditError if it cannot be scheduled or does not fit the memory."""
    try:
        bound = problem.least_step_seconds(plan)
        if bound > trials.chosen.timeline.step:
            trials.valid.append(TriedEdit(edit, plan, float(bound)))
            trials.bounded += 1
            return
        timeline = problem.simulate(plan)
    except UserError as error:
        raise RefusedEditError("schedule or costs", str(error)) from error
    if (fraction := problem.memory_fraction(timeline)) > 1:
        raise RefusedEditError("memory", f"{fraction:.2f} of the memory")
    trials.valid.append(TriedEdit(edit, plan, float(timeline.step)))
