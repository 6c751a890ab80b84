"""Steps with split backwards (ZB-H1) against plain differentiation of the whole model on one device."""

import dataclasses
import gc

import jax
import numpy as np
import pytest

from configs.architectures import BackboneConfig, ExpertsConfig, ModelConfig
from configs.modules.lora import LoraConfig
from mmjax.planning.cluster_files import read_cluster
from mmjax.training.engine.compilation import compile_step
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.step_recorder import StepRecorder
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.stages.plan_costs import plan_costs
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime.stages.compilation import stage_calls
from sharding.runtime.stages.split_backward import MicrobatchArrays
from sharding.specs.layers.layer import make_loads
from sharding.specs.modules import module_graph
from tests.mmjax.training.engine.test_compilation import compilations
from tests.mmjax.training.engine.test_compiled_pipeline import DEEP, TEXT, TIED, VISION_UNIT, WITH_VISION, backbone
from tests.mmjax.training.engines import SETTINGS, STEP, assert_step_of_one_device, noisy_state, shared_engine
from tests.sharding.runtime.split_programs.test_program import dot_count
from tests.tiny_model import tiny_batch

dispatched = {"executor": "dispatched"}


@pytest.mark.layouts
@pytest.mark.parametrize(
    ("unit", "microbatches"),
    [
        pytest.param(backbone(4, **dispatched, dp=2, recompute="selective"), 4, id="four ranks, two replicas"),
        pytest.param(backbone(2, **dispatched, chunks=2, tp=2, collectives="ring"), 4, id="two chunks, tensor ranks"),
        pytest.param(backbone(2, **dispatched, dp=2, fsdp=2, recompute="full"), 2, id="fully sharded"),
        pytest.param(backbone(2, **dispatched, cp=2, recompute="offload"), 2, id="a ring, offloaded"),
    ],
)
def test_a_backbone_alone(unit, microbatches):
    assert_step_of_one_device(shared_engine(Plan((unit,), microbatches, "zb-h1"), TEXT))


def test_an_encoder_before_it_and_tied_embeddings():
    engine = shared_engine(Plan((VISION_UNIT, backbone(2, first=2, tp=2, **dispatched)), 4, "zb-h1"), TIED)
    assert_step_of_one_device(engine)
    assert engine.executor.training_schedule.op_graph.split_stages == {("backbone", 0), ("backbone", 1)}


@pytest.mark.layouts
def test_adapters_and_experts():
    experts = ExpertsConfig(count=4, top_k=2, ffn=12)
    config = ModelConfig(
        (), dataclasses.replace(DEEP, experts=experts), (), lora=(LoraConfig(part="backbone", rank=2),)
    )
    unit = backbone(2, dp=2, ep=2, **dispatched)
    assert_step_of_one_device(shared_engine(Plan((unit,), 2, "zb-h1"), config))


@pytest.mark.layouts
def test_a_frozen_encoder_and_a_backbone_whose_first_stage_sends_nothing_back():
    plan = Plan((VISION_UNIT, backbone(2, first=2, **dispatched)), 2, "zb-h1")
    engine = shared_engine(plan, WITH_VISION, dataclasses.replace(SETTINGS, trainable=("backbone",)))
    assert_step_of_one_device(engine)
    assert engine.executor.training_schedule.op_graph.split_stages == {("backbone", 1)}


def test_a_frozen_pipeline_is_refused_with_both_numbers():
    plan = Plan((VISION_UNIT, backbone(2, first=2, **dispatched)), 2, "zb-h1")
    with pytest.raises(PlanError, match=r"2 of the 2 stages of unit backbone \(0, 1\) train nothing"):
        shared_engine(plan, WITH_VISION, dataclasses.replace(SETTINGS, trainable=("vision",)))


@pytest.mark.layouts
def test_a_step_leaves_nothing_behind_and_a_wgrad_keeps_only_what_it_reads():
    engine = shared_engine(Plan((backbone(2, **dispatched),), 4, "zb-h1"), TEXT)
    state, placed = noisy_state(engine), engine.place_batch(tiny_batch(TEXT), STEP)
    state, decision = engine.executor.step(state, placed)
    live = []
    for _ in range(2):
        state, decision = engine.executor.step(state, placed)
        jax.block_until_ready((state.master_weights, state.optimizer_state, decision))
        gc.collect()
        live.append(sum(array.nbytes for array in jax.live_arrays() if array.ndim))  # the log of ops keeps scalars
    assert live[0] == live[1]
    programs = engine.executor.stages["backbone", 1].programs
    inputs, residuals = (dict.fromkeys(programs.definition.input_channels), programs.residual_shardings)
    arrays = MicrobatchArrays(inputs, residuals, {})
    read = programs.split_backward.kept_arrays(jax.tree.map(lambda _: 0, arrays, is_leaf=lambda leaf: leaf is None))
    assert 0 < len(read) < len(inputs) + len(residuals)


@pytest.mark.layouts
def test_units_of_one_stage_may_split_their_backwards_too():
    """The gradient goes back to the encoder before the backbone's wgrad."""
    units = (VISION_UNIT, UnitPlan("backbone", ("backbone",), (2,), layers=(4,)))
    engine = shared_engine(Plan(units, 2, "zb-h1"), WITH_VISION)
    assert_step_of_one_device(engine)
    order = [str(op) for op in engine.executor.training_schedule.ops]
    sent, later = (
        order.index(f"{kind} of microbatch 0") for kind in ("gradient_hop backbone 0 -> vision 0", "wgrad backbone 0")
    )
    assert sent < later


WIDE = ModelConfig((), BackboneConfig(vocabulary=64, width=64, depth=4, heads=4, kv_heads=2, ffn=128), ())


@pytest.mark.layouts
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_costs_count_what_waits_for_a_wgrad_and_no_half_more(recompute, tp):
    length, rows = 64, 2
    tokens = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    arrays = dict.fromkeys(("tokens", "targets", "segments", "branches", "positions"), tokens)
    plan = Plan((backbone(2, **dispatched, tp=tp, recompute=recompute),), rows, "zb-h1")
    batch = {"backbone": {**arrays, "weights": np.ones((rows, length), np.float32)}}
    engine = Engine(WIDE, plan, batch, SETTINGS)
    *_, wgrad = stage_calls([engine.executor.stages["backbone", 1].programs]).calls
    _, _, _, kept, saved, _ = wgrad.arguments
    on_device = sum(
        np.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves((kept, saved))
    )
    loads = {"backbone": make_loads(np.full(rows, float(length)), float(length) ** 2, 1.0)}
    costs = AnalyticCostModel(read_cluster("h100"), element_bytes=4, collectives="all_reduce")
    batch_costs = BatchCosts(module_graph(WIDE), costs, loads)
    stage = plan_costs(ResolvedPlan(plan, batch_costs.graph, frozenset(["backbone"])), batch_costs).stages[
        "backbone", 1
    ]
    counted = float(stage.saved_bytes.max() + stage.wgrad.saved_bytes.max())
    assert on_device < counted < 1.5 * on_device
    assert 0 < stage.wgrad.seconds.min() <= stage.wgrad.seconds.max() < stage.backward.min() / 2


@pytest.mark.layouts
def test_a_step_after_compile_step_compiles_no_stage_and_a_recording_has_every_op():
    plan = Plan((VISION_UNIT, backbone(2, first=2, **dispatched)), 2, "zb-h1")
    batch = tiny_batch(WITH_VISION)
    engine = Engine(WITH_VISION, plan, batch, SETTINGS)
    compile_step(engine, lambda done, total: None)
    placed, state = engine.place_batch(batch, STEP), noisy_state(engine)
    with compilations() as compiled:
        state, _ = engine.executor.step(state, placed)
    assert not [name for name in compiled if "stage" in name]
    recorder = StepRecorder(engine)
    with recorder.record(vars(state), placed) as callback:
        engine.executor.step(state, placed, callback)
    spans = recorder.timeline().spans
    assert {span.op.kind for span in spans if span.op.unit == "backbone"} >= {"forward", "backward", "wgrad"}
    assert all(span.end.min() > 0 for span in spans if span.op.kind == "wgrad")


@pytest.mark.layouts
@pytest.mark.parametrize(
    "unit",
    [
        pytest.param({"tp": 2}, id="reduce"),
        pytest.param({"tp": 2, "collectives": "sequence_parallel"}, id="sequence_parallel"),
        pytest.param({"tp": 2, "collectives": "ring"}, id="ring"),
        pytest.param({"cp": 2}, id="context parallel"),
        pytest.param({"dp": 2, "fsdp": 2, "recompute": "full"}, id="fully sharded"),
    ],
)
def test_the_products_of_wgrads_are_left_for_later_and_none_is_computed_twice(unit):
    products = {}
    for schedule in ("zb-h1", "1f1b"):
        engine = shared_engine(Plan((backbone(2, **dispatched, **unit),), 2, schedule), TEXT)
        calls = stage_calls([engine.executor.stages["backbone", 1].programs]).calls
        products[schedule] = [dot_count(call.program, *call.arguments) for call in calls]
    (*_, dgrad, wgrad), (*_, backward) = products["zb-h1"], products["1f1b"]
    assert dgrad + wgrad == backward
    of_layers, of_head = 2 * 7, 1  # a ring multiplies twice in a layer; the head gathers its input
    assert wgrad == of_layers * (2 if unit.get("collectives") == "ring" else 1) + of_head
