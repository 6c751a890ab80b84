"""Profiling: the executor's own stages taken apart into layers, and every op of a step timed once."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from configs.common.errors import UserError
from data.data_config import DataConfig
from data.packing.pipeline import training_batches
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.profiling.divisions import divide_modules
from mmjax.training.profiling.layer_profile import profile_model, separate_layer_times
from mmjax.training.profiling.line_fits import fit_line
from mmjax.training.row_loads import capacity_row_loads
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.profiled import LinearFit, Profile, ProfiledCostModel, ProfileError, TimedRanks
from sharding.costs.stages.plan_costs import plan_costs
from sharding.plans.plan import single_device_plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.modules import module_graph
from tests.filled_row_loads import filled_row_loads
from tests.small_vqa import SmallVQA
from tests.tiny_model import TRANSFORMER_GENERATOR, tiny_model

pytestmark = pytest.mark.layouts

DATA = DataConfig(rows=2, tokens=160, patches=32, images=3, samples=8)
MODEL = dataclasses.replace(tiny_model(vocabulary=48), generators=(TRANSFORMER_GENERATOR,))
GRAPH = module_graph(MODEL)
SETTINGS = EngineSettings(trainable=("backbone", "generator"))  # a frozen encoder has fewer programs to compile
TRAINS = trained_parts(GRAPH, SETTINGS.trainable)
RING, HEADS = TimedRanks(cp=2), TimedRanks(cp=2, context_transfer="all_to_all")


@pytest.fixture(scope="module")
def batch():
    batches = training_batches(DATA, MODEL, SmallVQA("train"))
    try:
        return next(batches)
    finally:
        batches.close()


@pytest.fixture(scope="module")
def measured(batch):
    return profile_model(MODEL, batch.arrays, SETTINGS, [TimedRanks(), RING, HEADS], [1], "none", 1)


def test_a_profile_has_every_layer_and_stacks_take_time(measured):
    layers = {layer.layer: layer for layer in measured.layers if layer.cp == 1}
    assert set(layers) == {f"{layer.part}/{layer.name}" for module in GRAPH.modules for layer, _ in module.all_layers}
    for name, size in (("vision/blocks", 32.0), ("backbone/blocks", 160.0), ("generator/plain", 3.0)):
        assert layers[name].sizes == (size,) and layers[name].forward.single_layer[0] > 0
        assert (layers[name].backward.single_layer[0] > 0) == (name != "vision/blocks")
    assert layers["vision/blocks"].gradients == () and layers["backbone/blocks"].gradients == ("dgrad", "wgrad")
    assert measured.device_kind == jax.devices()[0].device_kind
    assert measured.layers[0].forward.contention == (1.0,)  # a microbatch of one row has one instance
    assert measured.gather.seconds(1e4, 1) > 0 and measured.update.seconds(1e4, 1) > 0
    assert measured.hop.seconds(1e4, 2) > 0 and measured.norm.fixed + measured.norm.per_participant > 0


def test_it_costs_a_plan_after_a_round_trip(measured, batch):
    costs = ProfiledCostModel(Profile.from_json(measured.to_json()))
    rows = capacity_row_loads(batch.arrays, GRAPH)
    step_costs = plan_costs(ResolvedPlan(single_device_plan(GRAPH), GRAPH, TRAINS), BatchCosts(GRAPH, costs, rows))
    for (module, _), stage in step_costs.stages.items():
        trains = module != "vision"
        assert stage.forward > 0 and stage.gather > 0
        assert (stage.backward > 0) == trains and (stage.update > 0) == trains
    assert json.loads(measured.to_json())["versions"]["jax"] == jax.__version__


@pytest.mark.parametrize("ranks", [RING, HEADS], ids=lambda ranks: ranks.context_transfer)
def test_context_parallel_ranks_are_timed_where_they_divide_a_module_and_cost_a_plan(measured, batch, ranks):
    divided = {layer.layer: layer for layer in measured.layers if layer.ranks == ranks}
    assert {name.partition("/")[0] for name in divided} == {"vision", "vision_projector", "backbone"}
    blocks = divided["backbone/blocks"]
    assert blocks.sizes == (160.0,)  # of a whole row, half of which each rank has
    assert blocks.forward.single_layer[0] > 0 and blocks.backward.single_layer[0] > 0

    costs = BatchCosts(GRAPH, ProfiledCostModel(measured), capacity_row_loads(batch.arrays, GRAPH))
    step_costs = plan_costs(ResolvedPlan(_on_context_ranks(ranks), costs.graph, TRAINS), costs)
    backbone = [layer.forward for name, layer in divided.items() if name.startswith("backbone/")]
    row = sum(forward.single_layer[0] for forward in backbone) + 2 * blocks.forward.additional_layer[0]
    assert float(step_costs.stages["backbone", 0].forward.sum()) == pytest.approx(2 * row)


def test_a_plan_on_context_parallel_ranks_that_were_not_timed_is_refused(measured, batch):
    costs = BatchCosts(GRAPH, ProfiledCostModel(measured), capacity_row_loads(batch.arrays, GRAPH))
    with pytest.raises(ProfileError, match=r"vision.* at tp 1, cp 4 \(ring\); .* --cp=4 --context_transfer=ring"):
        plan_costs(ResolvedPlan(_on_context_ranks(TimedRanks(cp=4)), costs.graph, TRAINS), costs)


def _on_context_ranks(ranks):
    plan, devices = single_device_plan(GRAPH), tuple(range(ranks.cp))
    units = [
        dataclasses.replace(
            unit,
            devices=devices,
            parallelism=dataclasses.replace(unit.parallelism, cp=ranks.cp, context_transfer=ranks.context_transfer),
        )
        for unit in plan.units[:2]
    ]
    return dataclasses.replace(plan, units=(*units, plan.units[2]))


def test_modules_are_divided_as_far_as_they_can_be_and_equal_divisions_run_once():
    positions = {"vision": 32, "backbone": 160}
    one, two, heads = TimedRanks(), TimedRanks(2), TimedRanks(1, 2, "all_to_all")
    more_than_heads = TimedRanks(2, 2, "all_to_all")  # 4 ranks, and 2 key-value heads
    divisions = divide_modules(GRAPH, [more_than_heads, heads, two, one], positions)
    assert [division["backbone"] for division in divisions] == [one, heads, two]
    assert [division["generator"].cp for division in divisions] == [1, 1, 1]
    ring = TimedRanks(cp=5)
    assert divide_modules(GRAPH, [ring], positions) == [{"vision": one, "backbone": ring, "generator": one}]
    with pytest.raises(UserError, match=r"no module can be timed at cp 3 \(ring\): .* 32 of vision, 160 of backbone"):
        divide_modules(GRAPH, [one, TimedRanks(cp=3)], positions)


def test_layer_times_are_separated_exactly():
    before, alone, further, after = 5.0, 3.0, 4.0, 2.0
    stages = [before + alone, alone, alone + further, alone + after]
    assert separate_layer_times(stages) == ((before, before), (alone, further), (after, after))
    assert separate_layer_times([7.0]) == ((0.0, 0.0), (7.0, 7.0), (0.0, 0.0))


def test_fits_have_no_negative_coefficient():
    fitted = fit_line([(count, size, 1.0 + 3.0 * count + 2e-6 * size) for count in (1, 2, 4) for size in (1e6, 3e6)])
    assert (fitted.fixed, fitted.per_participant, fitted.rate) == pytest.approx((1.0, 3.0, 2e-6))
    falling = fit_line([(1, 1.0, 3.0), (1, 2.0, 1.0)])
    assert (falling.fixed, falling.per_participant, falling.rate) == pytest.approx((2.0, 0.0, 0.0))
    assert fit_line([]) == LinearFit(0.0, 0.0, 0.0) and fit_line([(1, 1.0, 0.0), (1, 2.0, 4.0)]).fixed == 0.0


def test_capacity_loads_follow_shapes_and_filled_loads_follow_samples(batch):
    capacity, filled = capacity_row_loads(batch.arrays, GRAPH), filled_row_loads(batch.arrays, GRAPH)
    assert capacity["backbone"].tolist() == [[160.0, 160.0**2, 0.0, 0.0]] * 2
    for module, (real, _) in batch.real_and_capacity.items():
        loads = filled[module]
        assert loads[:, 2 if module == "generator" else 0].sum() == real
        assert (loads <= capacity[module])[:, :2].all()
    tokens, squares, samples, local_pairs = filled["backbone"].T
    assert not local_pairs.any()  # no layer of this backbone attends locally
    assert (squares >= tokens**2 / np.maximum(samples, 1)).all() and (squares <= tokens**2).all()
