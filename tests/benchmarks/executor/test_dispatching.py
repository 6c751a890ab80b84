"""The dispatching thread's time: a plan that can run, all ops counted, and the goal in what is printed."""

import dataclasses

import pytest

from benchmarks.executor.dispatching import dispatch_plan, format_dispatch, measure_dispatch
from configs.architectures import ModelConfig
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.runtime.step_buffers import OpCall
from sharding.specs.modules import module_graph
from tests.benchmarks.executor.test_comparison import run_config
from tests.tiny_model import tiny_batch, tiny_model


def text_and_images() -> ModelConfig:
    return dataclasses.replace(tiny_model(), generators=())  # a U-Net takes most of the time to compile


@pytest.mark.parametrize("model", [tiny_model(), text_and_images()], ids=["generator", "no generator"])
def test_the_plan_has_stages_on_two_devices_each(model):
    plan = dispatch_plan(model)
    resolve_plan(plan, module_graph(model), 8, 4)
    assert {len(unit.stage_devices(stage)) for unit in plan.units for stage in range(unit.stage_count)} == {2}


def test_every_op_is_counted_with_the_arrays_of_its_programs():
    model = text_and_images()
    result = measure_dispatch(run_config(model), [tiny_batch(model, rows=4)], steps=3)
    kinds = result["kinds"]
    # three stages and two microbatches: two edges each way
    counts = {
        "gather": 3,
        "forward": 6,
        "backward": 6,
        "hop": 4,
        "gradient_hop": 4,
        "reduce": 3,
        "global_norm": 1,
        "update": 3,
    }
    assert {kind: figures["ops"] for kind, figures in kinds.items()} == counts
    assert result["ops"] == sum(counts.values())
    assert {kind for kind, figures in kinds.items() if figures["arrays_per_op"] == 0} == {"hop", "gradient_hop"}
    for figures in kinds.values():
        assert 0 <= figures["us_of_calls"] < figures["us_per_op"]
    text = format_dispatch(result)
    assert "the goal is at most 150 us" in text and len(text.splitlines()) == len(kinds) + 2
    assert OpCall.run.__qualname__ == "OpCall.run"  # timed no longer
