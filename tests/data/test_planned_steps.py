"""Steps by place: the planner's, in whatever order they are asked for."""

import dataclasses

import hypothesis
import pytest
from hypothesis import strategies as st

from data import planned_steps
from data.errors import DataError
from data.pipeline import Recipe, training_recipe
from data.planned_steps import PlannedSteps
from data.step_plans import Place
from tests.producers import CONFIG, MODEL
from tests.small_vqa import SmallVQA

RECIPE = training_recipe(CONFIG, MODEL, SmallVQA("train"))
COUNT = 14
PLANS = [plan for plan, _ in zip(RECIPE.steps(Place()), range(COUNT), strict=False)]
PLACES = [Place(), *(plan.after for plan in PLANS)]
ASKED = st.integers(0, COUNT - 1).flatmap(lambda step: st.tuples(st.integers(0, step), st.just(step)))


@hypothesis.settings(deadline=None, max_examples=12)
@hypothesis.given(st.lists(ASKED, min_size=1, max_size=8), st.sampled_from([4, 512]), st.integers(1, 3))
def test_any_step_from_any_place_in_any_order(asked, kept, chains):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planned_steps, "KEPT", kept)
        patch.setattr(planned_steps, "CHAINS", chains)
        steps = PlannedSteps(RECIPE)
        for begin, step in asked:
            found = steps.step(PLACES[begin], step - begin)
            assert (found.rows, found.after) == (PLANS[step].rows, PLANS[step].after)


def test_asking_on_plans_nothing_twice():
    begun = []

    class Counting(Recipe):
        def steps(self, place):
            begun.append(place)
            return super().steps(place)

    fields = {field.name: getattr(RECIPE, field.name) for field in dataclasses.fields(RECIPE)}
    steps = PlannedSteps(Counting(**fields))
    for number in range(COUNT - 3):
        steps.step(PLACES[number], 3)
        steps.step(PLACES[number], 1)
    assert begun == [Place()]


def test_a_place_that_is_none_is_refused_and_the_others_go_on():
    steps = PlannedSteps(RECIPE)
    with pytest.raises(DataError, match="no place"):
        steps.step(Place(position=2**63), 0)
    with pytest.raises(DataError, match="sample id 99999"):
        steps.step(Place(carried=(99_999,)), 0)
    assert steps.step(Place(), 0).rows == PLANS[0].rows
