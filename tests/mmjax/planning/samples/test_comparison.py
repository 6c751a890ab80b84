"""Steps of one plan with the rows of each grouping: what they count, and which grouping is chosen."""

import dataclasses

import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.clusters import CLUSTERS
from configs.workloads import Lognormal, SampleKind, SyntheticData, Workload
from mmjax.planning.problem import make_problem
from mmjax.planning.samples.comparison import (
    AS_PACKED,
    GroupedPlan,
    GroupingComparison,
    SimulatedGrouping,
    simulated_groupings,
)
from mmjax.planning.samples.sample_rows import SampleRows
from mmjax.planning.samples.sources import GROUPINGS, DescribedSamples
from sharding.planners.policies.policy_comparison import compare_policies
from sharding.specs.row_load_statistics import RowLoadStatistics

PICTURES = SampleKind(text_tokens=Lognormal(200, 1.0), image_counts=(0.5, 0.5), image_side=Lognormal(448, 0.6, 64))
DATA = SyntheticData(2048, ((PICTURES, 1.0),))
MODEL = ModelConfig((VisionConfig(patch=14, merge=2),), BackboneConfig(), ())
SOURCE = DescribedSamples(DATA, MODEL)
ROWS = {grouping: SOURCE.rows(grouping, 16) for grouping in GROUPINGS}


@pytest.fixture(scope="module")
def planned():
    problem = make_problem(Workload(MODEL, DATA, 16), ROWS["first_fit"].statistics, CLUSTERS["a800"], 8)
    return problem, compare_policies(problem, "disaggregated")


def test_the_first_step_with_the_planned_rows_is_the_step_of_the_plan(planned):
    problem, comparison = planned
    only_one = dataclasses.replace(
        ROWS["first_fit"],
        statistics=RowLoadStatistics(
            {name: loads[:16] for name, loads in ROWS["first_fit"].statistics.loads.items()}, 16
        ),
    )
    packed = simulated_groupings([GroupedPlan(problem, comparison.plan, only_one)])[0]
    assert packed.reordering == AS_PACKED and packed.steps == 1
    assert packed.seconds_of_loads == comparison.timeline.step
    assert packed.samples == pytest.approx(problem.sampled_rows["backbone"][:, 2].sum())


def test_whole_rows_take_longer_and_reordered_rows_do_not(planned):
    problem, comparison = planned
    simulated = simulated_groupings([GroupedPlan(problem, comparison.plan, rows) for rows in ROWS.values()])
    assert {one.rows.grouping for one in simulated} == set(GROUPINGS)
    lengths, _, counts, _ = np.concatenate([rows.statistics.loads["backbone"] for rows in ROWS.values()]).T
    for one in simulated:
        batches = one.rows.batches
        assert one.steps == len(batches)
        tokens = sum(batch["backbone"][:, 0].sum() for batch in batches)
        assert one.samples == pytest.approx(tokens / lengths.sum() * counts.sum())
        assert one.samples_per_second <= one.samples_per_second_of_loads
        assert one.step_seconds * one.steps * one.samples_per_second == pytest.approx(one.samples)
    steps = {(one.rows.grouping, one.reordering): one for one in simulated}
    assert {reordering for _, reordering in steps} == {AS_PACKED, "both"}
    for grouping in GROUPINGS:
        packed, reordered = steps[grouping, AS_PACKED], steps[grouping, "both"]
        assert reordered.seconds_of_loads <= packed.seconds_of_loads and reordered.samples == packed.samples


def test_full_rows_are_computed_alike_whatever_is_said_of_padding(planned):
    problem, comparison = planned
    loads = {name: loads.copy() for name, loads in ROWS["isf"].statistics.loads.items()}
    loads["backbone"][:, 0] = 2048
    full = dataclasses.replace(ROWS["isf"], statistics=RowLoadStatistics(loads, 16))
    for one in simulated_groupings([GroupedPlan(problem, comparison.plan, full)]):
        assert one.seconds == one.seconds_of_loads


def steps_of(grouping, fill, samples, reordering=AS_PACKED):
    backbone = np.array([[100 * fill, 0.0, samples, 0.0]])
    rows = SampleRows(
        grouping=grouping,
        rows=1,
        statistics=RowLoadStatistics({"backbone": backbone}, 1),
        positions={"backbone": 100},
        backbone="backbone",
    )
    return SimulatedGrouping(
        rows=rows, reordering=reordering, samples=samples, seconds=1.0, seconds_of_loads=0.9, steps=1
    )


def comparison_of(*simulated):
    return GroupingComparison("disaggregated", simulated)


def test_most_samples_a_second_are_chosen_and_of_a_tie_the_fullest_rows():
    fast, full, slow = steps_of("isf", 0.8, 100), steps_of("first_fit", 0.9, 98.5), steps_of("random", 1.0, 97)
    assert comparison_of(slow, fast).choice is fast
    assert comparison_of(slow, fast, full).choice is full
    reordered = steps_of("first_fit", 0.9, 99.9, "both")
    assert comparison_of(fast, full, reordered).choice is full
    much = steps_of("first_fit", 0.9, 110, "both")
    assert comparison_of(fast, full, much).choice is much
    assert much.reordering_gin == ("config.TrainConfig.reordering = 'both'",) and full.reordering_gin == ()
