"""The benchmark of rows of its own: what it draws fits, and the work that it counts is what devices compute."""

import dataclasses

import numpy as np
import pytest

from benchmarks.phases.balanced_steps import rows_as_drawn, with_fitting_rows
from benchmarks.phases.executed_work import Work, planned_steps
from benchmarks.phases.host import ROW_TOKENS, ROWS, draw_items, host_rows
from data.packing.batch_spec import global_batch_spec
from data.packing.dealt_phases import plan_phase_rows
from data.packing.pipeline import training_pipeline
from data.packing.rows.row_planner import PlannerState
from data.report.dataset_statistics import flops_per_unit, modules_of_units
from tests.mmjax.training.trainer_runs import CONFIG, PLAN
from tests.small_vqa import SmallVQA


def test_the_images_drawn_lie_side_by_side_in_rows_that_hold_them():
    items = draw_items(np.random.default_rng(1))
    assert len(set(items.rows.tolist())) > ROWS // 2 and (items.places + items.lengths).max() <= ROW_TOKENS
    for row in (0, 7, ROWS - 1):
        in_row = items.rows == row
        np.testing.assert_array_equal(items.places[in_row], np.cumsum(items.lengths[in_row]) - items.lengths[in_row])


def test_exactly_the_tokens_needed_are_sent():
    (sent,) = (row for row in host_rows() if row["name"] == "tokens sent over tokens needed")
    assert sent["value"] == 1 and sent["met"]


def test_the_work_counted_is_that_of_the_batches():
    pipeline = training_pipeline(CONFIG.data, CONFIG.model, SmallVQA("train"))
    steps = pipeline.steps(PlannerState())
    plans = [next(steps) for _ in range(6)]
    work = Work(CONFIG, PLAN, pipeline, plans)
    flops = flops_per_unit(CONFIG.model, pipeline.sample_index.sample_format)
    modules = modules_of_units(CONFIG.model, pipeline.sample_index.sample_format)
    spec = global_batch_spec(CONFIG.data, CONFIG.model).arrays
    for capacities, plan in ((None, PLAN), (1, work.plan_of_own_rows(1)), (3, work.plan_of_own_rows(3))):
        phases = plan_phase_rows(plan, CONFIG.model, spec)
        batches = [dataclasses.replace(pipeline.loader, phases=phases)(step_plan) for step_plan in plans]
        needed, computed = (
            sum(flops[unit] * batch.real_and_capacity[modules[unit]][number] for batch in batches for unit in modules)
            for number in (0, 1)
        )
        assert work.ratio(capacities, is_dealt=capacities is not None) == pytest.approx(computed / needed)
    assert all(unit.phase_rows == unit.parallelism.dp for unit in plan.units if unit.name != "backbone")


def test_rows_as_drawn_hold_the_samples_of_the_step_and_are_as_long_as_the_fullest():
    config = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, grouping="post_balanced"))
    balanced = planned_steps(training_pipeline(config.data, config.model, SmallVQA("train")), 4)
    drawn = [rows_as_drawn(step, np.random.default_rng(0)) for step in balanced]
    sums = []
    for before, after in zip(balanced, drawn, strict=True):
        assert sorted(np.concatenate(before.rows)) == sorted(np.concatenate(after.rows))
        assert len(after.rows) == config.data.rows and np.ptp([len(row) for row in after.rows]) <= 1
        sums += [sum(after.sizes[sample].tokens for sample in row) for row in after.rows]
    fitting = with_fitting_rows(config, drawn)
    assert fitting.data.tokens == max(sums) and fitting.data.frames == config.data.frames
    loader = training_pipeline(fitting.data, config.model, SmallVQA("train")).loader
    packed = loader(drawn[sums.index(max(sums)) // config.data.rows])
    assert (packed.arrays["backbone"]["segments"] > 0).sum(axis=1).max() == fitting.data.tokens
