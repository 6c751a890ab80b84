"""Published runs: what their frameworks' kernels add, and that simulations stay where the results say they are."""

import dataclasses

import numpy as np
import pytest

from benchmarks.validation import data_parallel, maxtext, megascale, megatron
from benchmarks.validation.frameworks import A100, AttentionRecomputed, megatron_2022, unfused_attention
from benchmarks.validation.megatron import gpt
from benchmarks.validation.setting import Setting, simulated_step
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.cost_model import LayerParallelism
from sharding.specs.layers.layer import make_loads

MODEL = gpt(1024, 4, 8, vocabulary=2048)
LOADS = make_loads(2 * 512, 2 * 512**2, 2)


def setting(**changes):
    start = Setting(model=MODEL, costs=AnalyticCostModel(A100), adapt=lambda layer: layer, length=512, microbatch=2)
    return dataclasses.replace(start, **changes)


def test_names_are_unique_and_every_run_has_a_source():
    runs = (
        *megatron.layer_runs(),
        *megatron.step_runs(),
        *megascale.runs(),
        *data_parallel.flash_attention_runs(),
        *data_parallel.internlm_runs(),
        *data_parallel.mpt_runs(),
        *maxtext.runs(),
    )
    assert len({run.name for run in runs}) == len(runs)
    assert all(run.source and run.seconds > 0 for run in runs)


@pytest.mark.parametrize("run", megatron.layer_runs(), ids=lambda run: run.name)
def test_a_layer_of_megatron_lm_is_within_the_goal(run):
    assert run.simulate() == pytest.approx(run.seconds, rel=0.08)


def test_unfused_attention_computes_whole_squares_on_every_rank():
    kernels = unfused_attention(MODEL, 512, 2)
    flops = sum(float(kernel.flops.evaluate(LOADS)) for kernel in kernels)
    assert flops == 4 * 2 * 512**2 * MODEL.width
    layer = megatron_2022(setting().graph.backbone.layer, MODEL, 512, 2)
    costs = AnalyticCostModel(A100)
    one, two = (costs.forward(layer, LOADS, LayerParallelism(tp)).compute for tp in (1, 2))
    fused = costs.forward(setting().graph.backbone.layer, LOADS, LayerParallelism(1)).compute
    assert fused < one and two < one


def test_only_attention_is_recomputed_selectively():
    layer = megatron_2022(setting().graph.backbone.layer, MODEL, 512, 2)
    costs, ranks, both = AttentionRecomputed(A100), LayerParallelism(2), ("dgrad", "wgrad")
    none, selective, full = (
        costs.backward(layer, LOADS, ranks, both, policy).total for policy in ("none", "selective", "full")
    )
    core = [kernel for kernel in layer.kernels if kernel.name.startswith("core_")]
    again = costs.forward(dataclasses.replace(layer, kernels=tuple(core)), LOADS, ranks).total
    np.testing.assert_allclose(selective, none + again)
    np.testing.assert_allclose(full, none + costs.forward(layer, LOADS, ranks).total)


def test_more_replicas_take_no_less_than_one_and_recomputation_takes_longer():
    one = simulated_step(setting(microbatches=4))
    assert simulated_step(setting(microbatches=4, dp=2)) >= one
    assert simulated_step(setting(microbatches=4, recompute="full")) > one
    assert simulated_step(setting(microbatches=4, pp=2, chunks=2)) < one
