"""The step-plan cache returns the planner's steps in whatever order they are requested."""

import dataclasses

import hypothesis
import pytest
from hypothesis import strategies as st

from data.errors import DataError
from data.packing.pipeline import BatchPipeline, training_pipeline
from data.packing.rows.row_planner import PlannerState
from data.producers import step_plan_cache
from data.producers.step_plan_cache import StepPlanCache
from tests.producers import CONFIG, MODEL
from tests.small_vqa import SmallVQA

PIPELINE = training_pipeline(CONFIG, MODEL, SmallVQA("train"))
COUNT = 14
PLANS = [plan for plan, _ in zip(PIPELINE.steps(PlannerState()), range(COUNT), strict=False)]
PLACES = [PlannerState(), *(plan.state_after for plan in PLANS)]
ASKED = st.integers(0, COUNT - 1).flatmap(lambda step: st.tuples(st.integers(0, step), st.just(step)))


@hypothesis.settings(deadline=None, max_examples=12)
@hypothesis.given(st.lists(ASKED, min_size=1, max_size=8), st.sampled_from([4, 512]), st.integers(1, 3))
def test_any_step_from_any_state_in_any_order(asked, kept, chains):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_plan_cache, "MAX_PLANS", kept)
        patch.setattr(step_plan_cache, "MAX_CHAINS", chains)
        steps = StepPlanCache(PIPELINE)
        for begin, step in asked:
            planned = steps.step(PLACES[begin], step - begin)
            assert (planned.rows, planned.state_after) == (PLANS[step].rows, PLANS[step].state_after)


def test_consecutive_requests_plan_nothing_twice():
    begun = []

    class Counting(BatchPipeline):
        def steps(self, place):
            begun.append(place)
            return super().steps(place)

    fields = {field.name: getattr(PIPELINE, field.name) for field in dataclasses.fields(PIPELINE)}
    steps = StepPlanCache(Counting(**fields))
    for number in range(COUNT - 3):
        steps.step(PLACES[number], 3)
        steps.step(PLACES[number], 1)
    assert begun == [PlannerState()]


def test_invalid_states_are_refused_without_affecting_others():
    steps = StepPlanCache(PIPELINE)
    with pytest.raises(DataError, match="no position"):
        steps.step(PlannerState(window_start=2**63), 0)
    with pytest.raises(DataError, match="sample id 99999"):
        steps.step(PlannerState(carried_samples=(99_999,)), 0)
    assert steps.step(PlannerState(), 0).rows == PLANS[0].rows
