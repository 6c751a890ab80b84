"""The layouts that verify tries by itself: for any model they can run, and say what is left out."""

import dataclasses

import pytest

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from data.packing.phases.phase_rows import RowValues
from mmjax.training.verification.configured_run import layouts_to_verify
from mmjax.training.verification.layouts.default_layouts import default_layouts, kinds_for
from mmjax.training.verification.layouts.divided_plans import GlobalRows, module_roles
from mmjax.training.verification.layouts.layout_table import LAYOUT_KINDS
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan, resolve_plan
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime.bundled_ops import find_bundles
from sharding.schedules.named.build import build_schedule
from sharding.specs.modules import module_graph
from tests.tiny_model import GENERATOR, tiny_model

DEEP = tiny_model(depth=4)
ROWS = GlobalRows(
    12,
    {"vision": RowValues("patches", 32, 4), "generator": RowValues("images", 4, 1)},
    {"vision": 32, "backbone": 48},
)


def units(layouts, name):
    return [layout.plan.unit_of(name) for layout in layouts if len(layout.plan.unit_of(name).modules) == 1]


def replicated(plan):
    return any(unit.parallelism.pipeline_replicas > 1 for unit in plan.units)


def bundle_kinds(plan, graph):
    """The kinds of the two ops of every bundle of a plan whose stages all train."""
    stages = frozenset((unit.name, stage) for unit in plan.units for stage in range(unit.stage_count))
    return {
        (first.kind, second.kind) for first, second in find_bundles(build_schedule(ResolvedPlan(plan, graph), stages))
    }


def test_eight_devices_allow_a_layout_of_every_kind():
    layouts, refused = default_layouts(module_graph(DEEP), ROWS, devices=8)
    assert (len(layouts), refused) == (len(LAYOUT_KINDS), {}) and len(layouts) >= 12
    assert len({layout.name for layout in layouts}) == len(layouts)
    pairs = {
        (layout.plan.unit_of("vision").parallelism.dp, layout.plan.unit_of("backbone").parallelism.dp)
        for layout in layouts
    }
    assert {(3, 2), (2, 3), (2, 1)} <= pairs
    ranks = {
        (layout.plan.unit_of("vision").parallelism.tp, layout.plan.unit_of("backbone").parallelism.tp)
        for layout in layouts
    }
    assert {(2, 1), (1, 2), (2, 2)} <= ranks
    assert {layout.plan.microbatches for layout in layouts} == {2, 3, 4, 6, 12}
    assert {layout.plan.schedule for layout in layouts} == {"1f1b", "interleaved", "gpipe", "zb-h1", "colocated"}
    assert max(unit.parallelism.chunks for unit in units(layouts, "backbone")) == 2
    assert {layout.transport for layout in layouts} == {"", "device_put", "ppermute"}
    recompute = {kind for unit in units(layouts, "backbone") for kind in unit.recompute}
    assert {"none", "selective", "full"} <= recompute and any("offload, " in kind for kind in recompute)
    assert {unit.schedule_hints.extra_microbatches for unit in units(layouts, "backbone")} == {0, 1}
    several = {
        (unit.name, unit.pp, unit.capacities) for layout in layouts for unit in layout.plan.units if unit.capacities
    }
    assert several == {("vision", 2, (16, 32)), ("vision", 1, (16, 32)), ("generator", 1, (2, 4))}
    assert any(len(set(unit.layers)) > 1 for unit in units(layouts, "backbone"))
    unlike = [
        (unit.modules, unit.parallelism.module_tp, unit.layers[0]) for layout in layouts for unit in layout.plan.units
    ]
    assert [each for each in unlike if each[1]] == [
        (("vision", "backbone"), (1, 2), 3),
        (("vision", "backbone", "generator"), (1, 2, 1), 1),
    ]
    chains = {unit.modules for layout in layouts for unit in layout.plan.units if len(unit.modules) > 1}
    assert chains == {("vision", "backbone"), ("vision", "backbone", "generator")}


def test_colocated_layouts_have_copies_slices_and_bundles_of_every_kind():
    graph = module_graph(DEEP)
    layouts, _ = default_layouts(graph, ROWS, devices=8)
    assert {unit.parallelism.pipeline_replicas for unit in units(layouts, "vision")} == {1, 2, 4}
    assert {unit.parallelism.pipeline_replicas for unit in units(layouts, "backbone")} == {1}
    colocated = [layout for layout in layouts if layout.plan.schedule == "colocated"]
    assert [layout.plan.unit_of("vision").parallelism.pipeline_replicas for layout in colocated] == [1, 4, 2]
    assert [set(layout.plan.unit_of("vision").devices) for layout in colocated] == [set(range(n)) for n in (4, 4, 4)]
    assert [
        (layout.plan.unit_of("vision").parallelism.chunks, layout.plan.unit_of("backbone").parallelism.chunks)
        for layout in colocated
    ] == [
        (1, 1),
        (1, 1),
        (2, 2),
    ]
    assert [bundle_kinds(layout.plan, graph) for layout in colocated] == [
        set(),
        set(),
        {("forward", "forward"), ("backward", "backward"), ("reduce", "backward")},
    ]
    assert [layout.name.endswith(", in bundles") for layout in colocated] == [False, False, True]
    (own,) = (plan for plan in (layout.plan for layout in layouts) if plan.schedule == "1f1b" and replicated(plan))
    assert [(unit.parallelism.pipeline_replicas, unit.pp, unit.phase_rows) for unit in own.units] == [
        (2, 2, 2),
        (1, 1, 0),
        (2, 1, 1),
    ]


def test_a_plan_that_cannot_run_is_named_before_anything_is_computed():
    config = dataclasses.replace(DEEP, generators=())
    vision = UnitPlan("vision", ("vision",), (0,), layers=(module_graph(config)["vision"].layer_count,))
    backbone = UnitPlan("backbone", ("backbone",), (1,), layers=(4,))
    refused = {
        "the plan's schedule is 'zb-h2'": Plan((vision, backbone), schedule="zb-h2"),
        "cp 5 takes two chunks": Plan(
            (
                vision,
                dataclasses.replace(
                    backbone, devices=(1, 2, 3, 4, 5), parallelism=dataclasses.replace(backbone.parallelism, cp=5)
                ),
            )
        ),
    }
    for reason, plan in refused.items():
        with pytest.raises(PlanError, match=f"mine.json: .*{reason}"):
            layouts_to_verify({"mine.json": plan}, config, ROWS, with_defaults=False)
        layouts, reasons = layouts_to_verify({"mine.json": plan}, config, ROWS, with_defaults=True)
        assert reason in reasons["mine.json"] and layouts


@pytest.mark.parametrize("rows", [1, 6, 8, 12])
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "model",
    [
        DEEP,
        tiny_model(depth=1),
        tiny_model(heads=1, kv_heads=1),
        dataclasses.replace(DEEP, encoders=()),
        dataclasses.replace(DEEP, generators=()),
        dataclasses.replace(
            DEEP,
            encoders=(VisionConfig(name="left"), VisionConfig(name="right")),
            generators=(GENERATOR, dataclasses.replace(GENERATOR, name="other")),
        ),
        ModelConfig(encoders=(), backbone=BackboneConfig(), generators=()),
    ],
)
def test_layouts_of_any_model_can_run_and_impossible_ones_have_a_reason(model, rows, devices):
    graph = module_graph(model)
    layouts, refused = default_layouts(graph, GlobalRows(rows), devices)
    for layout in layouts:
        resolve_plan(layout.plan, graph, devices, rows)
    assert len(layouts) + len(refused) == len(kinds_for(graph))
    assert layouts[0].name.startswith("one device") and all(refused.values())
    if rows in (8, 12):  # six rows for three and for two replicas allow one microbatch only
        assert all(layout.plan.microbatches > 1 for layout in layouts)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(DEEP, id="a generator"),
        pytest.param(dataclasses.replace(DEEP, generators=()), id="no generator"),
    ],
)
def test_a_backbone_is_tried_as_one_program(model):
    layouts, _ = default_layouts(module_graph(model), ROWS, devices=8)
    compiled = [layout.plan for layout in layouts if layout.plan.unit_of("backbone").is_compiled]
    units = [plan.unit_of("backbone") for plan in compiled]
    assert [(unit.pp, unit.parallelism.chunks, unit.parallelism.tp, unit.parallelism.dp) for unit in units] == [
        (2, 1, 2, 2),
        (2, 2, 1, 1),
        (4, 1, 2, 1),
    ]
    assert [plan.unit_of("vision").phase_rows for plan in compiled] == [0, 1, 0]


def test_a_backbone_of_few_layers_interleaves_together_with_its_encoder():
    layouts, _ = default_layouts(module_graph(tiny_model()), GlobalRows(12), devices=8)
    (plan,) = (layout.plan for layout in layouts if layout.plan.schedule == "interleaved")
    chain = plan.unit_of("backbone")
    assert (chain.modules, chain.layers, chain.parallelism.chunks) == (("vision", "backbone"), (1, 1, 1, 2), 2)


def test_roles_follow_the_edges():
    assert module_roles(module_graph(DEEP)) == {"vision": 0, "backbone": 1, "generator": 2}
    assert module_roles(module_graph(dataclasses.replace(DEEP, generators=()))) == {"vision": 0, "backbone": 1}
