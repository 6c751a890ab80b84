"""Which units cannot be one program: the message names the unit, what is at fault, and both numbers."""

import dataclasses

import pytest

from configs.architectures import BackboneConfig, ExpertsConfig, ModelConfig, UNetConfig, VisionConfig
from configs.modules.projectors import MLPProjectorConfig
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan, resolve_plan
from sharding.plans.resolved.stage_axes import stage_axes
from sharding.schedules.named.build import build_evaluation_schedule, build_schedule, training_op_graph
from sharding.schedules.one_f_one_b import one_f_one_b
from sharding.schedules.ops import PipelineOp, ScheduleError
from sharding.specs.modules import module_graph
from tests.unit_plans import changed_unit, module_unit

VISION = VisionConfig(width=8, depth=2, heads=2, ffn=12, patch=2, merge=2, projector=MLPProjectorConfig())
BACKBONE = BackboneConfig(vocabulary=24, width=16, depth=4, heads=4, kv_heads=2, ffn=24)
MODEL = ModelConfig((VISION,), BACKBONE, ())
WITH_GENERATOR = dataclasses.replace(MODEL, generators=(UNetConfig(image_size=4),))
ENCODER = module_unit("vision", (0, 1), layers=(1, 1), name="eyes")
MIND = module_unit(
    "backbone", (2, 3, 4, 5), layers=(2, 2), name="mind", recompute=("full",) * 2, executor="compiled", tp=2
)


def check(mind=MIND, model=MODEL, others=(ENCODER,), schedule="1f1b"):
    resolve_plan(Plan((*others, mind), 2, schedule), module_graph(model), 8, 8)


def change(**fields):
    return changed_unit(MIND, **fields)


def with_backbone(**fields):
    check(model=dataclasses.replace(MODEL, backbone=dataclasses.replace(BACKBONE, **fields)))


def in_one_unit():
    unit = change(modules=("vision", "backbone"), layers=(3, 3))
    check(unit, others=())


@pytest.mark.parametrize(
    ("run", "words"),
    [
        pytest.param(lambda: check(change(layers=(1, 3))), ["mind", "[1, 3]", "2 stages"], id="unlike stages"),
        pytest.param(lambda: check(change(recompute=("full", "none"))), ["full, none", "one policy"], id="policies"),
        pytest.param(lambda: check(change(recompute=("offload",) * 2)), ["offload"], id="offload"),
        pytest.param(
            lambda: check(change(devices=tuple(range(8)), pipeline_replicas=2), others=(ENCODER,)),
            ["pipeline_replicas 2"],
            id="pipeline replicas",
        ),
        pytest.param(lambda: check(change(extra_microbatches=1)), ["extra_microbatches 1"], id="in flight"),
        pytest.param(in_one_unit, ["vision, backbone"], id="two modules"),
        pytest.param(lambda: check(schedule="colocated"), ["colocated"], id="bundles"),
        pytest.param(lambda: check(schedule="zb-h1"), ["zb-h1", 'use the schedule "1f1b"'], id="wgrads apart"),
        pytest.param(
            lambda: check(change(chunks=2, layers=(1,) * 4, recompute=("full",) * 4), schedule="zb-h1"),
            ['use the schedule "interleaved"'],
            id="wgrads apart, chunks",
        ),
        pytest.param(
            lambda: with_backbone(experts=ExpertsConfig(count=2, dense_layers=1)), ["unlike"], id="dense first layers"
        ),
    ],
)
def test_a_unit_that_cannot_be_one_program_is_refused(run, words):
    with pytest.raises(PlanError) as error:
        run()
    for word in words:
        assert word in str(error.value)


def test_only_executors_that_there_are():
    text = Plan((ENCODER, MIND), 2).to_json().replace("compiled", "fused")
    with pytest.raises(PlanError, match="executor.*fused.*dispatched.*compiled"):
        Plan.from_json(text)


def test_it_is_one_stage_on_all_its_devices_and_a_file_says_so():
    plan = Plan.from_json(Plan((ENCODER, MIND), 2).to_json())
    graph = ResolvedPlan(plan, module_graph(MODEL)).stages
    assert graph.stages == (("eyes", 0), ("eyes", 1), ("mind", 0))
    assert graph.compiled == {("mind", 0)} and graph.devices["mind", 0] == {2, 3, 4, 5}
    assert dict(stage_axes(plan.units[1]).sizes) == {"stage": 2, "data": 1, "fsdp": 1, "expert": 1, "tensor": 2}
    assert plan.units[1].program_recompute(0) == ("full",) * 4
    assert plan.table()[1]["executor"] == "compiled"


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "gpipe"])
def test_its_backwards_and_those_before_wait_for_all_forwards(schedule):
    plan = Plan((ENCODER, MIND), 3, schedule)
    ops = build_schedule(ResolvedPlan(plan, module_graph(MODEL)), frozenset({("eyes", 0), ("mind", 0)})).ops
    passes = [op for op in ops if op.kind in ("forward", "backward")]
    kinds = [op.kind for op in passes if op.unit == "mind"]
    assert kinds == ["forward"] * 3 + ["backward"] * 3
    last_forward = max(number for number, op in enumerate(passes) if op.unit == "mind" and op.kind == "forward")
    assert all((number > last_forward) == (op.kind == "backward") for number, op in enumerate(passes))
    evaluation = build_evaluation_schedule(ResolvedPlan(plan, module_graph(MODEL)))
    assert sum(op.unit == "mind" and op.kind == "forward" for op in evaluation.ops) == 3


@pytest.mark.parametrize("pipeline_replicas", [1, 2])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "gpipe"])
def test_a_generator_comes_between_all_its_forwards_and_all_its_backwards(schedule, pipeline_replicas):
    """What it sends follows its last forward, and its last backward, of the microbatches in order."""
    painter = module_unit(
        "generator", range(6, 6 + pipeline_replicas), name="painter", pipeline_replicas=pipeline_replicas
    )
    plan, graph = Plan((ENCODER, MIND, painter), 5, schedule), module_graph(WITH_GENERATOR)
    resolve_plan(plan, graph, 8, 10)
    trained = frozenset({("eyes", 0), ("eyes", 1), ("mind", 0), ("painter", 0)})
    ops = [
        op for op in build_schedule(ResolvedPlan(plan, graph), trained).ops if op.kind != "wgrad" and op.microbatch >= 0
    ]
    numbers = {
        kind: [(at, op.microbatch) for at, op in enumerate(ops) if op.unit == "mind" and op.kind == kind]
        for kind in ("forward", "hop", "backward", "gradient_hop")
    }
    in_order = [at for positions in numbers.values() for at, _ in positions]
    assert in_order == sorted(in_order)
    assert all([number for _, number in positions] == list(range(5)) for positions in numbers.values())
    (first_hop, _), *_, (last_backward, _) = numbers["hop"] + numbers["backward"]
    assert all(first_hop < at < last_backward for at, op in enumerate(ops) if op.unit == "painter")
    assert all(
        at < first_hop if op.kind in ("forward", "hop") else last_backward < at
        for at, op in enumerate(ops)
        if op.unit == "eyes"
    )
    evaluation = [op for op in build_evaluation_schedule(ResolvedPlan(plan, graph)).ops if op.microbatch >= 0]
    assert sum(op.unit == "painter" and op.kind == "forward" for op in evaluation) == 5


def test_limits_that_do_not_let_its_program_begin_are_an_error():
    graph = module_graph(WITH_GENERATOR)
    op_graph = training_op_graph(
        ResolvedPlan(Plan((ENCODER, MIND, module_unit("generator", (6,), name="painter")), 3), graph), frozenset()
    )
    with pytest.raises(ScheduleError, match="cannot start, and nothing runs: its stage may hold 1 microbatch; allow"):
        one_f_one_b(op_graph, dict.fromkeys(op_graph.stage_graph.stages_of, 1))


def test_its_hops_need_all_microbatches():
    graph = module_graph(WITH_GENERATOR)
    plan = Plan((ENCODER, MIND, module_unit("generator", (6,), name="painter")), 3)
    needs = training_op_graph(ResolvedPlan(plan, graph), frozenset({("eyes", 0), ("mind", 0)})).dependencies
    for kind, sent, target in (("forward", "hop", ("painter", 0)), ("backward", "gradient_hop", ("eyes", 1))):
        ops = {PipelineOp(kind, "mind", 0, number) for number in range(3)}
        assert all(set(needs[PipelineOp(sent, "mind", 0, number, *target)]) == ops for number in range(3))
