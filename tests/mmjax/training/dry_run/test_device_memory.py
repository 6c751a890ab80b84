"""The memory of devices, planned and compiled: where both hold the same bytes, both peaks are the same."""

import dataclasses

import pytest

from configs.clusters import CLUSTERS
from mmjax.planning.arguments import ProblemArguments
from mmjax.planning.problem_inputs import read_problem
from mmjax.training.dry_run.device_memory import device_memory
from mmjax.training.dry_run.stage_bytes import StageBytes
from sharding.plans.plan import Plan
from tests.unit_plans import module_unit

ROOM = CLUSTERS["h100"].usable_memory


@pytest.fixture(scope="module")
def timeline():
    arguments = ProblemArguments(gin_file=("models/llava_1_6_7b.gin",), cluster="h100", devices=10, batch_rows=16)
    problem = read_problem(arguments).problem()
    units = (
        module_unit("vision", (0, 1), layers=(23,), dp=2),
        module_unit("backbone", range(2, 10), layers=(16, 16), dp=2, tp=2),
    )
    return problem.simulate(Plan(units, microbatches=8))


def as_planned(costs) -> StageBytes:
    return StageBytes(
        weights=costs.static.weights,
        gradients=costs.static.gradients,
        optimizer=costs.static.optimizer,
        batch=0,
        saved=tuple(costs.saved_bytes.max(axis=1)),
        offloaded=(0,) * len(costs.saved_bytes),
        for_wgrad=(),
        workspace=costs.static.workspace + costs.static.gathered + costs.static.exchanged + costs.static.reserved,
        step_workspace=0,
    )


def memory(timeline, **changes):
    stages = {
        stage: dataclasses.replace(as_planned(costs), **changes) for stage, costs in timeline.costs.stages.items()
    }
    capacities = {stage: range(8) for stage in stages}
    return device_memory(timeline, timeline, stages, capacities, ROOM)


def test_the_same_bytes_have_the_same_peak(timeline):
    ranks = memory(timeline)
    assert [rank.stages for rank in ranks] == [("vision 0",), ("backbone 0",), ("backbone 1",)]
    for rank in ranks:
        assert rank.compiled_bytes == pytest.approx(rank.planned_bytes, rel=1e-12) == rank.planned_full
        assert rank.error == pytest.approx(0, abs=1e-12)
        assert rank.spare_bytes == ROOM - rank.compiled_bytes


def test_in_flight_microbatches_are_counted(timeline):
    """1F1B holds two microbatches on the first of two ranks, and one on the second."""
    first, second = (rank.compiled["saved"] for rank in memory(timeline, saved=(1000,) * 8)[1:])
    assert (first, second) == (2000, 1000)


def test_programs_that_run_once_a_step_count_where_they_need_more_than_microbatches_in_flight(timeline):
    before, after = memory(timeline), memory(timeline, step_workspace=10**12)
    for rank, changed in zip(before, after, strict=True):
        assert changed.compiled_bytes - rank.compiled_bytes == pytest.approx(
            10**12 - rank.compiled["saved"] - rank.compiled["workspace"]
        )
        assert changed.spare_bytes < 0
