"""What fully sharded stages hold and exchange, against sums by hand and against a step layer by layer."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.architectures import BackboneConfig, ModelConfig
from configs.clusters import CLUSTERS
from configs.cost_effects import EFFECT_NAMES, CostEffects
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.memory import train_state_bytes
from sharding.costs.node_placement import NodePlacement
from sharding.costs.stages.plan_costs import plan_costs
from sharding.costs.stages.sharded_weights import WeightExchange, exposed_in_backward, exposed_in_forward
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.modules import module_graph
from tests.sharding.expert_graphs import with_experts
from tests.unit_plans import flat_unit

NONE = CostEffects()
BACKBONE = BackboneConfig(vocabulary=256, width=128, depth=4, heads=4, kv_heads=2, ffn=256)
GRAPH = module_graph(ModelConfig((), BACKBONE, ()))
A100 = AnalyticCostModel(CLUSTERS["a100"].without(EFFECT_NAMES))
ALL = trained_parts(GRAPH, ("all",))
SECONDS = st.floats(0.01, 10)


def batch(tokens: float, graph=GRAPH) -> BatchCosts:
    return BatchCosts(graph, A100, {"backbone": np.array([[tokens, tokens**2, 1.0, 0.0]] * 16)})


def step(costs: BatchCosts, trained=ALL, **fields):
    unit = flat_unit("backbone", ("backbone",), tuple(range(16)), layers=(4,), **fields, parallelism=Parallelism(dp=16))
    return plan_costs(ResolvedPlan(Plan((unit,)), costs.graph, trained), costs).stages["backbone", 0]


@given(SECONDS, st.one_of(st.just(0.0), SECONDS), SECONDS, st.integers(1, 5))
def test_exposed_seconds_are_those_of_a_pass_in_which_each_layer_prefetches_the_next(gather, scatter, compute, count):
    exchange = WeightExchange(gather, scatter, gather)
    # The first gather alone; then each layer computes beside the gather of the next.
    forward = gather + (count - 1) * max(gather, compute) + compute
    waiting = float(exposed_in_forward(exchange, np.array(compute), count, NONE, is_first=True))
    assert waiting <= forward - count * compute + max(gather - compute, 0) + 1e-9
    assert waiting >= forward - count * compute - 1e-9
    backward = float(exposed_in_backward(exchange, np.array(compute), count, NONE, is_first=True, is_last=True))
    both = gather + scatter
    assert min(both, count * both) - 1e-9 <= backward + compute * count <= count * (both + compute) + 1e-9
    kept = exposed_in_backward(exchange._replace(gather_again=0.0), np.array(compute), 1, NONE, True, True)
    assert kept == pytest.approx(scatter)
    if count == 1:  # nothing is beside its gather or its scatter
        assert waiting == pytest.approx(gather) and backward == pytest.approx(both)
    else:
        assert exposed_in_forward(exchange, np.array(compute), count, NONE, is_first=False) <= waiting


def test_nothing_is_gathered_for_a_microbatch_with_nothing_to_compute():
    exchange = WeightExchange(1.0, 1.0, 1.0)
    assert exposed_in_forward(exchange, np.zeros(2), 3, NONE, True).tolist() == [0, 0]
    assert exposed_in_backward(exchange, np.zeros(2), 3, NONE, True, True).tolist() == [0, 0]


@pytest.mark.parametrize("fsdp", [2, 8, 16])
def test_a_device_holds_a_share_of_weights_and_gradients_and_one_whole_layer(fsdp):
    costs = batch(64.0)
    whole, sharded = step(costs), step(costs, fsdp=fsdp)
    backbone = GRAPH.backbone
    layers = (*backbone.leading_layers, backbone.layer, *backbone.trailing_layers)
    parameters = sum(layer.parameter_count * (4 if layer is backbone.layer else 1) for layer in layers)
    largest = max(layer.parameter_count for layer in layers)
    state_whole = float(train_state_bytes(parameters, parameters, 16, A100))
    state = (2 + 2 + 4) * parameters / fsdp + (4 + 8) * parameters / 16
    kept = [parameters * bytes_each for bytes_each in (2 / fsdp, (2 + 4) / fsdp, (4 + 8) / 16)]
    assert sharded.static[:4] == pytest.approx((*kept, largest * (2 * 2 + 2 + 4)))
    assert whole.static_bytes - sharded.static_bytes == pytest.approx(state_whole - state - largest * (2 * 2 + 2 + 4))


def test_what_computation_hides_costs_nothing_but_the_first_gather():
    long, short = batch(65536.0), batch(8.0)
    whole, sharded = step(long), step(long, fsdp=8)
    embedding = GRAPH.backbone.leading_layers[0]
    gather = A100.gather_weights(embedding.parameters_per_rank(1), NodePlacement.on_one_node(8))
    exposed = sharded.forward_communication - whole.forward_communication
    np.testing.assert_allclose(sharded.forward - whole.forward, exposed)
    passes = sharded.sharded
    assert whole.sharded is None and passes.exposed_forward == pytest.approx(exposed.mean())
    exposed_backward = (sharded.backward_communication - whole.backward_communication).mean()
    assert passes.exposed_backward == pytest.approx(exposed_backward)
    assert (passes.forward, passes.backward) == pytest.approx((whole.forward.mean(), whole.backward.mean()))
    backbone = GRAPH.backbone
    layers = (*backbone.leading_layers, *[backbone.layer] * 4, *backbone.trailing_layers)
    ranks = NodePlacement.on_one_node(8)
    gathers = sum(A100.gather_weights(layer.parameters_per_rank(1), ranks) for layer in layers)
    scatters = sum(A100.reduce_gradients(layer.parameters_per_rank(1), ranks) for layer in layers)
    assert (passes.gather, passes.gather_again, passes.scatter) == pytest.approx((gathers, gathers, scatters))
    assert (exposed >= gather * (1 - 1e-9)).all() and (exposed < 4 * gather).all()
    assert (step(short, fsdp=8).forward / step(short).forward).min() > (sharded.forward / whole.forward).max() > 1


def test_groups_on_one_node_wait_less_than_groups_across_nodes_and_reduce_once_a_step():
    costs = batch(512.0)
    hybrid, everywhere = step(costs, fsdp=8), step(costs, fsdp=16)
    assert (hybrid.forward_communication < everywhere.forward_communication).all()
    assert (hybrid.backward_communication < everywhere.backward_communication).all()
    assert everywhere.gather == everywhere.reduce == 0 < hybrid.reduce < step(costs).reduce
    assert hybrid.update == pytest.approx(everywhere.update)  # masters are divided among all in both


def test_a_compiled_unit_gathers_the_weights_around_its_stack_once_for_forward_and_backward():
    """A vocabulary so large that next to nothing else takes time."""
    graph = module_graph(ModelConfig((), dataclasses.replace(BACKBONE, vocabulary=2**22), ()))
    stage = step(batch(1e-6, graph), fsdp=8, executor="compiled", recompute=("full",))
    ranks, backbone = NodePlacement.on_one_node(8), graph.backbone
    sizes = [layer.parameters_per_rank(1) for layer in (*backbone.leading_layers, *backbone.trailing_layers)]
    exchanged = sum(A100.gather_weights(size, ranks) + A100.reduce_gradients(size, ranks) for size in sizes)
    np.testing.assert_allclose(
        (stage.forward_communication + stage.backward_communication).sum(axis=0), exchanged, rtol=0.02
    )
    passes = stage.sharded
    assert sum((passes.gather, passes.gather_again, passes.scatter)) == pytest.approx(exchanged, rel=0.02)


def test_frozen_weights_are_gathered_and_nothing_is_scattered():
    stage = step(batch(512.0), trained=frozenset(), fsdp=8)
    assert (stage.forward_communication > 0).all() and (stage.backward == 0).all()
    passes = stage.sharded
    assert passes.gather > 0 == passes.gather_again == passes.scatter == passes.exposed_backward


def test_experts_are_gathered_over_the_ranks_that_divide_each():
    graph = with_experts(GRAPH, 4)
    costs = batch(16.0, graph)  # of which the buffers are small
    trained = trained_parts(graph, ("all",))
    all_experts, divided = step(costs, trained, fsdp=8), step(costs, trained, fsdp=8, ep=2)
    assert divided.static_bytes < all_experts.static_bytes  # a device gathers half of a layer's experts
