"""Schedules run every op once, in a valid order, within in-flight limits, and with the textbook's bubbles."""

import collections
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import ModelConfig, VisionConfig
from sharding.plans.plan import Plan, single_device_plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.checks import check_schedule
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_in_flight
from sharding.schedules.named.build import build_evaluation_schedule, build_schedule, forward_only
from sharding.schedules.one_f_one_b import gpipe, gpipe_in_flight, one_f_one_b, one_f_one_b_in_flight
from sharding.schedules.ops import OpGraph, PipelineOp, Schedule, ScheduleError
from sharding.specs.modules import module_graph
from tests.sharding.schedules.cyclic_waits import check_no_cyclic_waits, check_restricted_orders
from tests.sharding.schedules.slots import bubble_slots, op_slots
from tests.sharding.stage_graphs import build_op_graph, chain, fan, recipes, training

POLICIES = [(gpipe, gpipe_in_flight), (one_f_one_b, one_f_one_b_in_flight), (interleaved, interleaved_in_flight)]


def ops_of(schedule):
    return list(schedule.ops)


@pytest.mark.parametrize(("policy", "bounds"), POLICIES)
@given(recipe=recipes())
@settings(max_examples=40, deadline=None)
def test_every_policy_schedules_every_op_once_in_a_valid_order(policy, bounds, recipe):
    op_graph = build_op_graph(recipe)
    schedule = policy(op_graph)
    check_schedule(schedule, bounds(op_graph))
    check_restricted_orders(schedule)
    graph, ops = op_graph.stage_graph, ops_of(schedule)
    position = {op: index for index, op in enumerate(ops)}
    assert len(position) == len(ops)
    counts = collections.Counter(op.kind for op in ops)
    m, stage_ids, backward = op_graph.microbatches, graph.stages, op_graph.backward_stages
    assert counts["forward"] == m * len(stage_ids)
    assert counts["backward"] == m * len(backward)
    assert counts["hop"] == m * len(graph.edges)
    assert counts["gradient_hop"] == m * sum(source in backward for source, _ in graph.edges)
    assert counts["gather"] == len(stage_ids) and counts["global_norm"] == 1
    assert counts["reduce"] == counts["update"] == len(op_graph.trained_stages)
    assert counts["send_tied_weight"] == len(op_graph.tied_stages)
    assert counts["send_tied_gradient"] == sum(set(share) <= op_graph.trained_stages for share in op_graph.tied_stages)
    for (source, target), number in itertools.product(graph.edges, range(m)):
        hop = position[PipelineOp("hop", *source, number, *target)]
        assert position[PipelineOp("forward", *source, number)] < hop < position[PipelineOp("forward", *target, number)]
        if source in backward:
            hop = position[PipelineOp("gradient_hop", *target, number, *source)]
            assert (
                position[PipelineOp("backward", *target, number)]
                < hop
                < position[PipelineOp("backward", *source, number)]
            )
    for rank, chunks in graph.stages_of.items():
        # One more of the oldest microbatch may be in each chunk.
        rank_ops = [
            op for op in ops if op.microbatch >= 0 and graph.rank_of_microbatch(op.stage_id, op.microbatch) == rank
        ]
        most = most_held(rank_ops, [stage_id for stage_id in chunks if stage_id in backward])
        assert most <= bounds(op_graph)[rank] + (len(chunks) if len(chunks) > 1 else 0)
    for stage_id in backward:
        for number in range(m):
            assert (
                position[PipelineOp("forward", *stage_id, number)] < position[PipelineOp("backward", *stage_id, number)]
            )
    norm = position[PipelineOp("global_norm", "", -1)]
    for index, op in enumerate(ops):
        assert (index < norm) == (op.kind not in ("global_norm", "update")) or index == norm
        held = op_graph.devices_of(op)
        if op.kind == "gather":  # at once where devices are idle, and before an input would occupy them
            first = next(other for other in ops if other.kind in ("forward", "hop") and reaches(op.stage_id, other))
            assert index < position[first]
        if op.kind == "reduce":
            assert all(position[PipelineOp("backward", *op.stage_id, number)] < index for number in range(m))
            later = [other for other in ops[index:] if not held.isdisjoint(op_graph.devices_of(other))]
            assert not any(other.kind in ("forward", "backward") for other in later if other.stage_id in backward)
            assert all(other.kind != "backward" for other in later)


def reaches(stage_id, op: PipelineOp) -> bool:
    """Whether an op is a stage's forward, or a hop that feeds it."""
    return stage_id == (op.target_id if op.kind == "hop" else op.stage_id)


@pytest.mark.parametrize("policy", [gpipe, one_f_one_b, interleaved])
@given(recipe=recipes())
@settings(max_examples=25, deadline=None)
def test_a_device_runs_one_op_per_slot(policy, recipe):
    op_graph = build_op_graph(recipe)
    slots = op_slots(policy(op_graph))
    taken = [(device, slot) for op, slot in slots.items() for device in op_graph.devices_of(op)]
    assert len(taken) == len(set(taken))


@pytest.mark.parametrize("policy", [gpipe, one_f_one_b])
@given(recipe=recipes())
@settings(max_examples=25, deadline=None)
def test_hops_follow_the_ops_of_the_slot(policy, recipe):
    op_graph = build_op_graph(recipe)
    schedule, waiting = policy(op_graph), []
    for before, op in itertools.pairwise(op for op in schedule.ops if op.microbatch >= 0):
        if before.kind in ("forward", "backward"):
            hops = op_graph.forward_hops if before.kind == "forward" else op_graph.backward_hops
            waiting += hops(before.stage_id, before.microbatch)
        if op.kind in ("hop", "gradient_hop"):
            assert op == waiting.pop(0)
        elif before.kind in ("hop", "gradient_hop"):
            assert not waiting  # all hops of a slot come before the ops of the next


@given(recipe=recipes())
@settings(max_examples=25, deadline=None)
def test_a_restricted_schedule_keeps_the_order_of_the_ops_on_its_devices(recipe):
    op_graph = build_op_graph(recipe)
    schedule = one_f_one_b(op_graph)
    for device_sets in ([0], [1, 2], [0, 1, 2, 3, 4, 5]):
        mine = schedule.restricted_to(device_sets)
        assert [op for op in schedule.ops if op_graph.devices_of(op) & set(device_sets)] == list(mine.ops)
    assert schedule.restricted_to(op_graph.stage_graph.all_devices) == schedule


@pytest.mark.parametrize("microbatches", [1, 2, 4, 9])
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_a_chain_has_the_textbook_bubbles_and_residuals(length, microbatches):
    op_graph = training(chain(length), microbatches)
    for policy, bounds in POLICIES:
        schedule = policy(op_graph)
        # p - 1 slots of forward and p - 1 of backward are idle on every stage (GPipe, section 2.3).
        assert set(bubble_slots(schedule).values()) == {2 * (length - 1)}
        assert 1 + max(op_slots(schedule).values()) == 2 * (microbatches + length - 1)
        check_schedule(schedule, bounds(op_graph))
    for stage in range(length):
        assert most_held(ops_of(gpipe(op_graph)), [("unit", stage)]) == microbatches
        for policy in (one_f_one_b, interleaved):
            assert most_held(ops_of(policy(op_graph)), [("unit", stage)]) == min(microbatches, length - stage)


def most_held(ops, stage_ids):
    steps = {"forward": 1, "backward": -1}
    changes = [steps.get(op.kind, 0) for op in ops if op.stage_id in stage_ids]
    return max(itertools.accumulate(changes), default=0)


def test_one_f_one_b_in_full():
    order = [(p.kind[0], p.stage, p.microbatch) for p in ops_of(one_f_one_b(training(chain(2), 3)))]
    by_stage = {s: [f"{k}{m}" for k, stage, m in order if stage == s and k in "fb"] for s in (0, 1)}
    assert by_stage == {0: ["f0", "f1", "b0", "f2", "b1", "b2"], 1: ["f0", "b0", "f1", "b1", "f2", "b2"]}


@pytest.mark.parametrize(("near", "far", "backbone"), [(1, 1, 1), (1, 4, 2), (3, 2, 3)])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_unequal_depths_cost_no_more_than_the_longest_chain(near, far, backbone, microbatches):
    op_graph = training(fan(near, far, backbone), microbatches)
    longest = max(near, far) + backbone + 1
    for policy, _ in POLICIES:
        assert 1 + max(op_slots(policy(op_graph)).values()) == 2 * (microbatches + longest - 1)
    assert one_f_one_b_in_flight(op_graph)[("near", 0)] == near + backbone + 1
    assert one_f_one_b_in_flight(op_graph)[("far", 0)] == far + backbone + 1


@pytest.mark.parametrize("length", [1, 3])
def test_forward_only_fills_and_drains_once(length):
    op_graph = OpGraph(stage_graph=chain(length), microbatches=4, with_update=False)
    schedule = forward_only(op_graph.stage_graph, 4)
    check_schedule(schedule, one_f_one_b_in_flight(op_graph))
    assert set(bubble_slots(schedule).values()) == {length - 1}
    assert {op.kind for op in ops_of(schedule)} == {"gather", "forward"} | ({"hop"} if length > 1 else set())


def test_a_frozen_encoder_has_no_backward_and_does_not_run_ahead():
    graph = fan(1, 2, 1)
    trains = frozenset([("backbone", 0)])
    op_graph = OpGraph(
        stage_graph=graph, microbatches=6, backward_stages=graph.with_descendants(trains), trained_stages=trains
    )
    assert op_graph.backward_stages == {("backbone", 0), ("paint", 0), ("draw", 0)}
    schedule = one_f_one_b(op_graph)
    ops = ops_of(schedule)
    assert not [op for op in ops if op.kind == "gradient_hop" and op.target_unit in ("near", "far")]
    assert [op.stage_id for op in ops if op.kind == "update"] == [("backbone", 0)]
    ahead = held = 0
    for op in ops:
        held += {"near": 1, "backbone": -1}.get(op.unit, 0) * (op.kind == "forward")
        ahead = max(ahead, held)
    assert ahead == 3


WORK = training(fan(1, 2, 2), 3)
GOOD = one_f_one_b(WORK)


@given(st.integers(0, len(GOOD.ops) - 1))
@settings(max_examples=50, deadline=None)
def test_a_missing_or_repeated_op_is_found(index):
    bounds = one_f_one_b_in_flight(WORK)
    with pytest.raises(ScheduleError, match="is missing|which it needs"):
        check_schedule(Schedule(WORK, GOOD.ops[:index] + GOOD.ops[index + 1 :]), bounds)
    with pytest.raises(ScheduleError, match="is scheduled twice"):
        check_schedule(Schedule(WORK, GOOD.ops[: index + 1] + GOOD.ops[index:]), bounds)


@given(st.data())
@settings(deadline=None)
def test_an_op_before_what_it_needs_is_found(data):
    position = {op: index for index, op in enumerate(GOOD.ops)}
    op = data.draw(st.sampled_from([op for op, needs in WORK.dependencies.items() if needs]))
    need = data.draw(st.sampled_from(WORK.dependencies[op]))
    ops = list(GOOD.ops)
    ops.insert(position[need], ops.pop(position[op]))
    with pytest.raises(ScheduleError, match=re.escape(f"{op} is scheduled before")):
        check_schedule(Schedule(WORK, tuple(ops)), one_f_one_b_in_flight(WORK))


def test_too_many_microbatches_in_flight_and_unknown_ops_are_found():
    with pytest.raises(ScheduleError, match=r"forward unit 1 .* its stage then holds 2, not 1 at most"):
        op_graph = training(chain(2), 3)
        check_schedule(gpipe(op_graph), one_f_one_b_in_flight(op_graph))
    with pytest.raises(ScheduleError, match="forward other 0 of microbatch 1 is no op of this step"):
        check_schedule(Schedule(WORK, (PipelineOp("forward", "other", 0, 1),)), one_f_one_b_in_flight(WORK))
    with pytest.raises(ScheduleError, match="may hold 0 microbatches"):
        from sharding.schedules.list_scheduling import list_schedule

        list_schedule(WORK, dict.fromkeys(WORK.stage_graph.stages, 0), priority=lambda op: (op.microbatch,))


def test_processes_with_orders_that_disagree_are_found():
    op_graph = training(chain(2), 2)
    queues = [one_f_one_b(op_graph).restricted_to([device]) for device in (0, 1)]
    check_no_cyclic_waits(queues)
    ops = list(queues[1].ops)
    hops = [index for index, op in enumerate(ops) if op.kind == "hop"]
    ops[hops[0]], ops[hops[1]] = ops[hops[1]], ops[hops[0]]
    with pytest.raises(ScheduleError, match="wait for each other: .*hop unit 0 -> unit 1"):
        check_no_cyclic_waits([queues[0], Schedule(op_graph, tuple(ops))])
    with pytest.raises(
        ScheduleError, match="forward unit 1 of microbatch 0 needs gather unit 1, which no process runs"
    ):
        check_no_cyclic_waits([queues[0], Schedule(op_graph, queues[1].ops[1:])])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"microbatches": 0}, "0 microbatches"),
        ({"microbatches": 1, "trained_stages": frozenset([("unit", 0)])}, r"\('unit', 0\) needs a backward: it, or"),
        (
            {"microbatches": 1, "backward_stages": frozenset([("unit", 0)])},
            r"\('unit', 1\) needs a backward: a stage that",
        ),
        ({"microbatches": 1, "tied_stages": ((("unit", 0), ("unit", 0)),)}, "borrows from itself"),
        ({"microbatches": 1, "trained_stages": frozenset([("mind", 0)])}, r"\('mind', 0\) is not in the graph"),
    ],
)
def test_an_inconsistent_op_graph_is_refused(fields, message):
    with pytest.raises(ScheduleError, match=message):
        OpGraph(stage_graph=chain(2), **fields)


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "gpipe"])
def test_a_plan_becomes_a_schedule_with_tied_embeddings(name):
    config = ModelConfig(encoders=(VisionConfig(),))
    backbone = UnitPlan("mind", ("backbone",), (1, 2), layers=(2, 2), recompute=("none",) * 2)
    units = (UnitPlan("eyes", ("vision",), (0,), layers=(2,)), backbone, UnitPlan("hand", ("generator",), (2,)))
    plan = Plan(units, microbatches=4, schedule=name)
    first, last = ("mind", 0), ("mind", 1)
    schedule = build_schedule(ResolvedPlan(plan, module_graph(config)), frozenset([first, last]), ((first, last),))
    ops = ops_of(schedule)
    share = PipelineOp("send_tied_weight", *first, target_unit="mind", target_stage=1)
    assert sorted(op for op in ops if op.kind == "gather") == [
        PipelineOp("gather", "eyes", 0),
        PipelineOp("gather", "hand", 0),
        PipelineOp("gather", *first),
        PipelineOp("gather", *last),
    ]
    into_last = ops.index(PipelineOp("hop", *first, 0, *last))
    assert ops.index(PipelineOp("gather", *last)) < ops.index(share) < into_last
    # The last stage reduces while the first still has a backward to run.
    assert ops.index(PipelineOp("reduce", *last)) < ops.index(PipelineOp("backward", *first, 3))
    assert ops[-5:] == [
        PipelineOp("reduce", *first),
        PipelineOp("send_tied_gradient", *last, target_unit="mind", target_stage=0),
        PipelineOp("global_norm", "", -1),
        PipelineOp("update", *first),
        PipelineOp("update", *last),
    ]
    hop = next(op for op in schedule.ops if op.kind == "hop" and op.unit == "eyes")
    assert schedule.op_graph.devices_of(hop) == {0, 1}
    assert {op.stage_id for op in ops if op.kind == "backward"} == {first, last, ("hand", 0)}


def test_one_device_finishes_a_microbatch_before_the_next():
    graph = module_graph(ModelConfig())
    plan = single_device_plan(graph, microbatches=2)
    schedule = build_schedule(ResolvedPlan(plan, graph), frozenset([("vision", 0), ("backbone", 0), ("generator", 0)]))
    pipeline = [f"{p.kind[0]} {p.unit} {p.microbatch}" for p in ops_of(schedule) if p.kind in ("forward", "backward")]
    turns = ["f vision", "f backbone", "f generator", "b generator", "b backbone", "b vision"]
    assert pipeline == [f"{turn} {number}" for number in (0, 1) for turn in turns]
    evaluation = [op.kind for op in ops_of(build_evaluation_schedule(ResolvedPlan(plan, graph)))]
    assert evaluation == ["gather"] * 3 + ["forward", "hop", "forward", "hop", "forward"] * 2


def test_a_step_that_trains_nothing_still_has_the_norm():
    graph = module_graph(ModelConfig())
    kinds = [op.kind for op in ops_of(build_schedule(ResolvedPlan(single_device_plan(graph), graph), frozenset()))]
    assert kinds == ["gather"] * 3 + ["forward", "hop", "forward", "hop", "forward", "global_norm"]
