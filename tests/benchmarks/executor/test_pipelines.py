"""Pipelines that are compared: plans that can run, and results that must agree."""

import pytest

from benchmarks.executor.comparison import DifferentResultsError, StepTiming
from benchmarks.executor.pipelines import CASES, MODEL, check_same_work, format_pipelines, pipeline_plan
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.specs.modules import module_graph


@pytest.mark.parametrize(("executor", "chunks"), CASES)
def test_the_plans_can_run(executor, chunks):
    plan = pipeline_plan(executor, chunks)
    resolve_plan(plan, module_graph(MODEL), 4, plan.microbatches)
    assert plan.units[0].pp == 4 and plan.units[0].is_compiled == (executor == "compiled")


def test_other_results_are_refused():
    timing = StepTiming(0.1, 0.2, 0.3, 1.0, 2.0)
    check_same_work({"one": [timing], "other": [timing]})
    with pytest.raises(DifferentResultsError, match=r"step 0: the norm is 2\.1 other and 2\.0 one"):
        check_same_work({"one": [timing], "other": [StepTiming(0.1, 0.2, 0.3, 1.0, 2.1)]})


def test_the_table_has_a_line_for_each():
    case = {"dispatches": 6, "compiled_programs": 7, "compilation": 1.0, "whole": 0.1, "dispatch": 0.05, "cpu": 0.2}
    result = {"cases": {"compiled": case}, "layers": 16, "ranks": 4, "microbatches": 16, "steps": 3}
    assert format_pipelines(result).splitlines()[1].split() == ["compiled", "6", "7", "1.0", "100.0", "50.0", "200.0"]
