"""Published runs: what their frameworks' kernels add, and that simulations stay where the results say they are."""

import collections
import dataclasses

import numpy as np
import pytest

from benchmarks.validation.runs import megatron
from benchmarks.validation.runs.all_runs import all_runs
from benchmarks.validation.runs.megatron import gpt
from benchmarks.validation.settings.frameworks import (
    A100,
    AttentionRecomputed,
    KernelsRecomputed,
    megatron_2022,
    unfused_attention,
)
from benchmarks.validation.settings.setting import Setting, language_graph, sequence_load, simulated_step
from configs.cost_effects import EFFECT_NAMES, CostEffects
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.cost_model import LayerParallelism
from sharding.costs.published_errors import published_errors
from sharding.specs.layers.layer import make_loads

HALVES = ("calibration", "testing")
MODEL = gpt(1024, 4, 8, vocabulary=2048)
LOADS = make_loads(2 * 512, 2 * 512**2, 2)


def setting(**changes):
    start = Setting(
        graph=language_graph(MODEL), costs=AnalyticCostModel(A100), loads=(sequence_load(512),), microbatch=2
    )
    return dataclasses.replace(start, **changes)


def test_names_are_unique_every_run_has_a_source_and_both_halves_have_every_large_family():
    runs = all_runs()
    assert len({run.name for run in runs}) == len(runs) >= 70
    assert all(run.source and run.seconds > 0 for run in runs)
    families = collections.Counter((run.family, run.half) for run in runs)
    assert all(families[family, half] >= 8 for family in ("pipeline", "fully_sharded", "diffusion") for half in HALVES)


def test_the_effects_of_a_setting_are_its_devices_until_others_are_given():
    run = megatron.layer_runs()[0]
    effects = run.setting.costs.cluster.generation.effects
    assert run.simulate() == run.simulate(effects) > run.simulate(effects.without(EFFECT_NAMES))
    assert run.simulate(CostEffects(throttling=2.0)) > run.simulate()


@pytest.mark.parametrize("run", megatron.layer_runs(), ids=lambda run: run.name)
def test_a_layer_of_megatron_lm_is_within_the_goal(run):
    assert run.simulate() == pytest.approx(run.seconds, rel=0.08)


def test_unfused_attention_computes_whole_squares_on_every_rank():
    kernels = unfused_attention(MODEL.width, MODEL.heads, 512, 2)
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


def test_kernels_that_are_computed_again_are_named_wholly_or_by_half():
    layer = setting().graph.backbone.layer
    none, output, half, whole = (
        KernelsRecomputed(A100, names=names, half=by_half).backward(
            layer, LOADS, LayerParallelism(2), ("dgrad", "wgrad"), "selective"
        )
        for names, by_half in (((), ()), (("output",), ()), ((), ("up",)), (("up",), ()))
    )
    assert none.total < output.total < none.total + whole.total
    assert none.compute < half.compute < whole.compute


def test_the_errors_that_ranges_are_made_of_are_the_testing_halfs():
    runs = [run for run in all_runs() if run.half == "testing"]
    shipped = published_errors()
    assert {(run.family, run.name) for run in runs} == {
        (family, name) for family, errors in shipped.items() for name in errors
    }
    quick = [run for run in runs if run.family in ("fully_sharded", "diffusion", "encoder", "vision_language")]
    for run in quick:
        assert shipped[run.family][run.name] == pytest.approx(run.error(), abs=0.0006), f"{run.name}: --write it again"
