"""Edits change one field of a plan, and what is repaired besides makes plans valid."""

import dataclasses
import random

import pytest

from benchmarks.planner.edits.drafts import draft_of
from benchmarks.planner.edits.draws import EDITS, draw_edit
from benchmarks.planner.edits.repairs import build_plan
from benchmarks.planner.edits.sizes import NoOtherValueError
from tests.benchmarks.planner.edits.plans import POLICIES, planned, small_problem

FIELDS = {
    "tp": {"tp", "module_tp", "dp", "pipeline_replicas"},
    "module_tp": {"module_tp", "tp", "dp"},
    "cp": {"cp", "dp", "pipeline_replicas"},
    "pp": {"pp", "layers", "dp", "pipeline_replicas"},
    "chunks": {"chunks", "layers"},
    "dp": {"dp", "microbatches"},
    "pipeline_replicas": {"pipeline_replicas", "dp"},
} | {f"recompute of {what}": {"recompute"} for what in ("a module", "a stage", "some layers")}
"""Fields of a unit that an edit may change itself, where they are not its own alone."""


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_without_an_edit_is_built_as_it_was(policy):
    plan = dataclasses.replace(planned(policy).plan, made_for=None)
    assert build_plan(small_problem(), draft_of(plan)) == plan


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("field", EDITS)
def test_an_edit_changes_its_field_of_one_unit(field, policy):
    plan, allowed = planned(policy).plan, FIELDS.get(field, {field})
    for seed in range(4):
        for number in range(len(plan.units)):
            draft = draft_of(plan)
            before = draft.figures()
            try:
                EDITS[field](small_problem(), draft, draft.units[number], random.Random(seed))
            except NoOtherValueError:
                continue
            changed = {key for key, value in draft.figures().items() if value != before[key]}
            assert {name for _, name in changed} <= allowed
            assert {unit for unit, _ in changed} <= {plan.units[number].name, ""}


def test_a_copy_of_nothing_remains_in_the_plan_that_is_edited():
    plan = planned("disaggregated").plan
    before = draft_of(plan).figures()
    for seed in range(50):
        draw_edit(small_problem(), plan, random.Random(seed))
    assert draft_of(plan).figures() == before


def test_the_same_seed_draws_the_same_edits():
    def words(seed: int) -> list[str]:
        choice = random.Random(seed)
        edits = [draw_edit(small_problem(), planned("disaggregated").plan, choice) for _ in range(40)]
        return [edit.words for edit in edits if edit]

    assert words(3) == words(3) != words(4)


def test_words_begin_with_the_edited_field():
    choice = random.Random(0)
    for policy in POLICIES:
        for _ in range(60):
            edit = draw_edit(small_problem(), planned(policy).plan, choice)
            if edit:
                name = "recompute" if edit.field.startswith("recompute") else edit.field
                own = {"tp", "module_tp", "dp", "microbatches", name}
                assert any(f"{field} " in edit.words.split(";")[0] for field in own), edit.words
