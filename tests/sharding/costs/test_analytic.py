"""The analytic cost model: lower bounds of every layer, what ranks divide, and what recomputation adds."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.clusters import CLUSTERS, ClusterConfig, Link
from sharding.costs.analytic import AnalyticCostModel, Efficiency
from sharding.costs.cost_model import LayerParallelism, ring_seconds, useful_flops
from sharding.costs.node_placement import NodePlacement
from sharding.costs.optimizer_memory import OptimizerMemory
from sharding.expert_transfer import Routing
from sharding.specs.layers.layer import Kernel, PerLoad, expert_combine, expert_dispatch, expert_matmul, matmul
from sharding.specs.modules import module_graph
from tests.sharding.ideal_devices import IDEAL
from tests.sharding.layers import bare_layer

CLUSTER = ClusterConfig(
    name="toy",
    device_kinds=("toy",),
    peak_flops=100.0,
    memory=1e6,
    memory_bandwidth=50.0,
    devices_per_node=4,
    intra_node=Link(10.0, 0.5),
    inter_node=Link(2.0, 1.0),
    generation=IDEAL,
)
PERFECT = Efficiency(memory=1.0, link=1.0, launch=0.0)
TOY = AnalyticCostModel(CLUSTER, PERFECT, element_bytes=2)


def layer(*kernels):
    return bare_layer("toy", "toy", *kernels)


def loads(*values):
    """Of a row, or of several, without local attention."""
    return np.insert(np.array(values, float), 3, 0.0, axis=-1)


def test_a_kernel_takes_the_longer_of_arithmetic_and_memory():
    square = layer(matmul("square", 10, 10))
    # 200 FLOPs a token at 100 a second; (20 a token + 100 weights) numbers of 2 bytes at 50 a second.
    seconds = TOY.forward(square, loads((1, 1, 1), (10, 100, 1)), LayerParallelism(1)).total
    np.testing.assert_allclose(seconds, [(20 + 100) * 2 / 50, 20.0])


def test_tensor_ranks_divide_what_is_split_and_wait_for_collectives():
    block = layer(Kernel("gather", "all_gather", activations=PerLoad(8)), matmul("up", 10, 10))
    whole = layer(Kernel("gather", "all_gather", activations=PerLoad(8)), matmul("up", 10, 10, split=False))
    load = loads(100, 10_000, 1)
    one, two = TOY.forward(block, load, LayerParallelism(1)), TOY.forward(block, load, LayerParallelism(2))
    assert one.communication == 0 and two.compute == one.compute / 2
    assert two.communication == 0.5 + 2 * 800 / 2 / 10  # one of two shares, over the link inside a node
    assert TOY.forward(whole, load, LayerParallelism(2)).compute == one.compute
    assert TOY.forward(block, load, LayerParallelism(8)).communication == 7 * (
        1.0 + 2 * 800 / 8 / 2
    )  # over the link between nodes


def test_ring_collectives_wait_only_for_what_outlasts_the_matmuls():
    gather = Kernel("gather", "all_gather", activations=PerLoad(8))
    scatter = Kernel("scatter", "reduce_scatter", activations=PerLoad(8))
    norm = Kernel("norm", "memory", activations=PerLoad(10))
    load, around = loads(100, 0, 1), LayerParallelism(4, collectives="ring")
    up = TOY.forward(layer(matmul("up", 10, 10)), load, LayerParallelism(4)).compute
    sent = TOY.forward(layer(gather), load, LayerParallelism(4)).communication
    assert sent > up * 3 / 4 > 0
    for kernels in ((gather, matmul("up", 10, 10)), (matmul("down", 10, 10), scatter)):
        overlapped = TOY.forward(layer(*kernels), load, around)
        assert overlapped.communication == sent - up * 3 / 4  # three steps of four have something to wait for
        assert overlapped.compute == TOY.forward(layer(*kernels), load, LayerParallelism(4)).compute
        both = TOY.backward(layer(*kernels), load, around, ("dgrad", "wgrad"), "none")
        assert both.communication == overlapped.communication
    two = TOY.forward(layer(gather, matmul("up", 10, 10), matmul("gate", 10, 10), norm), load, around)
    assert two.communication == max(sent - 2 * up * 3 / 4, 0)
    for apart in (
        (gather, norm, matmul("up", 10, 10)),
        (matmul("up", 10, 10), gather),
        (scatter, matmul("up", 10, 10)),
    ):
        assert TOY.forward(layer(*apart), load, around).communication == sent


def test_norms_are_divided_by_sequence_parallelism_only():
    norm = layer(Kernel("norm", "memory", activations=PerLoad(100), split=False))
    load = loads(10, 0, 0)
    assert (
        TOY.forward(norm, load, LayerParallelism(2)).total
        == TOY.forward(norm, load, LayerParallelism(2, collectives="all_reduce")).total / 2
    )


def test_sequence_ranks_divide_the_load_and_wait_for_keys_that_outlast_attention():
    attention = Kernel("attention", "attention", PerLoad(squared_lengths=1), ring_elements=PerLoad(4), head_width=1)
    load, both = loads(100, 10_000, 1), ("dgrad", "wgrad")
    one = TOY.forward(layer(attention), load, LayerParallelism(1))
    # A hundred FLOPs a second: 100 s alone, 50 s on each of two; 2 bytes x 4 numbers x 50 tokens travel at 10 a second.
    two = TOY.forward(layer(attention), load, LayerParallelism(1, 2))
    assert (one.total, two.compute, two.communication) == (100.0, 50.0, 0.0)
    short = loads(100, 500, 1)
    around = 1 * (0.5 + 2 * 4 * 50 / 10)
    assert TOY.forward(layer(attention), short, LayerParallelism(1, 2)).communication == around - 2.5
    assert (
        TOY.forward(layer(attention), short, LayerParallelism(2, 2)).communication == 0.5 + 20 - 1.25
    )  # they divide keys too
    assert (
        TOY.backward(layer(attention), short, LayerParallelism(1, cp=2), both, "none").communication
        == 2 * around - 2.5 * 2.5
    )
    again = TOY.backward(layer(attention), short, LayerParallelism(1, cp=2), both, "selective")
    assert again.communication == 2 * around - 2.5 * 2.5 + around - 2.5 and again.compute == 3.5 * 2.5
    far = TOY.forward(layer(attention), loads(100, 0, 1), LayerParallelism(4, 2))  # over the link between nodes
    assert far.total == 1.0 + 2 * 4 * 50 / 4 / 2


def test_an_exchange_of_heads_waits_for_queries_keys_values_and_output_both_ways():
    attention = Kernel(
        "attention", "attention", PerLoad(squared_lengths=1), PerLoad(6), ring_elements=PerLoad(4), head_width=1
    )
    ranks, load = LayerParallelism(1, 2, context_transfer="all_to_all"), loads(100, 10_000, 1)
    # Half of 2 bytes x 6 numbers x 50 tokens goes to the other rank at 10 a second, whatever attention takes.
    exchanged = 1 * (0.5 + 2 * 6 * 50 / 2 / 10)
    seconds = TOY.forward(layer(attention), load, ranks)
    assert (seconds.compute, seconds.communication) == (50.0, exchanged)
    assert TOY.backward(layer(attention), load, ranks, ("dgrad",), "none").communication == exchanged
    # Of as many key-value heads as heads, a ring of 8 sends 7 times 4 numbers a token, and the exchange 7 / 8 of 8.
    equal = dataclasses.replace(attention, activations=PerLoad(8))
    waits = [
        TOY.forward(layer(equal), loads(800, 1, 1), LayerParallelism(1, 8, context_transfer=form)).communication
        for form in ("ring", "all_to_all")
    ]
    assert waits[1] < waits[0] / 2


def test_expert_ranks_divide_weights_and_exchange_tokens():
    kernels = (expert_dispatch(8, 2), expert_matmul("up", 10, 10, 2, experts=40), expert_combine(8))
    experts = dataclasses.replace(layer(*kernels), routing=Routing(40, 2))
    load = loads(10, 100, 1)
    one, two = TOY.forward(experts, load, LayerParallelism(1)), TOY.forward(experts, load, LayerParallelism(1, ep=2))
    assert one.communication == 0 and one.compute == (2 * 20 * 10 + 40 * 100) * 2 / 50
    assert two.compute == (2 * 20 * 10 + 20 * 100) * 2 / 50
    # All tokens of the other replica: 8 numbers of 2 bytes each, and on the way there two experts and weights of 4.
    there, back = 10 * (2 * 8 + 2 * 2 * 4), 10 * 2 * 8
    assert two.communication == 2 * 0.5 + (there + back) / 10
    for collectives in (
        "all_reduce",
        "sequence_parallel",
    ):  # every tensor rank sends whole tokens, whoever divides their positions
        ranks = LayerParallelism(2, ep=2, collectives=collectives)
        assert TOY.forward(experts, load, ranks).communication == two.communication
    assert TOY.forward(experts, loads(1e6, 0, 0), LayerParallelism(1)).compute == 2 * 10 * 10 * 2 * 1e6 / 100


def test_tokens_go_to_experts_by_the_transfer_that_moves_less_inside_nodes_and_between_them():
    kernels, load = (expert_dispatch(8, 2), expert_combine(8)), loads(10, 0, 0)
    experts = dataclasses.replace(layer(*kernels), routing=Routing(8, 2))
    there, back = 10 * (2 * 8 + 2 * 2 * 4), 10 * 2 * 8
    chance = 1 - 6 * 5 / (8 * 7)  # that one of four ranks has any of two experts
    inside = TOY.forward(experts, load, LayerParallelism(1, ep=4)).communication
    assert inside == pytest.approx(2 * 3 * 0.5 + 3 * chance * (there + back) / 10)
    apart = TOY.forward(experts, load, LayerParallelism(4, ep=4)).communication  # a replica is a node
    assert apart == pytest.approx(2 * 3 * 1.0 + 3 * chance * (there + back) / 2)
    # Two replicas are a node: 1.3 times the others' tokens would come in by each card, of which a gather needs one.
    there += 10 * 2 * 4
    kernels = (expert_dispatch(8, 3), expert_combine(8))
    both = dataclasses.replace(layer(*kernels), routing=Routing(8, 3))
    gathered = TOY.forward(both, load, LayerParallelism(2, ep=4)).communication
    assert gathered == pytest.approx(2 * (1.0 + 0.5) + (there + back) / 2 + 2 * (there + back) / 10)
    # Selective recomputation sends the tokens again, and no sums.
    none, selective, full = (
        TOY.backward(both, load, LayerParallelism(2, ep=4), ("dgrad", "wgrad"), policy).communication
        for policy in ("none", "selective", "full")
    )
    assert (none, full) == (gathered, 2 * gathered)
    assert selective == pytest.approx(gathered + 1.5 + there / 2 + 2 * there / 10)


def test_the_backward_is_its_gradients_plus_recomputation():
    square, load = layer(matmul("square", 10, 10)), loads(100, 0, 0)
    forward = TOY.forward(square, load, LayerParallelism(1)).total
    for turns, recompute, times in (((), "full", 0), (("dgrad",), "none", 1), (("dgrad", "wgrad"), "full", 3)):
        assert TOY.backward(square, load, LayerParallelism(1), turns, recompute).total == times * forward
    assert TOY.backward(square, load, LayerParallelism(1), ("wgrad",), "selective").total == forward


def test_useful_flops_exclude_recomputation_and_wgrad_of_attention():
    attention = Kernel("attention", "attention", PerLoad(squared_lengths=4), head_width=1)
    both = layer(matmul("square", 10, 10), attention)
    load = loads(3, 9, 1)
    assert useful_flops(both, load, ()) == 600 + 36
    assert useful_flops(both, load, ("wgrad",)) == 1200 + 36
    assert useful_flops(both, load, ("dgrad", "wgrad")) == 1800 + 3 * 36


def test_an_empty_load_takes_no_time():
    block = module_graph(ModelConfig()).backbone.layer
    assert (
        AnalyticCostModel(CLUSTERS["a100"]).forward(block, loads((0, 0, 0), (5, 25, 1)), LayerParallelism(1)).total[0]
        == 0
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4000), st.integers(1, 20), st.sampled_from([1, 2, 4, 8]), st.sampled_from(sorted(CLUSTERS)))
def test_no_layer_beats_the_data_sheet_and_larger_loads_take_no_less_time(length, segments, tp, name):
    model = ModelConfig(
        (VisionConfig(width=64, heads=8, ffn=128),),
        BackboneConfig(width=64, heads=8, kv_heads=8, ffn=128, vocabulary=64),
        (),
    )
    cluster = CLUSTERS[name]
    costs = AnalyticCostModel(cluster)
    load = loads(length * segments, length**2 * segments, segments)
    for module in module_graph(model).modules:
        for spec, _ in module.all_layers:
            forward = costs.forward(spec, load, LayerParallelism(tp)).total
            assert forward * cluster.peak_flops * tp >= spec.flops.evaluate(load)
            assert costs.forward(spec, 2 * load, LayerParallelism(tp)).total >= forward
            backward = costs.backward(spec, load, LayerParallelism(tp), ("dgrad", "wgrad"), "none").total
            full = costs.backward(spec, load, LayerParallelism(tp), ("dgrad", "wgrad"), "full").total
            saved = [kernel for kernel in spec.kernels if not kernel.always_recomputed]
            again = costs.forward(dataclasses.replace(spec, kernels=tuple(saved)), load, LayerParallelism(tp)).total
            assert backward >= forward and np.isclose(full, backward + again)


@settings(max_examples=20, deadline=None)
@given(st.integers(4000, 30_000), st.sampled_from([1, 2, 4]), st.sampled_from(["a100", "h100"]))
def test_attention_over_a_long_sequence_is_faster_on_more_sequence_ranks(length, tp, name):
    block = module_graph(
        ModelConfig((), BackboneConfig(width=4096, heads=32, kv_heads=8, ffn=14336), ())
    ).backbone.layer
    costs, load = AnalyticCostModel(CLUSTERS[name]), loads(8 * length, (8 * length) ** 2, 1)
    seconds = [costs.forward(block, load, LayerParallelism(tp, cp)) for cp in (1, 2, 4, 8)]
    totals = [float(layer_seconds.total) for layer_seconds in seconds]
    assert totals == sorted(totals, reverse=True) and totals[-1] < totals[0] / 4
    assert all(
        layer_seconds.compute >= seconds[0].compute / cp
        for layer_seconds, cp in zip(seconds, (1, 2, 4, 8), strict=True)
    )


def test_a_ring_sends_all_but_one_share():
    assert ring_seconds(np.array(80.0), 4, Link(10.0, 0.5)) == 3 * (0.5 + 80 / 4 / 10)
    assert ring_seconds(np.array(80.0), 1, Link(10.0, 0.5)) == 0


def test_hops_gathers_reductions_and_updates():
    assert TOY.hop(np.array([0.0, 20.0]), True, 2).tolist() == [0.0, 0.5 + 2.0]
    assert TOY.gather_weights(40.0, NodePlacement.on_one_node(2)) == 0.5 + 2 * 40 / 2 / 10
    assert TOY.reduce_gradients(40.0, NodePlacement(2, 2)) == 1.0 + 4 * 40 / 2 / 2
    assert TOY.optimizer_update(100.0, 2) == 34 * 100 / 50
    in_bfloat16 = dataclasses.replace(TOY, optimizer=OptimizerMemory(moment_bytes=4))
    assert in_bfloat16.optimizer_update(100.0, 2) == (34 - 2 * 4) * 100 / 50
    assert TOY.gradient_norm(4) == 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Efficiency(memory=1.5), "Efficiency.memory is 1.5"),
        (lambda: Link(0.0, 0.0), "bandwidth 0.0 must be positive"),
        (lambda: dataclasses.replace(CLUSTER, memory=0.0), "ClusterConfig.memory is 0.0"),
    ],
)
def test_invalid_fields_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
