"""What every effect adds to analytic costs, by exact arithmetic against the costs without it."""

import dataclasses

import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig
from configs.clusters import CLUSTERS
from configs.cost_effects import CostEffects
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.concurrency import expected_largest, exposed_seconds
from sharding.costs.cost_model import LayerParallelism
from sharding.costs.node_placement import NodePlacement
from sharding.costs.stages.plan_costs import plan_costs
from sharding.costs.stages.sharded_weights import WeightExchange, exposed_in_backward, exposed_in_forward
from sharding.expert_transfer import Routing
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.layers.layer import (
    Kernel,
    PerLoad,
    expert_combine,
    expert_dispatch,
    expert_matmul,
    make_loads,
    matmul,
)
from sharding.specs.modules import module_graph
from tests.sharding.layers import bare_layer
from tests.unit_plans import module_unit

LOADS = make_loads(8192, 8192 * 2048, 4)
BOTH = ("dgrad", "wgrad")


def costs(**effects) -> AnalyticCostModel:
    """The costs of A100s with some effects alone."""
    cluster = CLUSTERS["a100"]
    generation = dataclasses.replace(cluster.generation, effects=CostEffects(**effects))
    return AnalyticCostModel(dataclasses.replace(cluster, generation=generation))


def matmuls():
    return bare_layer("toy", "toy", matmul("up", 4096, 16384), matmul("down", 16384, 4096, split_by="rows"))


def test_throttled_matmuls_and_attention_take_longer_and_memory_does_not():
    attention = Kernel("attention", "attention", PerLoad(squared_lengths=8192), head_width=128)
    norm = Kernel("norm", "memory", activations=PerLoad(4096))
    for kernels, factor in (((matmul("up", 4096, 16384),), 1.5), ((attention,), 1.5), ((norm,), 1.0)):
        layer = bare_layer("toy", "toy", *kernels)
        launch = costs().efficiency.launch
        cold, warm = (
            model.forward(layer, LOADS, LayerParallelism()).compute - launch
            for model in (costs(), costs(throttling=1.5))
        )
        assert warm == pytest.approx(factor * cold)


def test_a_convolution_reaches_a_share_of_its_matmuls_speed():
    kernel = Kernel("conv", "convolution", PerLoad(2 * 9 * 512 * 512), weights=9 * 512 * 512, inner=9 * 512, outer=512)
    layer, launch = bare_layer("toy", "toy", kernel), costs().efficiency.launch
    whole, quarter = (
        model.forward(layer, LOADS, LayerParallelism()).compute - launch
        for model in (costs(), costs(convolution_share=0.25))
    )
    assert quarter == pytest.approx(4 * whole)
    unlike = matmuls()
    assert costs(convolution_share=0.25).forward(unlike, LOADS, LayerParallelism()) == costs().forward(
        unlike, LOADS, LayerParallelism()
    )


def test_ranks_that_compute_together_wait_for_the_slowest_of_them():
    layer, jitter = matmuls(), 0.02
    for ranks, together in ((LayerParallelism(), 1), (LayerParallelism(4), 4), (LayerParallelism(1, dp=8, fsdp=8), 8)):
        plain, varied = (model.backward(layer, LOADS, ranks, BOTH, "full") for model in (costs(), costs(jitter=jitter)))
        assert varied.compute == pytest.approx(plain.compute * (1 + jitter * expected_largest(1)))
        waited = plain.compute * jitter * (expected_largest(together) - expected_largest(1))
        assert varied.communication - plain.communication == pytest.approx(waited, abs=1e-12)


def test_a_ring_and_the_matmuls_beside_it_slow_each_other():
    gather = Kernel("gather", "all_gather", activations=PerLoad(4096))
    layer, ring = bare_layer("toy", "toy", gather, matmul("up", 4096, 16384)), LayerParallelism(8, collectives="ring")
    slowdowns = {"compute_slowdown": 1.4, "transfer_slowdown": 1.3}
    slow, alone = costs(**slowdowns), costs()
    compute = alone.forward(layer, LOADS, ring).compute
    transfer = alone.forward(bare_layer("toy", "toy", gather), LOADS, ring).communication
    seconds = slow.forward(layer, LOADS, ring)
    assert seconds.compute == compute
    assert seconds.communication == pytest.approx(float(exposed_seconds(compute * 7 / 8, transfer, slow.effects)))
    assert seconds.communication > alone.forward(layer, LOADS, ring).communication


def test_gathers_and_scatters_slow_the_layers_beside_them():
    effects = CostEffects(compute_slowdown=1.5, transfer_slowdown=1.2)
    exchange, compute = WeightExchange(1.0, 2.0, 1.0), np.array([10.0])
    # Beside 10 s of computation the gather takes 1.2 s, in which 0.8 s are computed: 0.4 s longer.
    assert exposed_in_forward(exchange, compute, 3, effects, is_first=False) == pytest.approx(3 * 0.4)
    assert exposed_in_forward(exchange, compute, 3, effects, is_first=True) == pytest.approx(2 * 0.4 + 1.0)
    # Gather and scatter together: 3 s, 3.6 s beside it, in which 2.4 s are computed.
    assert exposed_in_backward(exchange, compute, 3, effects, False, False) == pytest.approx(3 * 1.2)


def test_collectives_of_parameters_take_longer_with_each_doubling_of_the_nodes():
    size = 1e10
    for nodes, doublings in ((2, 1), (16, 4)):
        placement = NodePlacement(8 * nodes, nodes, 8, 8)
        plain, contended = (model.gather_weights(size, placement) for model in (costs(), costs(contention=0.1)))
        inside = costs().gather_weights(size, NodePlacement.on_one_node(8))
        latency = (nodes - 1) * CLUSTERS["a100"].inter_node.latency
        assert contended - inside - latency == pytest.approx((plain - inside - latency) * (1 + 0.1 * doublings))
    assert costs(contention=0.1).gather_weights(size, NodePlacement.on_one_node(8)) == inside


def test_the_fullest_expert_rank_is_waited_for():
    routing = Routing(8, 2)
    kernels = (expert_dispatch(4096, 2), expert_matmul("up", 4096, 4096, experts=8, top_k=2), expert_combine(4096))
    layer = dataclasses.replace(bare_layer("toy", "toy", *kernels), routing=routing)
    ranks = LayerParallelism(1, ep=8, dp=8, expert_transfer="all_to_all")
    even, uneven = (model.forward(layer, LOADS, ranks) for model in (costs(), costs(imbalance=1.25)))
    launch = costs().efficiency.launch
    assert uneven.compute - launch == pytest.approx(1.25 * (even.compute - launch))
    assert uneven.communication == pytest.approx(1.25 * even.communication)
    alone = LayerParallelism(1)
    assert costs(imbalance=1.25).forward(layer, LOADS, alone) == costs().forward(layer, LOADS, alone)


def test_no_op_takes_less_than_its_dispatch():
    model = BackboneConfig(width=64, depth=2, heads=4, kv_heads=4, ffn=128, vocabulary=256)
    graph = module_graph(ModelConfig((), model, ()))
    unit = module_unit("backbone", (0, 1), layers=(1, 1))
    resolved = ResolvedPlan(Plan((unit,), 2), graph, trained_parts(graph, ("all",)))
    rows = {"backbone": np.array([[8.0, 64.0, 1.0, 0.0]] * 2)}
    for dispatch in (0.0, 1.0):
        stages = plan_costs(resolved, BatchCosts(graph, costs(dispatch=dispatch), rows)).stages
        for stage in stages.values():
            assert (stage.forward == dispatch).all() == (stage.backward == dispatch).all() == (dispatch > 0)
    frozen = dataclasses.replace(resolved, trained_parts=frozenset())
    assert not plan_costs(frozen, BatchCosts(graph, costs(dispatch=1.0), rows)).stages["backbone", 0].backward.any()
