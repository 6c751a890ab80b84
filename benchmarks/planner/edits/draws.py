"""Draws edits: a random unit of a plan, a random field, a random other value, and the repairs that it needs."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.planner.edits import order, sizes, stages
from benchmarks.planner.edits.drafts import PlanDraft, UnitDraft, draft_of
from benchmarks.planner.edits.repairs import repair
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.text.recompute_text import recompute_text

UnitEdit = Callable[[PlanningProblem, PlanDraft, UnitDraft, random.Random], None]

EDITS: Mapping[str, UnitEdit] = {
    "dp": sizes.edit_dp,
    "tp": sizes.edit_tp,
    "module_tp": sizes.edit_module_tp,
    "cp": sizes.edit_cp,
    "ep": sizes.edit_ep,
    "fsdp": sizes.edit_fsdp,
    "phase_rows": sizes.edit_phase_rows,
    "pipeline_replicas": sizes.edit_pipeline_replicas,
    "pp": stages.edit_pp,
    "chunks": stages.edit_chunks,
    "layers": stages.edit_layers,
    "recompute of a module": stages.edit_module_recompute,
    "recompute of a stage": stages.edit_stage_recompute,
    "recompute of some layers": stages.edit_layer_recompute,
    "extra_microbatches": order.edit_extra_microbatches,
    "replica_of_microbatch": order.edit_replica_of_microbatch,
    "executor": order.edit_executor,
    "collectives": order.edit_collectives,
    "context_transfer": order.edit_context_transfer,
    "expert_transfer": order.edit_expert_transfer,
    "microbatches": order.edit_microbatches,
    "schedule": order.edit_schedule,
    "stage seconds": order.edit_stage_seconds,
}
"""The edits by what they change."""

_OF_STEP = ("microbatches", "schedule", "stage seconds")
"""The edits of fields that belong to no unit."""


@dataclasses.dataclass(frozen=True)
class DrawnEdit:
    """An edit of a plan.

    Attributes:
        field: What it changes, a key of `EDITS`.
        draft: The edited plan, repaired.
        words: The field before and after, and what was repaired besides.
    """

    field: str
    draft: PlanDraft
    words: str


def draw_edit(problem: PlanningProblem, plan: Plan, choice: random.Random) -> DrawnEdit | None:
    """Draws an edit of a plan; None where the unit that was drawn has no other value of the field that was."""
    draft = draft_of(plan)
    before = draft.figures()
    unit = choice.choice(draft.units)
    field = choice.choice(list(EDITS))
    try:
        EDITS[field](problem, draft, unit, choice)
    except sizes.NoOtherValueError:
        return None
    edited = None if field in _OF_STEP else unit
    first = _changes(before, draft.figures())
    repair(problem, draft, edited, field)
    changes = _changes(before, draft.figures())
    if not changes:
        return None
    in_order = dict.fromkeys((*(key for key in first if key in changes), *changes))
    return DrawnEdit(field, draft, "; ".join(_in_words(*key, *changes[key]) for key in in_order))


def _changes(before: Mapping[tuple[str, str], Any], after: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """The values before and after of all that differs."""
    return {key: (before[key], after[key]) for key in before if before[key] != after[key]}


def _in_words(unit: str, field: str, before: Any, after: Any) -> str:
    """A change for people, such as `vision: extra_microbatches 4 -> 8`."""
    where = f"{unit}: " if unit else ""
    return f"{where}{field} {_text(field, before)} -> {_text(field, after)}"


def _text(field: str, value: Any) -> str:
    if field == "recompute":
        return recompute_text(value)
    if isinstance(value, tuple):
        runs = [(number, len(list(run))) for number, run in itertools.groupby(value)]
        listed = (f"{count} x {number}" if count > 1 else str(number) for number, count in runs)
        return ", ".join(listed) or "by default"
    return str(value)
