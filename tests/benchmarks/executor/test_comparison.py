"""The executor's benchmark: both sides compute the same, and it says so when they do not."""

import dataclasses

import pytest

from benchmarks.executor import comparison
from benchmarks.rows import package_versions
from configs.architectures import ModelConfig
from mmjax.training.config import TrainConfig
from sharding.plans.plan import single_device_plan
from sharding.specs.modules import module_graph
from tests.tiny_model import tiny_batch, tiny_model


def run_config(model: ModelConfig) -> TrainConfig:
    return TrainConfig(dataset=lambda split: pytest.fail("the benchmark is given its batches"), model=model, steps=10)


@pytest.fixture(scope="module")
def result() -> dict:
    model = dataclasses.replace(tiny_model(), generators=())  # a U-Net takes most of the time to compile
    batches = [tiny_batch(model, rows=4, seed=seed) for seed in range(2)]
    plan = comparison.one_device_per_module(model, single_device_plan(module_graph(model), 2))
    return comparison.measure(run_config(model), {comparison.EXECUTOR: plan}, batches, steps=3)


@pytest.mark.layouts
def test_both_compute_the_same_over_several_updates(result):
    assert 0 < result["worst_difference"] < 1e-4


@pytest.mark.layouts
def test_times_are_of_the_steps_after_compilation(result):
    assert result["steps"] == 3
    for seconds in result["seconds"].values():
        assert 0 < seconds["dispatch"] <= seconds["whole"] < 5


@pytest.mark.layouts
def test_ops_are_those_of_two_stages_and_two_microbatches(result):
    # per microbatch 2 forwards, 2 backwards and a hop each way; per step 2 gathers, reductions, updates and the norm
    assert result["ops"] == {comparison.EXECUTOR: 2 * (2 + 2 + 2) + 6 + 1}


@pytest.mark.layouts
def test_the_goal_stands_in_what_is_printed(result):
    text = comparison.format_comparison(result | {"versions": package_versions()})
    assert "the goal is at most 10%" in text and "jax" in text


def test_each_module_has_a_device_of_its_own():
    model = tiny_model()
    plan = dataclasses.replace(single_device_plan(module_graph(model), 4), schedule="gpipe")
    plan = comparison.one_device_per_module(model, plan)
    assert [unit.devices for unit in plan.units] == [range(0, 1), range(1, 2), range(2, 3)]
    assert (plan.microbatches, plan.schedule) == (4, "gpipe")


def steps(loss: float, norm: float = 2.0) -> list[comparison.StepTiming]:
    return [comparison.StepTiming(0.1, 0.2, 0.3, 1.0, 2.0), comparison.StepTiming(0.1, 0.2, 0.3, loss, norm)]


@pytest.mark.parametrize(("loss", "norm"), [(1.1, 2.0), (1.0, 1.9), (float("nan"), 2.0)])
def test_other_work_is_refused(loss, norm):
    with pytest.raises(comparison.DifferentResultsError, match="step 1: the (loss|norm) is"):
        comparison.check_same_work({comparison.ONE_JIT: steps(1.0), comparison.EXECUTOR: steps(loss, norm)})


def test_overhead_is_the_median_of_neighbours():
    def run(*wholes: float) -> list[comparison.StepTiming]:
        return [comparison.StepTiming(0.0, whole, whole, 1.0, 1.0) for whole in wholes]

    times = {comparison.ONE_JIT: run(1, 2, 4), comparison.EXECUTOR: run(1.1, 3, 4.8), comparison.PLAN: run(2, 4, 8)}
    overhead = comparison.summary(times)["overhead"]
    assert (overhead[comparison.EXECUTOR]["median"], overhead[comparison.PLAN]["median"]) == (
        pytest.approx(0.2),
        pytest.approx(1.0),
    )
