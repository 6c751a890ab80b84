"""Profiling: the executor's own stages taken apart into layers, and every op of a step timed once."""

import json

import jax
import numpy as np
import pytest

from data.data_config import DataConfig
from data.pipeline import training_batches
from mmjax.training.profiling import profile, taken_apart
from mmjax.training.profiling_lines import line
from mmjax.training.settings import Settings
from mmjax.training.workload import capacity_rows, statistics_of
from sharding.plan import one_device
from sharding.plan_costs import plan_costs
from sharding.profiled_costs import Line, Profile, ProfiledCosts
from sharding.specs import module_graph
from sharding.trainable import trained_parts
from tests.mmjax.training import runs
from tests.small_vqa import SmallVQA
from tests.tiny import tiny_model

DATA = DataConfig(rows=2, tokens=160, patches=32, images=3, samples=8)
MODEL = tiny_model(vocabulary=48)
GRAPH = module_graph(MODEL)
SETTINGS = Settings(trainable=("backbone", "generator"))  # a frozen encoder has fewer programs to compile
TRAINS = trained_parts(GRAPH, SETTINGS.trainable)


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly():
    with runs.compiled_quickly():
        yield


@pytest.fixture(scope="module")
def batch():
    batches = training_batches(DATA, MODEL, SmallVQA("train"))
    try:
        return next(batches)
    finally:
        batches.close()


@pytest.fixture(scope="module")
def measured(batch):
    return profile(MODEL, batch.arrays, SETTINGS, [1], [1], "none", 1)


def test_every_layer_is_there_and_the_stacks_take_time(measured):
    layers = {layer.layer: layer for layer in measured.layers}
    assert set(layers) == {f"{layer.part}/{layer.name}" for module in GRAPH.modules for layer, _ in module.whole}
    for name, size in (("vision/blocks", 32.0), ("backbone/blocks", 160.0), ("generator/unet", 3.0)):
        assert layers[name].sizes == (size,) and layers[name].forward.alone[0] > 0
        assert (layers[name].backward.alone[0] > 0) == (name != "vision/blocks")
    assert layers["vision/blocks"].turns == () and layers["backbone/blocks"].turns == ("data", "weights")
    assert measured.device_kind == jax.devices()[0].device_kind
    assert measured.layers[0].forward.crowding == (1.0,)  # a microbatch of one row has one instance
    assert measured.gather.at(1e4, 1) > 0 and measured.update.at(1e4, 1) > 0
    assert measured.hop.at(1e4, 2) > 0 and measured.norm.fixed + measured.norm.each > 0


def test_it_costs_a_plan_after_a_round_trip(measured, batch):
    costs = ProfiledCosts(Profile.from_json(measured.to_json()))
    rows = capacity_rows(batch.arrays, GRAPH)
    of = plan_costs(one_device(GRAPH), GRAPH, costs, rows, TRAINS)
    for (module, _), stage in of.stages.items():
        trains = module != "vision"
        assert stage.forward > 0 and stage.gather > 0
        assert (stage.backward > 0) == trains and (stage.update > 0) == trains
    assert json.loads(measured.to_json())["versions"]["jax"] == jax.__version__


def test_stages_are_taken_apart_exactly():
    before, alone, further, after = 5.0, 3.0, 4.0, 2.0
    stages = [before + alone, alone, alone + further, alone + after]
    assert taken_apart(stages) == ((before, before), (alone, further), (after, after))
    assert taken_apart([7.0]) == ((0.0, 0.0), (7.0, 7.0), (0.0, 0.0))


def test_lines_neither_fall_nor_start_below_zero():
    fitted = line([(count, size, 1.0 + 3.0 * count + 2e-6 * size) for count in (1, 2, 4) for size in (1e6, 3e6)])
    assert (fitted.fixed, fitted.each, fitted.rate) == pytest.approx((1.0, 3.0, 2e-6))
    falling = line([(1, 1.0, 3.0), (1, 2.0, 1.0)])
    assert (falling.fixed, falling.each, falling.rate) == pytest.approx((2.0, 0.0, 0.0))
    assert line([]) == Line(0.0, 0.0, 0.0) and line([(1, 1.0, 0.0), (1, 2.0, 4.0)]).fixed == 0.0


def test_capacity_is_the_shapes_and_statistics_are_what_fills_them(batch):
    capacity, filled = capacity_rows(batch.arrays, GRAPH), statistics_of([batch], GRAPH)
    assert capacity["backbone"].tolist() == [[160.0, 160.0**2, 0.0]] * 2
    for module, (real, _) in batch.counts.items():
        loads = filled.loads[module]
        assert loads[:, 2 if module == "generator" else 0].sum() == real
        assert (loads <= capacity[module])[:, :2].all()
    tokens, squares, samples = filled.loads["backbone"].T
    assert (squares >= tokens**2 / np.maximum(samples, 1)).all() and (squares <= tokens**2).all()
