"""Rows of samples: those of the data pipeline exactly, no sample lost or repeated, near the samples that were asked."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.workloads import Lognormal, SampleKind, SyntheticData
from data.data_config import DataConfig, RowCapacity
from data.datasets.dataset import SampleIndex
from data.packing.pipeline import training_batches
from data.packing.rows.row_planner import PlannerState
from data.samples.sample import SampleSizes
from mmjax.planning.problem import positions_per_row
from mmjax.planning.samples import sources
from mmjax.planning.samples.sources import GROUPINGS, DatasetSamples, DescribedSamples
from mmjax.training.config import TrainConfig
from sharding.specs.layers.layer import LoadColumn
from tests.data.packing.planned_rows import row_planner
from tests.small_vqa import SmallVQA
from tests.tiny_model import tiny_model

MODEL = ModelConfig((VisionConfig(patch=16, merge=2),), BackboneConfig(), ())
PICTURES = SampleKind(
    text_tokens=Lognormal(30, 0.8), image_counts=(0.2, 0.5, 0.3), image_side=Lognormal(128, 0.5, 32, 512)
)
TEXTS = SampleKind(text_tokens=Lognormal(60, 1.0))
ANY_NUMBER = 10**9
CONFIG = TrainConfig(
    dataset=SmallVQA,
    model=tiny_model(vocabulary=48),
    data=DataConfig(rows=6, tokens=160, patches=32, images=3, samples=8, window=64),
)
RUN = DatasetSamples(CONFIG, positions_per_row(CONFIG))


def described(row_tokens, seed=0, **fields):
    return DescribedSamples(SyntheticData(row_tokens, ((PICTURES, 1.0), (TEXTS, 1.0)), **fields), MODEL, seed)


SOURCES = {row_tokens: described(row_tokens, isf_threshold=row_tokens - 64) for row_tokens in (300, 1024)}


class Drawn(SampleIndex):
    """The samples of a description, to the step planner."""

    def __init__(self, source):
        self.tokens = source.samples.loads["backbone"][:, LoadColumn.TOKENS]

    def kind_of(self, number):
        return "drawn"

    def sizes(self, number):
        return SampleSizes(tokens=int(self.tokens[number]), targets=1)


@given(st.sampled_from(sorted(SOURCES)), st.sampled_from(GROUPINGS), st.integers(1, 40))
@settings(max_examples=12, deadline=None)
def test_described_rows_are_those_of_the_step_planner_and_no_sample_is_lost_or_repeated(row_tokens, grouping, rows):
    source = SOURCES[row_tokens]
    window = source.stream(rows).tolist()
    planner = row_planner(
        grouping,
        Drawn(source),
        [*window, *range(10)],  # the stream goes on
        RowCapacity(tokens=row_tokens, samples=ANY_NUMBER),
        rows=rows,
        window=DataConfig().window,
        epoch=ANY_NUMBER,
        thresholds={"tokens": row_tokens - 64},
    )
    steps = []
    for step in planner.steps(PlannerState()):
        steps.append(step)
        if step.state_after.window_number == 1:
            break
    placed = [sample for step in steps for row in step.rows for sample in row]
    assert sorted([*placed, *steps[-1].state_after.carried_samples]) == sorted(window)
    made = source.rows(grouping, rows).statistics
    expected = [row for step in steps for row in step.rows]
    assert made.step_rows == rows and made.rows == len(expected)
    for module, loads in made.loads.items():
        samples = source.samples.loads[module]
        np.testing.assert_array_equal(loads, [samples[list(row)].sum(axis=0) for row in expected])


def test_rows_of_one_document_are_one_segment():
    loads = described(1024, one_document=True).rows("first_fit", 8).statistics.loads["backbone"]
    np.testing.assert_array_equal(loads[:, LoadColumn.SQUARED_LENGTHS], loads[:, LoadColumn.TOKENS] ** 2)
    assert (loads[:, LoadColumn.ITEMS] > 1).any()


def test_a_sample_longer_than_a_row_is_truncated_to_it():
    tokens = described(100).samples.loads["backbone"][:, LoadColumn.TOKENS]
    assert tokens.max() == 100 and (tokens == 100).sum() > 100


THRESHOLDS = (("tokens", 100), ("patches", 32))


@pytest.mark.parametrize(
    ("grouping", "thresholds"), [*((grouping, ()) for grouping in RUN.groupings), ("isf", THRESHOLDS)]
)
def test_rows_of_a_run_have_the_loads_of_its_batches(grouping, thresholds):
    """Of the arrays of its batches, in which every sample and every item is a segment."""
    rows, steps = 6, 11  # of the 64 rows that are grouped at least
    config = dataclasses.replace(CONFIG.data, rows=rows, grouping=grouping, isf_thresholds=thresholds)
    run = DatasetSamples(dataclasses.replace(CONFIG, data=config), RUN.positions)
    batches = training_batches(config, CONFIG.model, SmallVQA("train"))
    try:
        arrays = [batch.arrays for batch in itertools.islice(batches, steps)]
    finally:
        batches.close()
    loads = run.rows(grouping, rows).statistics.loads
    for module in ("backbone", "vision"):
        segments = np.concatenate([step[module]["segments"] for step in arrays])
        lengths = [np.unique(row[row > 0], return_counts=True)[1] for row in segments]
        np.testing.assert_array_equal(loads[module][:, LoadColumn.TOKENS], [row.sum() for row in lengths])
        np.testing.assert_array_equal(loads[module][:, LoadColumn.SQUARED_LENGTHS], [(row**2).sum() for row in lengths])
        np.testing.assert_array_equal(loads[module][:, LoadColumn.ITEMS], list(map(len, lengths)))


def test_thresholds_of_isf_change_the_rows_of_a_run_and_of_a_description():
    run = DatasetSamples(
        dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, isf_thresholds=THRESHOLDS)), RUN.positions
    )
    for changed, default in ((run, RUN), (SOURCES[1024], described(1024))):
        loads, others = (source.rows("isf", 6).statistics.loads["backbone"] for source in (changed, default))
        assert len(loads) != len(others) or (loads != others).any()


@given(st.sampled_from(GROUPINGS), st.integers(40, 6000), st.sampled_from([1, 8, 24, 64]))
@settings(max_examples=6, deadline=None)
def test_a_step_has_about_the_samples_that_were_asked(grouping, samples, devices):
    made = SOURCES[1024].rows_for(grouping, samples, devices)
    assert abs(made.samples_per_step / samples - 1) < 0.2
    assert all(len(batch["backbone"]) == made.rows for batch in made.batches)
    assert made.statistics.step_rows <= sources.GROUPED_ROWS
    assert made.fill["backbone"] > 0.85


def test_a_long_step_has_the_rows_of_a_shorter_one():
    made = SOURCES[1024].rows_of_step("isf", 3000)
    assert made.rows == 3000 > made.statistics.step_rows
    assert abs(made.statistics.step_rows * made.samples_per_row / sources.GROUPED_SAMPLES - 1) < 0.1
    (batch,) = made.batches  # it has enough samples
    assert len(batch["vision"]) == 3000


@pytest.mark.parametrize("threshold", [-1, 301])
def test_a_threshold_of_isf_that_no_row_reaches_is_refused(threshold):
    with pytest.raises(ValueError, match=f"accepts rows from {threshold} tokens, and a row holds 300; give 1 to 300"):
        described(300, isf_threshold=threshold)
