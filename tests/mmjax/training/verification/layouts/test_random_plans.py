"""Random plans: each can run, all kinds of division occur, and the executor agrees with one device on them."""

import dataclasses
import itertools
from typing import get_args

import pytest

from configs.architectures import BackboneConfig, ExpertsConfig, ModelConfig
from data.packing.phases.phase_rows import RowValues
from mmjax.training.verification.comparison import verify_layouts
from mmjax.training.verification.layouts.divided_plans import GlobalRows
from mmjax.training.verification.layouts.layout_kinds import NamedLayout
from mmjax.training.verification.layouts.random_plans import COLLECTIVES, random_plans
from sharding.expert_transfer import ExpertTransferChoice
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.schedules.named.registry import BUILT_IN_SCHEDULES
from sharding.specs.layers.layer import RECOMPUTE_POLICIES
from sharding.specs.modules import module_graph
from tests.tiny_model import tiny_model
from tests.verified_run import DATA, MODEL, SETTINGS

DEEP = tiny_model(depth=4)
ROWS = GlobalRows(
    12,
    {"vision": RowValues("patches", 32, 4), "generator": RowValues("images", 4, 1)},
    {"vision": 32, "backbone": 48},
)
EXPERTS = tiny_model(depth=4, experts=ExpertsConfig(count=4, top_k=2, ffn=8))


@pytest.mark.parametrize("rows", [1, 6, 7, 12])
@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("model", [DEEP, EXPERTS, ModelConfig(encoders=(), backbone=BackboneConfig(), generators=())])
def test_every_plan_can_run(model, devices, rows):
    graph = module_graph(model)
    plans = random_plans(graph, GlobalRows(rows), devices, seed=3, count=20)
    assert len(plans) == 20
    for plan in plans.values():
        resolve_plan(plan, graph, devices, rows)


def test_all_kinds_of_division_occur_and_combine():
    plans = list(random_plans(module_graph(EXPERTS), ROWS, devices=8, seed=5, count=300).values())
    units = list(itertools.chain.from_iterable(plan.units for plan in plans))
    assert {plan.microbatches for plan in plans} == {1, 2, 3, 4}
    assert {plan.schedule for plan in plans} == set(BUILT_IN_SCHEDULES)
    assert {unit.parallelism.dp for unit in units} >= {1, 2, 3, 4} and {unit.parallelism.tp for unit in units} == {
        1,
        2,
    }  # of 2 key-value heads
    assert {unit.pp for unit in units} == {1, 2, 3, 4} and {unit.parallelism.chunks for unit in units} == {1, 2}
    assert {unit.parallelism.ep for unit in units} >= {1, 2, 4}
    assert {unit.parallelism.expert_transfer for unit in units if unit.parallelism.ep > 1} == set(
        get_args(ExpertTransferChoice)
    )
    stages = [(unit, stage) for unit in units for stage in range(unit.stage_count)]
    policies = [unit.layer_recompute(stage) for unit, stage in stages]
    assert set(itertools.chain.from_iterable(policies)) == set(RECOMPUTE_POLICIES)
    assert max(len(set(of_stage)) for of_stage in policies) == 2
    assert {unit.parallelism.collectives for unit in units} == set(COLLECTIVES)
    assert {unit.modules for unit in units} == {
        *(("vision",), ("backbone",), ("generator",), ("vision", "backbone"), ("backbone", "generator")),
        ("vision", "backbone", "generator"),
    }
    assert {unit.schedule_hints.extra_microbatches for unit in units} == {0, 1, 2, 3}
    assert {unit.modules for unit in units if unit.phase_rows} == {("vision",), ("generator",)}
    assert any(unit.phase_rows and 12 % unit.parallelism.dp for unit in units)
    assert {len(unit.capacities) for unit in units if unit.phase_rows} == {0, 2, 3, 4}
    timed = {plan.schedule for plan in plans if any(unit.schedule_hints.forward_seconds for unit in plan.units)}
    assert timed == {"interleaved", "colocated"}
    dispatched = [plan for plan in plans if not any(unit.is_compiled for unit in plan.units)]
    assert all(
        bool(unit.schedule_hints.forward_seconds) == (plan.schedule in timed)
        for plan in dispatched
        for unit in plan.units
    )
    assert {unit.parallelism.pipeline_replicas for unit in units} == {1, 2, 3} and any(
        unit.schedule_hints.replica_of_microbatch for unit in units
    )
    assert any(unit.parallelism.pipeline_replicas > 1 and unit.phase_rows for unit in units)
    waiting = [plan for plan in plans if any(unit.schedule_hints.forward_communication for unit in plan.units)]
    assert {plan.schedule for plan in waiting} == {"colocated"}
    assert {unit.parallelism.cp for unit in units} == {1, 2, 4} and any(
        unit.parallelism.cp > 1 and unit.phase_rows for unit in units
    )
    assert {unit.parallelism.context_transfer for unit in units if unit.parallelism.cp > 1} == {"ring", "all_to_all"}
    assert any(sorted(unit.devices) != list(unit.devices) for unit in units)
    shared = [plan.shares_devices for plan in plans]
    assert any(shared) and not all(shared)
    assert any(unit.parallelism.dp > 1 and unit.parallelism.tp > 1 and unit.pp > 1 for unit in units)
    unlike = [unit for unit in units if unit.parallelism.module_tp]
    assert {unit.parallelism.module_tp for unit in unlike} >= {(1, 2), (2, 1), (1, 2, 1), (2, 1, 2)}
    assert any(unit.pp > 1 for unit in unlike) and any(unit.parallelism.ep > 1 for unit in unlike)


@pytest.mark.parametrize(
    "model",
    [pytest.param(DEEP, id="a generator"), pytest.param(dataclasses.replace(DEEP, generators=()), id="no generator")],
)
def test_the_backbone_is_one_program_in_some(model):
    plans = random_plans(module_graph(model), ROWS, devices=8, seed=5, count=600 if model.generators else 200)
    compiled = {name: plan for name, plan in plans.items() if plan.unit_of("backbone").is_compiled}
    assert 20 < len(compiled) < 100 and all("executor compiled" in name for name in compiled)
    units = [plan.unit_of("backbone") for plan in compiled.values()]
    assert {unit.pp for unit in units} == {1, 2, 4} and {unit.parallelism.chunks for unit in units} == {1, 2}
    assert {unit.parallelism.cp for unit in units} == {1, 2, 4} and {unit.parallelism.tp for unit in units} == {1, 2}
    assert {unit.layers for unit in units} == {(4,), (2, 2), (1, 1, 1, 1)}
    assert {unit.recompute[0] for unit in units} == {"none", "selective", "full"}
    assert {plan.schedule for plan in compiled.values()} == {"1f1b", "interleaved", "gpipe"}
    assert max(unit.parallelism.fsdp for unit in units) > 1


def test_the_name_of_a_plan_has_every_key_that_is_not_a_default():
    named = random_plans(module_graph(EXPERTS), ROWS, devices=8, seed=5, count=50)
    for name, plan in named.items():
        _, *of_units = name.split(" | ")
        for of_unit, unit in zip(of_units, plan.units, strict=True):
            keys = {of_key.split()[0] for of_key in of_unit.split(": ")[1].split("; ")}
            changed = {
                field.name
                for record in (unit, unit.parallelism, unit.schedule_hints)
                for field in dataclasses.fields(record)
                if getattr(record, field.name) != field.default
            }
            assert keys == changed - {"name", "modules", "parallelism", "schedule_hints"}


def test_plans_depend_on_seed_and_number_alone():
    graph = module_graph(DEEP)
    few, many = random_plans(graph, ROWS, 8, seed=1, count=2), random_plans(graph, ROWS, 8, seed=1, count=9)
    assert list(many.items())[:2] == list(few.items())
    assert list(random_plans(graph, ROWS, 8, seed=2, count=2).values()) != list(few.values())


@pytest.mark.layouts
def test_the_executor_agrees_with_one_device_on_random_plans(reference):
    plans = random_plans(module_graph(MODEL), GlobalRows.from_data(MODEL, DATA), 8, SETTINGS.seed, 2)
    layouts = [NamedLayout(name, plan) for name, plan in plans.items()]
    reports = list(verify_layouts(MODEL, layouts, reference))
    assert [report.layout for report in reports] == list(plans)
    for report in reports:
        assert report.ok, report
        gradients = [module.gradient for name, module in report.modules.items() if name in ("vision", "backbone")]
        assert all(gradient and gradient.error > 0 for gradient in gradients)
