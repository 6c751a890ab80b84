"""What plans were made for: it reads back, what it leaves out stays out, and other steps are told apart from it."""

import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.architectures import BackboneConfig, ModelConfig
from configs.cost_effects import EFFECT_NAMES
from mmjax import cli
from mmjax.training.config import TrainConfig, find_plan_file
from sharding.plans.plan import Plan, single_device_plan
from sharding.plans.plan_error import PlanError
from sharding.plans.plan_purpose import (
    MeanLoad,
    ModuleSize,
    NamedConfiguration,
    PlanPurpose,
    differences,
    mean_loads,
    module_sizes,
)
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.plans.text.bounds import MAX_DEVICES, MAX_ROWS
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics

UNIT = UnitPlan("all", ("vision",), (0,))
NAMES = st.text(max_size=8).filter(str.isprintable)
NUMBERS = st.integers(1, 10**12)
LOADS = st.floats(0, 1e15)


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


def tuples(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(strategy, max_size=3).map(tuple)


PURPOSES = st.fixed_dictionaries(
    {
        "configuration": st.fixed_dictionaries(
            {
                "gin_file": tuples(NAMES),
                "gin": tuples(NAMES),
                "data": NAMES,
                "trainable": tuples(NAMES),
                "profile": NAMES,
            }
        ),
        "model": tuples(st.fixed_dictionaries({"module": NAMES, "layers": NUMBERS, "parameters": NUMBERS})),
        "mean_row": tuples(
            st.fixed_dictionaries({"module": NAMES, "tokens": LOADS, "squared_lengths": LOADS, "items": LOADS})
        ),
        "rows": maybe(st.integers(1, MAX_ROWS)),
        "cluster": NAMES,
        "devices": maybe(st.integers(1, MAX_DEVICES)),
        "hops": st.sampled_from([None, "asynchronous", "rendezvous"]),
        "without": tuples(st.sampled_from(EFFECT_NAMES)),
    }
)
"""Fields of purposes: the type checks of tests draw random numbers, which strategies must not."""


def purpose_of(fields: dict) -> PlanPurpose:
    return PlanPurpose(
        **fields
        | {
            "configuration": NamedConfiguration(**fields["configuration"]),
            "model": tuple(ModuleSize(**size) for size in fields["model"]),
            "mean_row": tuple(MeanLoad(**load) for load in fields["mean_row"]),
        }
    )


@given(maybe(PURPOSES))
def test_any_purpose_reads_back_with_its_plan(fields):
    plan = Plan((UNIT,), made_for=fields and purpose_of(fields))
    assert Plan.from_json(plan.to_json()) == plan
    assert ("made_for" in json.loads(plan.to_json())) == (fields is not None)


@given(PURPOSES)
def test_a_step_does_not_differ_from_itself_nor_from_one_that_says_nothing(fields):
    made_for = purpose_of(fields)
    assert differences(made_for, made_for) == differences(made_for, PlanPurpose()) == []
    assert differences(PlanPurpose(), made_for) == []


def test_what_is_left_out_is_not_written():
    text = Plan((UNIT,), made_for=PlanPurpose(rows=8)).to_json()
    assert json.loads(text)["made_for"] == {"rows": 8}
    assert "made_for" not in Plan((UNIT,)).to_json()


PURPOSE = PlanPurpose(
    configuration=NamedConfiguration(gin_file=("a.gin",), data="laion_like", trainable=("all",)),
    model=(ModuleSize(module="vision", layers=2, parameters=1000),),
    mean_row=(MeanLoad(module="vision", tokens=7000.0, squared_lengths=4.9e7, items=7.0),),
    rows=1920,
    cluster="a800",
    devices=1296,
)


def with_names(**names: object) -> NamedConfiguration:
    return dataclasses.replace(PURPOSE.configuration, **names)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"rows": 960}, ["rows 1,920 (here 960)"]),
        ({"cluster": "h100"}, ["cluster a800 (here h100)"]),
        ({"devices": 64}, []),
        ({"devices": 8}, ["hops rendezvous (here asynchronous)"]),
        ({"devices": 8, "hops": "rendezvous"}, []),
        ({"hops": "asynchronous"}, ["hops rendezvous (here asynchronous)"]),
        ({"without": ("jitter", "contention")}, ["effects left out none (here jitter, contention)"]),
        ({"configuration": with_names(gin_file=("b.gin",), gin=("X = 1",), profile="p.json")}, []),
        (
            {"configuration": with_names(trainable=("backbone", "projectors"))},
            ["trainable parts all (here backbone, projectors)"],
        ),
        (
            {"model": (ModuleSize(module="vision", layers=3, parameters=1500),)},
            ["layers of vision 2 (here 3)", "parameters of vision 1,000 (here 1,500)"],
        ),
        ({"mean_row": (MeanLoad(module="vision", tokens=7200.0, squared_lengths=4.7e7, items=7.1),)}, []),
        (
            {"mean_row": (MeanLoad(module="vision", tokens=3500.0, squared_lengths=4.9e7, items=7.0),)},
            ["tokens of vision in the mean row 7,000 (here 3,500)"],
        ),
        (
            {"configuration": with_names(data="internvl_like"), "mean_row": (MeanLoad(module="vision", tokens=1.0),)},
            ["data laion_like (here internvl_like)"],
        ),
    ],
)
def test_differences_name_both_values(changed, expected):
    assert differences(PURPOSE, dataclasses.replace(PURPOSE, **changed)) == expected


def test_sizes_and_loads_are_those_of_the_model_and_its_rows():
    graph = module_graph(ModelConfig())
    assert [size.module for size in module_sizes(graph)] == ["vision", "backbone", "generator"]
    assert module_sizes(graph)[1].parameters == graph["backbone"].parameter_count
    loads = RowLoadStatistics({"vision": np.array([[10.0, 100.0, 1.0, 0.0], [20.0, 400.0, 2.0, 0.0]])})
    assert mean_loads(loads) == (MeanLoad(module="vision", tokens=15.0, squared_lengths=250.0, items=1.5),)


def test_a_plan_of_another_model_is_refused_with_the_numbers_of_both():
    graph = module_graph(ModelConfig())
    plan = dataclasses.replace(single_device_plan(graph), made_for=PlanPurpose(model=module_sizes(graph)))
    resolve_plan(plan, graph, 1)
    deeper = module_graph(ModelConfig(backbone=BackboneConfig(depth=7)))
    with pytest.raises(PlanError, match=r"add up to 4.* was made for another model: layers of backbone 4 \(here 7\)"):
        resolve_plan(plan, deeper, 1)


@pytest.mark.parametrize(
    ("made_for", "message"),
    [
        ({"rows": 0}, "the plan's made_for: rows is 0; it must be from 1 to 4194304"),
        ({"devices": -1}, "the plan's made_for: devices is -1; it must be from 1 to 1048576"),
        ({"rows": 10**15}, "the plan's made_for: rows is 1000000000000000; it must be from 1 to 4194304"),
        ({"cluster": "a\n800"}, r"the plan's made_for: cluster has 'a\n800'; use printable characters"),
        ({"configuration": {"gin": ["\x1b[31m"]}}, r"the plan's made_for: gin has '\x1b[31m'; use printable"),
        ({"mean_row": [{"module": "\r"}]}, r"the plan's made_for: module has '\r'; use printable characters"),
        ({"hops": "both"}, "the plan's made_for: hops is 'both'; it must be one of asynchronous, rendezvous"),
        ({"without": ["noise"]}, "the plan's made_for: without is ['noise']; it must be a list of throttling, interf"),
        ({"rows": None}, "the plan's made_for: rows is None; it must be a whole number"),
        ({"row": 1}, "the plan's made_for has the unknown key 'row'; known are configuration, model,"),
        ({"configuration": {"gin_files": []}}, "made_for.configuration has the unknown key 'gin_files'"),
        ({"model": [{"module": "vision"}]}, "made_for.model[0] lacks the key 'layers'; add it"),
        (
            {"mean_row": [{"module": "vision", "tokens": "7"}]},
            "mean_row[0]: tokens is '7'; it must be a number",
        ),
        (None, "the plan's made_for must be a JSON object, not None"),
        ("a800", "the plan's made_for must be a JSON object, not 'a800'"),
    ],
)
def test_a_bad_purpose_is_refused_by_name(made_for, message):
    units = [{"name": "all", "modules": ["vision"], "devices": "0"}]
    with pytest.raises(PlanError, match=re.escape(message)):
        Plan.from_json(json.dumps({"made_for": made_for, "units": units}))


@pytest.mark.parametrize("name", ["quickstart.gin", "spoken_vqa.gin"])
def test_the_shipped_plans_say_what_they_are_for(name):
    cli.parse_gin((name,))
    config = cli.configured(TrainConfig)
    made_for = Plan.load(find_plan_file(config.plan)).made_for
    assert made_for is not None
    assert made_for.model == module_sizes(module_graph(config.model)) and made_for.rows == config.data.rows
    names = NamedConfiguration(gin_file=(name,), data=config.dataset.__name__, trainable=config.trainable)
    assert made_for.configuration == names
