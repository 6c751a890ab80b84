"""Plans: their JSON, which layers lie where, and every refusal with its reason."""

import dataclasses
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import ModelConfig
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan, as_plan, single_device_plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.plans.unit_checks import check_unit
from sharding.plans.unit_layers import stage_layers
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import Kernel, PerLoad
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph, module_graph
from tests.sharding.layers import bare_layer
from tests.unit_plans import changed_unit, flat_unit

GRAPH = module_graph(ModelConfig())
VISION = UnitPlan("eyes", ("vision",), (0, 1), layers=(2,), parallelism=Parallelism(dp=2))
BACKBONE = UnitPlan(
    "mind", ("backbone",), (2, 3, 4, 5), layers=(1, 3), recompute=("none", "full"), parallelism=Parallelism(tp=2)
)
GENERATOR = UnitPlan("hand", ("generator",), (6,))
PLAN = Plan((VISION, BACKBONE, GENERATOR), microbatches=4)


def changed(unit: int, **fields: object) -> Plan:
    units = list(PLAN.units)
    units[unit] = changed_unit(units[unit], **fields)
    return dataclasses.replace(PLAN, units=tuple(units))


def refused(message: str):
    return pytest.raises(PlanError, match=re.escape(message))


def test_a_valid_plan_passes_and_counts_its_devices():
    resolve_plan(PLAN, GRAPH, 8, 16)
    assert PLAN.device_count == 7
    assert PLAN.unit_of("backbone") is BACKBONE
    assert BACKBONE.stage_devices(0) == range(2, 4) and BACKBONE.stage_devices(1) == range(4, 6)


def test_chunks_lie_on_the_devices_of_their_stage():
    unit = UnitPlan(
        "mind",
        ("backbone",),
        (4, 5, 6, 7),
        layers=(1,) * 4,
        recompute=("none",) * 4,
        parallelism=Parallelism(tp=2, chunks=2),
    )
    assert (unit.pp, unit.stage_count) == (2, 4)
    assert [unit.stage_devices(stage) for stage in range(4)] == [range(4, 6), range(6, 8)] * 2
    plan = Plan((VISION, unit, GENERATOR), schedule="interleaved")
    resolve_plan(plan, GRAPH, 8, 2)
    assert [row["chunks"] for row in plan.table()] == ["1", "2", "1"] and "chunks" not in PLAN.table()[0]
    assert Plan.from_json(plan.to_json()) == plan


def experts_and_sequence() -> ModuleGraph:
    passed = Kernel("attention", "attention", ring_elements=PerLoad(8), head_width=8)
    long = bare_layer("blocks", "mind", passed, expert_parameters=24)
    return ModuleGraph((ModuleSpec("eyes", 1), ModuleSpec("mind", 2, ("eyes",), layer=long, expert_count=6)))


RANKED = UnitPlan(
    "mind",
    ("mind",),
    tuple(range(16)),
    layers=(1, 1),
    recompute=("none",) * 2,
    parallelism=Parallelism(dp=2, tp=2, cp=2, ep=2),
)


def test_sequence_ranks_take_devices_and_expert_ranks_do_not():
    assert RANKED.stage_devices(1) == range(8, 16) and RANKED.parallelism.replica_size == 4
    plan = Plan((UnitPlan("eyes", ("eyes",), (16,)), RANKED))
    resolve_plan(plan, experts_and_sequence(), devices=17)
    assert [(row["cp"], row["ep"]) for row in plan.table()] == [("1", "1"), ("2", "2")]
    assert not {"cp", "ep"} & set(PLAN.table()[0])
    assert Plan.from_json(plan.to_json()) == plan
    resolve_plan(plan, experts_and_sequence(), 17, 2)


def one_stage(*modules: str, **fields: int) -> UnitPlan:
    """A unit of one stage of the model with experts."""
    layers = sum(experts_and_sequence()[name].layer_count for name in modules)
    devices = tuple(range(fields.get("dp", 1) * fields.get("cp", 1)))
    return flat_unit("mind", modules, devices, layers=(layers,), **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cp": 0}, "cp is 0"),
        ({"ep": -1}, "ep is -1"),
        ({"ep": 3}, "ep 3 does not divide dp 2"),
        ({"cp": 3}, "dp 2 x cp 3 x tp 2 x pp 2 (stages in layers) needs 24 devices, but it lists 16"),
    ],
)
def test_invalid_rank_counts_are_refused(fields, message):
    with refused(message):
        changed_unit(RANKED, **fields)


@pytest.mark.parametrize(
    ("modules", "fields", "message"),
    [
        (["mind"], {"dp": 4, "ep": 4}, "unit mind: ep 4 does not divide the 6 experts of mind"),
        (["eyes"], {"cp": 2}, "unit mind: cp 2, but eyes has no sequence to divide"),
        (["eyes", "mind"], {"cp": 2}, "unit mind: cp 2, but eyes has no sequence to divide"),
        (["eyes"], {"dp": 2, "ep": 2}, "unit mind: ep 2, but no layer of eyes has experts"),
    ],
)
def test_ranks_with_nothing_to_divide_are_refused(modules, fields, message):
    with refused(message):
        check_unit(one_stage(*modules, **fields), experts_and_sequence(), 16)


def test_expert_ranks_of_a_chain_divide_the_experts_of_modules_that_have_some():
    check_unit(one_stage("eyes", "mind", dp=6, ep=3), experts_and_sequence(), 6)


def test_one_entry_of_recompute_is_for_all_stages(tmp_path):
    unit = UnitPlan("eyes", ("vision",), (0, 1), layers=(1, 1), recompute=("full",))
    assert unit.recompute == ("full", "full")
    assert dataclasses.replace(unit, recompute=("none",)) == UnitPlan("eyes", ("vision",), (0, 1), layers=(1, 1))
    Plan((unit,)).save(tmp_path / "plan.json")
    assert as_plan(tmp_path / "plan.json") == as_plan(Plan((unit,))) == Plan((unit,))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"devices": (0, 1, 2)}, "dp 2 x tp 1 x pp 1 (stages in layers) needs 2 devices, but it lists 3"),
        ({"devices": (1, 1)}, "unit eyes: devices must differ, but 1 is listed more than once"),
        ({"devices": (-1, 1)}, "unit eyes: there is no device -1; they are 0 to 1048575"),
        ({"dp": 0}, "dp is 0"),
        ({"layers": (2, 0)}, "unit eyes: layers [2, 0]; every stage must own at least one"),
        ({"chunks": 0}, "chunks is 0; it must be at least 1"),
        ({"chunks": 2}, "unit eyes: 2 chunks a pipeline rank need a multiple of 2 entries in layers, not 1"),
        (
            {"recompute": ("none", "none")},
            "unit eyes: recompute has 2 entries for 1 stages; give one for all, or one for each",
        ),
        (
            {"recompute": ("3 full, 5 none",)},
            "unit eyes: recompute of stage 0: '3 full, 5 none' is for 8 layers, but the stage owns 2",
        ),
        ({"modules": ()}, "needs a name, at least one module"),
        ({"extra_microbatches": -1}, "extra_microbatches is -1; it must be at least 0, because with fewer"),
        (
            {"forward_seconds": (1.0, 2.0), "backward_seconds": (1.0, 2.0)},
            "unit eyes: forward_seconds has 2 entries for 1 stages; give one for each",
        ),
        ({"forward_seconds": (float("nan"),)}, r"forward_seconds [nan] must be finite and not negative"),
        ({"backward_seconds": (-1.0,)}, r"backward_seconds [-1.0] must be finite and not negative"),
        (
            {"forward_seconds": (1.0,)},
            "forward_seconds has 1 entries, but backward_seconds 0; give both for every stage, or neither",
        ),
    ],
)
def test_an_invalid_unit_is_refused(fields, message):
    with refused(message):
        changed_unit(VISION, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"microbatches": 0}, "microbatches is 0"),
        ({"units": (VISION, VISION)}, "unit names must differ, but eyes"),
        (
            {"units": (VISION.with_hints(extra_microbatches=4), BACKBONE)},
            "unit eyes: extra_microbatches is 4, but a step has only 4 (microbatches x chunks); use at most one less",
        ),
        (
            {"units": (VISION.with_hints(forward_seconds=(1.0,), backward_seconds=(2.0,)), BACKBONE)},
            "give forward_seconds for all units or for none; mind has none",
        ),
    ],
)
def test_an_invalid_plan_is_refused(fields, message):
    with refused(message):
        dataclasses.replace(PLAN, **fields)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (
            "UnitPlan('a', ('x',), (0,), recompute=('some',))",
            "unit a: recompute of stage 0: 'some'; choose from none, selective, offload, full",
        ),
        ("Parallelism(collectives='rings')", "collectives 'rings'; choose from all_reduce, sequence_parallel, ring"),
        ("Parallelism(expert_transfer='post')", "'post'; choose from auto, gather, all_to_all"),
        ("UnitPlan('a', ('x',), (0,), executor='all')", "unit a: executor 'all'; choose from dispatched, compiled"),
    ],
)
def test_a_plan_built_in_python_refuses_unknown_kinds(expression, message):
    """In a process of its own, because the tests check types at run time and would raise first."""
    imports = "from sharding.plans.parallelism import Parallelism\nfrom sharding.plans.unit_plan import UnitPlan"
    program = f"{imports}\n{expression}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    last_line = ended.stderr.splitlines()[-1]
    assert last_line.startswith("sharding.plans.plan_error.") and message in last_line


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (changed(2, devices=(8,)), "unit hand needs device 8, but there are 8 devices"),
        (changed(1, layers=(1, 2)), "layers [1, 2] add up to 3, but its modules have 4 (backbone 4)"),
        (changed(0, devices=(0, 1, 7), dp=3), "16 rows of the global batch are not divisible by 4 microbatches x dp 3"),
        (changed(1, tp=4, layers=(4,), recompute=("none",)), "tp 4 does not divide kv_heads = 2 of backbone"),
        (changed(0, modules=("sound",)), "unit eyes holds sound, which the model lacks"),
        (Plan((VISION, BACKBONE)), "module generator is in no unit"),
        (changed(2, modules=("generator", "vision")), "module vision is in eyes and hand"),
        (
            changed(2, devices=(6, 7), layers=(1, 1), recompute=("none",) * 2),
            "generator is one stage, because the skips",
        ),
        (
            Plan((BACKBONE, UnitPlan("rest", ("vision", "generator"), (0,), layers=(3,)))),
            "vision does not feed generator, so they are no chain",
        ),
    ],
)
def test_a_plan_that_does_not_fit_the_model_is_refused(plan, message):
    with refused(message):
        resolve_plan(plan, GRAPH, 8, 16)


def test_an_edge_past_a_module_of_the_same_unit_is_refused():
    graph = ModuleGraph((ModuleSpec("a", 1), ModuleSpec("b", 1, ("a",)), ModuleSpec("c", 1, ("a", "b"))))
    with refused("unit all: a feeds c past b"):
        resolve_plan(Plan((UnitPlan("all", ("a", "b", "c"), (0,), layers=(3,)),)), graph, 1, 1)


def test_a_boundary_through_an_indivisible_module_is_refused():
    graph = ModuleGraph((ModuleSpec("a", 3), ModuleSpec("net", 3, ("a",), divisible=False)))
    with refused("layers [4, 2] put net on stages [0, 1]"):
        stage_layers(UnitPlan("u", ("a", "net"), (0, 1), layers=(4, 2), recompute=("none",) * 2), graph)


def test_stages_own_contiguous_runs_over_several_modules():
    unit = UnitPlan("u", ("vision", "backbone", "generator"), (0, 1, 2), layers=(1, 3, 3), recompute=("none",) * 3)
    assert stage_layers(unit, GRAPH) == (
        (("vision", 0, 1),),
        (("vision", 1, 2), ("backbone", 0, 2)),
        (("backbone", 2, 4), ("generator", 0, 1)),
    )


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
@settings(max_examples=50, deadline=None)
def test_every_layer_lies_on_exactly_one_stage_in_order(sizes, data):
    modules = [ModuleSpec(f"m{i}", size, (f"m{i - 1}",) if i else ()) for i, size in enumerate(sizes)]
    total = sum(sizes)
    cuts = sorted(data.draw(st.sets(st.integers(1, total), max_size=5)) | {0, total})
    layers = tuple(stop - start for start, stop in zip(cuts, cuts[1:], strict=False))
    unit = UnitPlan("u", tuple(m.name for m in modules), tuple(range(len(layers))), layers=layers,
                    recompute=("none",) * len(layers))  # fmt: skip
    stages = stage_layers(unit, ModuleGraph(tuple(modules)))
    owned = [(name, layer) for runs in stages for name, first, last in runs for layer in range(first, last)]
    assert owned == [(module.name, layer) for module in modules for layer in range(module.layer_count)]
    assert tuple(sum(last - first for _, first, last in runs) for runs in stages) == layers


def test_one_device_holds_everything_and_the_table_says_so():
    plan = single_device_plan(GRAPH, microbatches=2)
    resolve_plan(plan, GRAPH, 1, 2)
    assert plan.device_count == 1
    assert [row["devices"] for row in plan.table()] == ["0", "0", "0"]
    assert PLAN.table()[1] == {
        "unit": "mind", "modules": "backbone", "devices": "2-5", "dp": "1", "tp": "2", "pp": "2",
        "layers": "1 3", "recompute": "none; full",
    }  # fmt: skip


def test_the_table_shows_groups_that_divide_weights():
    whole, divided = (UnitPlan("a", ("vision",), (0, 1), parallelism=Parallelism(dp=2, fsdp=fsdp)) for fsdp in (1, 2))
    assert "fsdp" not in Plan((whole,)).table()[0]
    assert Plan((divided,)).table()[0]["fsdp"] == "2"


def test_the_table_shows_collectives_if_a_unit_sets_them():
    eyes, mind, *others = PLAN.units
    plan = dataclasses.replace(PLAN, units=(eyes, mind.with_parallelism(collectives="ring"), *others))
    assert [row["collectives"] for row in plan.table()[:2]] == ["all_reduce", "ring"]
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"phase_rows": -1}, "unit vision: phase_rows is -1; it must not be negative"),
        ({"capacities": (8,)}, r"unit vision: capacities \[8\] belong to rows of its own; set phase_rows too"),
        ({"phase_rows": 2, "capacities": (0, 8)}, r"unit vision: capacities \[0, 8\] must be positive and ascend"),
        ({"phase_rows": 2, "capacities": (8, 4)}, r"unit vision: capacities \[8, 4\] must be positive and ascend"),
        ({"phase_rows": 2, "capacities": (4, 4)}, r"unit vision: capacities \[4, 4\] must be positive and ascend"),
        ({"phase_rows": 2, "capacities": (1, 2, 3, 4, 5)}, "unit vision: 5 capacities; give at most 4, because"),
        (
            {"phase_rows": 3, "dp": 2, "devices": (0, 1)},
            "unit vision: dp 2 does not divide its 3 phase_rows of a microbatch",
        ),
    ],
)
def test_rows_of_its_own_are_a_multiple_of_the_replicas(fields, words):
    with pytest.raises(PlanError, match=words):
        flat_unit(**{"name": "vision", "modules": ("vision",), "devices": (0,)} | fields)


def test_only_a_unit_of_one_encoder_or_generator_has_rows_of_its_own():
    for modules in (("backbone",), ("vision", "backbone")):
        layers = sum(GRAPH[name].layer_count for name in modules)
        with pytest.raises(PlanError, match="has rows of its own; only a unit of one encoder or one generator can"):
            check_unit(UnitPlan("trunk", modules, (0,), layers=(layers,), phase_rows=2), GRAPH, 8)
