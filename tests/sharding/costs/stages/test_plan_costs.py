"""A plan's costs: sums over its layers, the gradients that each computes, saved bytes, and exposed collectives."""

import dataclasses

import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig, UNetConfig, VisionConfig
from configs.clusters import CLUSTERS, Link
from configs.cost_effects import EFFECT_NAMES
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.cost_model import LayerParallelism
from sharding.costs.memory import saved_activation_bytes
from sharding.costs.stages.plan_costs import plan_costs
from sharding.costs.step_costs import StepCosts
from sharding.plans.plan import Plan, single_device_plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import RequiredGradients, trained_parts
from sharding.specs.layers.layer import RECOMPUTE_POLICIES
from sharding.specs.modules import module_graph
from tests.sharding.expert_graphs import with_experts
from tests.unit_plans import module_unit

MODEL = ModelConfig(
    (VisionConfig(width=64, depth=3, heads=4, ffn=128),),
    BackboneConfig(vocabulary=256, width=128, depth=4, heads=4, kv_heads=2, ffn=256),
    (UNetConfig(image_size=16),),
)
GRAPH = module_graph(MODEL)
COSTS = AnalyticCostModel(CLUSTERS["a100"].without(EFFECT_NAMES))
ROWS = {
    "vision": np.array([[64.0, 64.0**2, 1.0, 0.0], [128.0, 2 * 64.0**2, 2.0, 0.0]] * 2),
    "backbone": np.array([[200.0, 100.0**2 * 2, 2.0, 0.0]] * 4),
    "generator": np.array([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]] * 2),
}
BATCH = BatchCosts(GRAPH, COSTS, ROWS)
ALL = trained_parts(GRAPH, ("all",))
CUT = Plan(
    (
        module_unit("vision", (0, 1), layers=(3,), dp=2),
        module_unit("backbone", (2, 3), layers=(1, 3), recompute=("full", "none"), dp=1, tp=1),
        module_unit("generator", (4,)),
    ),
    microbatches=2,
)


def test_stages_add_up_to_one_device_but_for_recomputation():
    whole, cut = (
        plan_costs(ResolvedPlan(single_device_plan(GRAPH, 2), BATCH.graph, ALL), BATCH),
        plan_costs(ResolvedPlan(CUT, BATCH.graph, ALL), BATCH),
    )
    one, two = whole.stages["backbone", 0], [cut.stages["backbone", stage] for stage in (0, 1)]
    np.testing.assert_allclose(two[0].forward + two[1].forward, one.forward)
    np.testing.assert_allclose(two[0].flops + two[1].flops, one.flops)
    again = two[0].backward + two[1].backward - one.backward
    np.testing.assert_allclose(again, two[0].forward)  # the first stage computes all of its forward again
    assert cut.flops == pytest.approx(whole.flops) and cut.tokens == 800


def test_flops_are_three_forwards_where_all_trains_and_attention_has_no_parameters():
    costs = plan_costs(ResolvedPlan(single_device_plan(GRAPH), BATCH.graph, ALL), BATCH)
    for module in GRAPH.modules:
        forward = module.forward_flops(ROWS[module.name]).sum()
        assert costs.stages[module.name, 0].flops.sum() <= 3 * forward
    # Nothing before the encoder wants the gradient of its pixels.
    pixels = GRAPH["vision"].leading_layers[0].flops.evaluate(ROWS["vision"]).sum()
    vision = costs.stages["vision", 0].flops.sum()
    assert vision == pytest.approx(3 * GRAPH["vision"].forward_flops(ROWS["vision"]).sum() - pixels)


def test_full_recomputation_saves_least_and_none_saves_most():
    held = {}
    for choice in ("none", "selective", "full"):
        units = tuple(dataclasses.replace(unit, recompute=(choice,) * unit.stage_count) for unit in CUT.units)
        costs = plan_costs(ResolvedPlan(dataclasses.replace(CUT, units=units), BATCH.graph, ALL), BATCH)
        held[choice] = costs.stages["backbone", 1].saved_bytes[0, 0]
    assert held["full"] < held["selective"] < held["none"]


def uniform(policy: str) -> Plan:
    return dataclasses.replace(
        CUT, units=tuple(dataclasses.replace(unit, recompute=(policy,) * unit.stage_count) for unit in CUT.units)
    )


def test_what_selective_saves_besides_its_inputs_is_offloaded_and_exposed_beyond_a_layers_computation():
    device, host, full = (
        plan_costs(ResolvedPlan(uniform(policy), BATCH.graph, ALL), BATCH).stages["backbone", 1]
        for policy in ("selective", "offload", "full")
    )
    np.testing.assert_allclose(host.saved_bytes, full.saved_bytes)
    np.testing.assert_allclose(host.saved_bytes + host.offloaded_bytes, device.saved_bytes)
    assert (host.offloaded_bytes > 0).all() and not device.offloaded_bytes.any() and not full.offloaded_bytes.any()
    for link, is_hidden in ((Link(1e30, 0.0), True), (Link(1.0, 0.0), False)):
        cluster = dataclasses.replace(BATCH.costs.cluster, host_link=link, host_memory=1e9)
        batch = BatchCosts(GRAPH, dataclasses.replace(BATCH.costs, cluster=cluster), ROWS)
        stage = plan_costs(ResolvedPlan(uniform("offload"), batch.graph, ALL), batch).stages["backbone", 1]
        if is_hidden:
            np.testing.assert_allclose(stage.forward + stage.backward, device.forward + device.backward)
        else:  # computing hides next to nothing of both ways
            both = 2 * stage.offloaded_bytes / BATCH.costs.efficiency.link
            np.testing.assert_allclose(stage.forward + stage.backward, both, rtol=1e-3)
    without = dataclasses.replace(BATCH.costs, cluster=dataclasses.replace(BATCH.costs.cluster, host_link=None))
    with pytest.raises(PlanError, match="cluster .* has no host_link"):
        plan_costs(ResolvedPlan(uniform("offload"), GRAPH, ALL), BatchCosts(GRAPH, without, ROWS))


def test_policies_within_a_stage_cost_what_their_layers_cost_alone():
    """Four equal layers on one stage: three of one policy and one of another."""

    def backbone(recompute: str):
        unit = dataclasses.replace(CUT.unit_of("backbone"), devices=(0,), layers=(4,), recompute=(recompute,))
        units = tuple(unit if other.name == unit.name else other for other in CUT.units)
        return plan_costs(ResolvedPlan(dataclasses.replace(CUT, units=units), BATCH.graph, ALL), BATCH).stages[
            "backbone", 0
        ]

    none, full, mixed = (backbone(recompute) for recompute in ("none", "full", "3 none, 1 full"))
    for field in ("saved_bytes", "backward"):
        low, high = sorted((getattr(none, field).sum(), getattr(full, field).sum()))
        assert low < getattr(mixed, field).sum() < high
    np.testing.assert_allclose(mixed.forward, none.forward)
    assert mixed.static_bytes == full.static_bytes > none.static_bytes  # the workspace of a recomputed layer


def test_static_bytes_are_weights_gradients_and_a_share_of_the_optimizer_state():
    stage = plan_costs(ResolvedPlan(CUT, BATCH.graph, ALL), BATCH).stages["vision", 0]
    parameters = GRAPH["vision"].parameter_count
    assert stage.static_bytes == pytest.approx(parameters * (2 + 4 + 2 + (4 + 8) / 2))


def test_every_chunk_gathers_and_reduces_what_it_holds():
    unit = module_unit("backbone", (2, 3), layers=(2, 2), dp=2, chunks=2)
    plan = Plan((CUT.units[0], unit, CUT.units[2]), 2, "interleaved")
    chunked, whole = (
        plan_costs(ResolvedPlan(plan, BATCH.graph, ALL), BATCH).stages,
        plan_costs(ResolvedPlan(ranked(), BATCH.graph, ALL), BATCH).stages["backbone", 0],
    )
    for kind in ("gather", "reduce"):
        seconds = [getattr(chunked["backbone", chunk], kind) for chunk in range(2)]
        assert min(seconds) > 0
        assert sum(seconds) == pytest.approx(getattr(whole, kind) + COSTS.cluster.intra_node.latency)


def ranked(dp: int = 2, cp: int = 1, tp: int = 1, ep: int = 1, recompute: str = "none") -> Plan:
    """A plan whose backbone has these ranks."""
    devices = tuple(range(2, 2 + dp * cp * tp))
    unit = module_unit("backbone", devices, layers=(4,), recompute=(recompute,), dp=dp, tp=tp, cp=cp, ep=ep)
    return Plan((CUT.units[0], unit, CUT.units[2]), 2)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_sequence_ranks_divide_activations_and_optimizer_state_and_do_the_same_work(recompute):
    one, four = (plan_costs(ResolvedPlan(ranked(2, cp, 1, 1, recompute), BATCH.graph, ALL), BATCH) for cp in (1, 4))
    a, b = one.stages["backbone", 0], four.stages["backbone", 0]
    np.testing.assert_allclose(b.saved_bytes, a.saved_bytes / 4)
    np.testing.assert_allclose(b.flops, a.flops)
    parameters = GRAPH.backbone.parameter_count
    static = plan_costs(ResolvedPlan(ranked(2, 4), BATCH.graph, ALL), BATCH).stages["backbone", 0].static_bytes
    assert static == pytest.approx(parameters * (2 + 4 + 2 + (4 + 8) / 8))
    assert b.update == pytest.approx(a.update / 4)
    # Of devices 2 to 9, six are on the first node and two, each with a network card, on the second.
    outer, inner, share = COSTS.cluster.inter_node, COSTS.cluster.intra_node, COSTS.efficiency.link
    between = outer.latency + 4 * parameters / 2 / 2 / (outer.bandwidth * share)
    inside = 5 * (inner.latency + 4 * parameters / 6 / (inner.bandwidth * share))
    assert b.reduce == pytest.approx(between + inside)


def test_hops_between_units_with_other_sequence_ranks_carry_the_larger_part():
    edge = (("vision", 0), ("backbone", 0))
    seconds = [plan_costs(ResolvedPlan(ranked(2, cp), BATCH.graph, ALL), BATCH).hops[edge] for cp in (1, 2)]
    np.testing.assert_allclose(seconds[0], seconds[1])  # the encoder's replicas have one device each
    encoder = module_unit("vision", (0, 1, 6, 7), layers=(3,), dp=2, cp=2)
    both = Plan((encoder, *ranked(2, 2).units[1:]), 2)
    halves = plan_costs(ResolvedPlan(both, BATCH.graph, ALL), BATCH).hops[edge]
    assert (halves < seconds[0]).all() and (halves > seconds[0] / 2).all()


def test_expert_ranks_divide_experts_and_only_the_others_reduce_them():
    graph = with_experts(GRAPH, 8)
    trains = trained_parts(graph, ("all",))
    stages = [
        plan_costs(ResolvedPlan(ranked(4, ep=ep), graph, trains), BatchCosts(graph, COSTS, _four(ROWS))).stages[
            "backbone", 0
        ]
        for ep in (1, 2, 4)
    ]
    experts = graph.backbone.layer.expert_parameters * graph.backbone.layer_count
    rest = graph.backbone.parameter_count - experts
    # Two ranks gather: what both have, and two pairs of each token. Four have a token sent to two of them at most.
    pipeline_replicas = {1: 0, 2: 2 * (1 + 2), 4: 4 * (1 + 2) + 2}
    tokens = ROWS["backbone"][:, 0].max() * 2 * graph.backbone.layer.output_elements.tokens
    for ep, stage in zip((1, 2, 4), stages, strict=True):
        state = rest * (8 + 12 / 4) + experts / ep * (8 + 12 / (4 / ep))
        assert stage.static_bytes == pytest.approx(state + pipeline_replicas[ep] * tokens)
    link = COSTS.cluster.intra_node
    bandwidth = link.bandwidth * COSTS.efficiency.link
    shared_reduction = 3 * (link.latency + 4 * rest / 4 / bandwidth)
    assert stages[2].reduce == pytest.approx(shared_reduction)
    assert stages[1].reduce == pytest.approx(shared_reduction + link.latency + 4 * experts / 2 / 2 / bandwidth)
    np.testing.assert_allclose(stages[1].flops, stages[0].flops)


@pytest.mark.parametrize(("ep", "cheaper"), [(2, "gather"), (4, "all_to_all")])
def test_a_plan_may_name_the_transfer_of_tokens_to_experts(ep, cheaper):
    graph = with_experts(GRAPH, 8)
    batch, trains = BatchCosts(graph, COSTS, _four(ROWS)), trained_parts(graph, ("all",))
    figures = {}
    for transfer in ("auto", "gather", "all_to_all"):
        plan = ranked(4, ep=ep)
        units = [unit.with_parallelism(expert_transfer=transfer) for unit in plan.units]
        stage = plan_costs(
            ResolvedPlan(dataclasses.replace(plan, units=tuple(units)), batch.graph, trains), batch
        ).stages["backbone", 0]
        figures[transfer] = (stage.static_bytes, stage.forward_communication.tolist())
    assert figures["auto"] == figures[cheaper] and figures["gather"] != figures["all_to_all"]


def test_replicas_that_exchange_tokens_wait_for_the_slowest():
    graph = with_experts(GRAPH, 8)
    trains = trained_parts(graph, ("all",))
    uneven = {**_four(ROWS), "backbone": np.array([[900.0 * n, (900.0 * n) ** 2, 1.0, 0.0] for n in range(1, 9)])}
    free, bound = (
        plan_costs(ResolvedPlan(ranked(4, ep=ep), graph, trains), BatchCosts(graph, COSTS, uneven)).stages[
            "backbone", 0
        ]
        for ep in (1, 2)
    )
    assert (np.diff(free.forward, axis=1) > 0).all()
    waited = bound.forward.reshape(2, 2, 2)
    assert (waited[..., 1] >= waited[..., 0]).all()  # the head waits for nobody
    assert (bound.forward_communication[:, ::2] > bound.forward_communication[:, 1::2]).all()


def _four(rows: dict) -> dict:
    """Twice the rows, for twice the replicas."""
    return {name: np.concatenate([loads, loads]) for name, loads in rows.items()}


FROZEN = {
    ("projectors",): {"vision_projector": ("wgrad",), "backbone": ("dgrad",), "vision": ()},
    ("projectors", "vision"): {"vision_projector": ("dgrad", "wgrad"), "backbone": ("dgrad",)},
    ("generator",): {"vision": (), "vision_projector": (), "backbone": (), "generator_projector": ()},
    ("backbone",): {"vision": (), "backbone": ("dgrad", "wgrad"), "generator": ("dgrad",)},
}


@pytest.mark.parametrize("trainable", FROZEN)
def test_frozen_layers_compute_only_the_gradients_that_others_need(trainable):
    turns = RequiredGradients(GRAPH, trained_parts(GRAPH, trainable))
    gradients = {}
    for module in GRAPH.modules:
        for layer, _, layer_gradients in turns.of_layers(module.name, 0, module.layer_count):
            gradients[layer.part] = layer_gradients  # the last layer of a part
    for part, expected in FROZEN[trainable].items():
        assert gradients[part] == expected, part


@pytest.mark.parametrize("recompute", RECOMPUTE_POLICIES)
def test_layers_without_gradients_have_no_backward_and_save_nothing(recompute):
    units = [dataclasses.replace(unit, recompute=(recompute,) * unit.stage_count) for unit in CUT.units]
    costs = plan_costs(
        ResolvedPlan(dataclasses.replace(CUT, units=tuple(units)), BATCH.graph, trained_parts(GRAPH, ("generator",))),
        BATCH,
    )
    for node in (("vision", 0), ("backbone", 0), ("backbone", 1)):
        stage = costs.stages[node]
        assert not stage.backward.any() and not stage.saved_bytes.any() and not stage.offloaded_bytes.any()
        assert stage.reduce == stage.update == 0
    assert costs.stages["generator", 0].backward.any() and not costs.gradient_hops


def test_hops_carry_the_input_of_the_next_stage():
    costs = plan_costs(ResolvedPlan(CUT, BATCH.graph, ALL), BATCH)
    link = COSTS.cluster.intra_node
    seconds = costs.hops[("vision", 0), ("backbone", 0)][0, 0]
    size = 2 * 128 * (64 + 128) / 4  # bfloat16, backbone width, merged patches of both rows
    assert seconds == pytest.approx(link.latency + size / (link.bandwidth * COSTS.efficiency.link))
    # A row without an image to draw sends nothing.
    conditions = costs.hops[("backbone", 1), ("generator", 0)]
    assert conditions.shape == (2, 1) and conditions.all()


def test_sequence_parallelism_divides_hops_and_saved_activations():
    unit = module_unit("backbone", (0, 1, 2, 3), layers=(2, 2), tp=2)
    others = [module_unit("vision", (4,), layers=(3,)), module_unit("generator", (5,))]
    whole, divided = (
        plan_costs(
            ResolvedPlan(Plan((others[0], unit.with_parallelism(collectives=how), others[1]), 2), BATCH.graph, ALL),
            BATCH,
        )
        for how in ("all_reduce", "sequence_parallel")
    )
    node, hop = ("backbone", 0), (("backbone", 0), ("backbone", 1))
    assert (divided.stages[node].saved_bytes < whole.stages[node].saved_bytes).all()
    assert (divided.stages[node].forward < whole.stages[node].forward).all()  # norms are divided
    assert (divided.hops[hop] < whole.hops[hop]).all()


def test_layers_without_sequence_parallelism_are_not_divided():
    unit = module_unit("vision", (0, 1), layers=(3,), tp=2)
    others = [module_unit("backbone", (2,), layers=(4,)), module_unit("generator", (3,))]
    whole, divided = (
        plan_costs(ResolvedPlan(Plan((unit.with_parallelism(collectives=how), *others), 2), BATCH.graph, ALL), BATCH)
        for how in ("all_reduce", "ring")
    )
    hop = (("vision", 0), ("backbone", 0))
    np.testing.assert_array_equal(divided.hops[hop], whole.hops[hop])
    load, two = np.array([100.0, 1e4, 1.0, 0.0]), LayerParallelism(2, collectives="ring")
    for layer, _ in GRAPH["vision"].all_layers:
        alone = saved_activation_bytes(layer, load, dataclasses.replace(two, collectives="all_reduce"), "none", COSTS)
        assert (saved_activation_bytes(layer, load, two, "none", COSTS) < alone) == layer.sequence_parallel, layer.name
    assert [layer.sequence_parallel for layer, _ in GRAPH["vision"].all_layers] == [False, True, True, False]


WIDTH, DEPTH, VOCABULARY, LENGTH = 64, 3, 128, 32


def costs_of_a_language_model(recompute: str) -> StepCosts:
    """Two rows of one segment each, on one device."""
    backbone = BackboneConfig(
        vocabulary=VOCABULARY, width=WIDTH, depth=DEPTH, heads=4, kv_heads=4, ffn=4 * WIDTH, gated=False
    )
    graph = module_graph(ModelConfig((), backbone, (), "bfloat16"))
    plan = Plan((module_unit("backbone", (0,), layers=(DEPTH,), recompute=(recompute,)),), 2)
    rows = {"backbone": np.tile([LENGTH, LENGTH**2, 1.0, 0.0], (2, 1))}
    return plan_costs(ResolvedPlan(plan, graph, trained_parts(graph, ("all",))), BatchCosts(graph, COSTS, rows))


def test_flops_with_whole_squares_are_those_of_megatron():
    """arXiv 2104.04473, section 5.1, without recomputation."""
    costs, tokens = costs_of_a_language_model("none"), 2 * LENGTH
    expected = 72 * tokens * DEPTH * WIDTH**2 * (1 + LENGTH / (6 * WIDTH) + VOCABULARY / (12 * DEPTH * WIDTH))
    assert costs.flops + costs.masked_flops == pytest.approx(expected)
    assert costs.masked_flops == 6 * tokens * LENGTH * DEPTH * WIDTH
    assert costs.recomputed == (2 * tokens * WIDTH * VOCABULARY, 0.0)  # the loss computes its logits again


def test_full_recomputation_computes_every_forward_again_and_selective_the_attention():
    costs, attention = costs_of_a_language_model("none"), 4 * 2 * LENGTH**2 * WIDTH
    logits = costs.recomputed.flops
    full, mixed = costs_of_a_language_model("full"), costs_of_a_language_model("1 none, 2 selective")
    assert full.recomputed == pytest.approx((costs.flops / 3, costs.masked_flops / 3))
    assert mixed.recomputed == (attention + logits, attention)
    assert full.flops == mixed.flops == costs.flops


def test_frozen_layers_without_gradients_recompute_nothing():
    units = (
        module_unit("vision", (0,), layers=(3,), recompute=("full",)),
        module_unit("backbone", (1,), layers=(4,), recompute=("full",)),
        module_unit("generator", (2,)),
    )
    recomputed = {
        parts: plan_costs(
            ResolvedPlan(Plan(units, 2), BATCH.graph, trained_parts(GRAPH, parts)), BATCH
        ).recomputed.flops
        for parts in (("all",), ("projectors", "backbone"), ("generator",))
    }
    forwards = {
        module: sum(
            count * layer.flops.evaluate(BATCH.rows[module].sum(axis=0)) for layer, count in GRAPH[module].all_layers
        )
        for module in ("vision", "backbone")
    }
    assert recomputed[("all",)] == pytest.approx(sum(forwards.values()))
    assert forwards["backbone"] <= recomputed[("projectors", "backbone")] < recomputed[("all",)]
    assert recomputed[("generator",)] == 0
