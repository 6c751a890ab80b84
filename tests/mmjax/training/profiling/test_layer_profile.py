"""Profiling: the executor's own stages taken apart into layers, and every op of a step timed once."""

import json

import jax
import numpy as np
import pytest

from data.data_config import DataConfig
from data.packing.pipeline import training_batches
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.profiling.layer_profile import profile_model, separate_layer_times
from mmjax.training.profiling.line_fits import fit_line
from mmjax.training.row_loads import batch_statistics, capacity_row_loads
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.profiled import LinearFit, Profile, ProfiledCostModel
from sharding.costs.stages.plan_costs import plan_costs
from sharding.plans.plan import single_device_plan
from sharding.plans.trained_parts import trained_parts
from sharding.specs.modules import module_graph
from tests.small_vqa import SmallVQA
from tests.tiny_model import tiny_model

DATA = DataConfig(rows=2, tokens=160, patches=32, images=3, samples=8)
MODEL = tiny_model(vocabulary=48)
GRAPH = module_graph(MODEL)
SETTINGS = EngineSettings(trainable=("backbone", "generator"))  # a frozen encoder has fewer programs to compile
TRAINS = trained_parts(GRAPH, SETTINGS.trainable)


@pytest.fixture(scope="module")
def batch():
    batches = training_batches(DATA, MODEL, SmallVQA("train"))
    try:
        return next(batches)
    finally:
        batches.close()


@pytest.fixture(scope="module")
def measured(batch):
    return profile_model(MODEL, batch.arrays, SETTINGS, [1], [1], "none", 1)


def test_a_profile_has_every_layer_and_stacks_take_time(measured):
    layers = {layer.layer: layer for layer in measured.layers}
    assert set(layers) == {f"{layer.part}/{layer.name}" for module in GRAPH.modules for layer, _ in module.all_layers}
    for name, size in (("vision/blocks", 32.0), ("backbone/blocks", 160.0), ("generator/unet", 3.0)):
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
    of = plan_costs(single_device_plan(GRAPH), BatchCosts(GRAPH, costs, rows), TRAINS)
    for (module, _), stage in of.stages.items():
        trains = module != "vision"
        assert stage.forward > 0 and stage.gather > 0
        assert (stage.backward > 0) == trains and (stage.update > 0) == trains
    assert json.loads(measured.to_json())["versions"]["jax"] == jax.__version__


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


def test_capacity_loads_follow_shapes_and_statistics_follow_samples(batch):
    capacity, filled = capacity_row_loads(batch.arrays, GRAPH), batch_statistics([batch], GRAPH)
    assert capacity["backbone"].tolist() == [[160.0, 160.0**2, 0.0, 0.0]] * 2
    for module, (real, _) in batch.counts.items():
        loads = filled.loads[module]
        assert loads[:, 2 if module == "generator" else 0].sum() == real
        assert (loads <= capacity[module])[:, :2].all()
    tokens, squares, samples, local_pairs = filled.loads["backbone"].T
    assert not local_pairs.any()  # no layer of this backbone attends locally
    assert (squares >= tokens**2 / np.maximum(samples, 1)).all() and (squares <= tokens**2).all()
