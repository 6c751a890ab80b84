"""Kernels of a layer on a device: the sizes of each pass's matmuls, what ranks divide, and gradient accumulation."""

import dataclasses
import itertools

import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig
from configs.clusters import CLUSTERS
from configs.cost_effects import EFFECT_NAMES
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.cost_model import LayerParallelism
from sharding.costs.kernel_seconds import KernelCosts
from sharding.costs.matmul_seconds import MatmulSizes, matmul_seconds
from sharding.plans.resolved.trained_parts import Gradient
from sharding.specs.layers.layer import (
    Kernel,
    all_gather,
    expert_matmul,
    make_loads,
    matmul,
    memory_bound,
    reduce_scatter,
)
from sharding.specs.modules import module_graph
from tests.sharding.layers import bare_layer

CLUSTER = CLUSTERS["a100"].without(EFFECT_NAMES)
BANDWIDTH, LAUNCH = 0.8 * CLUSTER.memory_bandwidth, 1e-6
TOKENS = 6000
GRADIENTS: tuple[tuple[Gradient, ...], ...] = (("dgrad", "wgrad"), ("dgrad",), ("wgrad",))


def kernel_costs():
    return KernelCosts(CLUSTER, BANDWIDTH, LAUNCH, 2)


def passes(kernel, ranks):
    layer = bare_layer("toy", "toy", kernel)
    return [float(seconds[..., 0]) for seconds in kernel_costs().passes(layer, make_loads(TOKENS, TOKENS, 1), ranks)]


def seconds(rows, outer, inner, count=1):
    """What a kernel of this shape takes, which no traffic outlasts."""
    sizes = MatmulSizes(*(np.asarray(size, float) for size in (rows, outer, inner, count)))
    return float(matmul_seconds(sizes, CLUSTER, 2, BANDWIDTH)) + LAUNCH


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("split_by", ["columns", "rows"])
def test_each_gradient_is_a_matmul_of_its_own_shape(tp, split_by):
    inner, outer = (1536, 6144 // tp) if split_by == "columns" else (1536 // tp, 6144)
    pass_seconds = passes(matmul("up", 1536, 6144, split_by=split_by), LayerParallelism(tp))
    expected = [seconds(TOKENS, outer, inner), seconds(TOKENS, inner, outer), seconds(inner, outer, TOKENS)]
    assert pass_seconds == pytest.approx(expected)


def test_experts_are_as_many_matmuls_of_their_share_of_the_tokens():
    kernel = expert_matmul("up", 1024, 4096, 2, experts=8)
    rows = 2 * TOKENS / 8
    assert passes(kernel, LayerParallelism())[0] == pytest.approx(seconds(rows, 4096, 1024, 8))
    # Two expert ranks: four experts each, with the tokens of both replicas.
    assert passes(kernel, LayerParallelism(tp=2, ep=2))[0] == pytest.approx(seconds(2 * rows, 2048, 1024, 4))


def test_groups_are_divided_whole():
    scores = dataclasses.replace(matmul("scores", 128, 6000), groups=16, split_by="groups", weights=0)
    rows = TOKENS / 16
    assert passes(scores, LayerParallelism(4))[0] == pytest.approx(seconds(rows, 6000, 128, 4))


def test_memory_bound_kernels_have_no_gradients_of_weights():
    forward, dgrad, wgrad = passes(memory_bound("norm", 4096), LayerParallelism())
    assert forward == pytest.approx(2 * 4096 * TOKENS / BANDWIDTH + LAUNCH) and wgrad == 0
    assert dgrad == pytest.approx(1.5 * 2 * 4096 * TOKENS / BANDWIDTH + LAUNCH)


def test_a_backward_with_weights_adds_their_gradients_to_float32_sums():
    costs = AnalyticCostModel(CLUSTER)
    layer = module_graph(ModelConfig((), BackboneConfig(width=512, heads=8, kv_heads=8, ffn=2048), ())).backbone.layer
    loads, ranks = make_loads(TOKENS, TOKENS**2, 1), LayerParallelism(2)
    both, dgrad, wgrad = (
        float(costs.backward(layer, loads, ranks, gradients, "none").compute) for gradients in GRADIENTS
    )
    assert both == pytest.approx(dgrad + wgrad)
    matmuls = kernel_costs().passes(layer, loads, ranks).wgrad
    launches = 3e-6 - LAUNCH
    accumulated = (layer.parameters / 2 + layer.replicated_parameters) * 10 / BANDWIDTH
    assert wgrad == pytest.approx(float(matmuls.sum()) + launches * np.count_nonzero(matmuls) + accumulated)
    assert not costs.backward(layer, 0 * loads, ranks, ("dgrad", "wgrad"), "full").total


def test_kept_answers_are_those_of_a_new_model():
    """Also where more is asked than is kept."""
    asked = list(itertools.product(range(1, 101), (1, 2, 4)))
    kept, layer = kernel_costs(), bare_layer("toy", "toy", matmul("up", 512, 1024), memory_bound("norm", 512))
    for tokens, tp in asked * 2:
        loads, ranks = make_loads(np.array([tokens, tokens + 1]), 1, 1), LayerParallelism(tp)
        for one, other in zip(
            kept.passes(layer, loads, ranks), kernel_costs().passes(layer, loads, ranks), strict=True
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Kernel("up", "matmul"), "kernel up is a matmul with inner 0, outer 0"),
        (lambda: Kernel("scores", "attention"), "kernel scores is attention with head_width 0"),
    ],
)
def test_kernels_without_their_sizes_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("side", ["all_gather", "reduce_scatter"])
def test_matmuls_beside_a_ring_are_as_many_as_its_ranks(side):
    collective = all_gather(512) if side == "all_gather" else reduce_scatter(512)
    pair = (collective, matmul("up", 512, 2048)) if side == "all_gather" else (matmul("up", 512, 2048), collective)
    layer, number = bare_layer("toy", "toy", *pair, memory_bound("norm", 512)), int(side == "all_gather")
    loads = make_loads(TOKENS, TOKENS, 1)
    whole, ring = (
        kernel_costs().passes(layer, loads, LayerParallelism(4, collectives=name))
        for name in ("sequence_parallel", "ring")
    )
    assert float(whole.forward[number]) == pytest.approx(seconds(TOKENS, 512, 512))
    assert float(ring.forward[number]) == pytest.approx(4 * seconds(TOKENS / 4, 512, 512))
    assert float(ring.wgrad[number]) == pytest.approx(4 * seconds(512, 512, TOKENS / 4))
    assert float(ring.forward[-1]) == float(whole.forward[-1])  # sequence parallelism in both
