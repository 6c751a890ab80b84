"""Schedules: everything once, in an order that can run, within bounds, and with the textbook's bubbles."""

import collections
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.architectures import ModelConfig, VisionConfig
from sharding.plan import Plan, UnitPlan, one_device
from sharding.schedule import (
    Op,
    Part,
    Schedule,
    ScheduleError,
    Work,
    bubbles,
    build_evaluation,
    build_schedule,
    check_no_cyclic_waits,
    check_schedule,
    forward_only,
    gpipe,
    gpipe_bounds,
    interleaved,
    interleaved_bounds,
    one_f_one_b,
    one_f_one_b_bounds,
    slots,
)
from sharding.specs import module_graph
from tests.sharding.graphs import chain, cook, fan, recipes, training

POLICIES = [(gpipe, gpipe_bounds), (one_f_one_b, one_f_one_b_bounds), (interleaved, interleaved_bounds)]


def parts_of(schedule):
    return [part for op in schedule.ops for part in op.parts]


@pytest.mark.parametrize(("policy", "bounds"), POLICIES)
@given(recipe=recipes())
@settings(max_examples=40, deadline=None)
def test_any_schedule_runs(policy, bounds, recipe):
    work = cook(recipe)
    schedule = policy(work)
    check_schedule(schedule, work, bounds(work))
    graph, parts = work.graph, parts_of(schedule)
    position = {part: index for index, part in enumerate(parts)}
    assert len(position) == len(parts)
    counts = collections.Counter(part.kind for part in parts)
    m, nodes, backward = work.microbatches, graph.nodes, work.backward
    assert counts["forward"] == m * len(nodes)
    assert counts["backward"] == m * len(backward)
    assert counts["hop"] == m * len(graph.edges)
    assert counts["hop_back"] == m * sum(source in backward for source, _ in graph.edges)
    assert counts["gather"] == len(nodes) and counts["norm"] == 1
    assert counts["reduce"] == counts["update"] == len(work.trains)
    assert counts["share"] == len(work.shares)
    assert counts["share_back"] == sum(set(share) <= work.trains for share in work.shares)
    for (source, target), number in itertools.product(graph.edges, range(m)):
        hop = position[Part("hop", *source, number, *target)]
        assert position[Part("forward", *source, number)] < hop < position[Part("forward", *target, number)]
        if source in backward:
            hop = position[Part("hop_back", *target, number, *source)]
            assert position[Part("backward", *target, number)] < hop < position[Part("backward", *source, number)]
    for place, chunks in graph.chunks.items():
        # One more of the oldest microbatch may be in each chunk.
        most = most_held(schedule, [node for node in chunks if node in backward])
        assert most <= bounds(work)[place] + (len(chunks) if len(chunks) > 1 else 0)
    for node in backward:
        for number in range(m):
            assert position[Part("forward", *node, number)] < position[Part("backward", *node, number)]
    norm = position[Part("norm", "", -1)]
    for index, part in enumerate(parts):
        assert (index < norm) == (part.kind not in ("norm", "update")) or index == norm
        if part.kind in ("gather", "share"):
            assert index < len(nodes) + len(work.shares)
        if part.kind == "reduce":
            assert all(position[Part("backward", *part.node, number)] < index for number in range(m))


@pytest.mark.parametrize("policy", [gpipe, one_f_one_b, interleaved])
@given(recipe=recipes())
@settings(max_examples=25, deadline=None)
def test_a_device_has_one_op_a_slot_and_hops_follow_their_producer(policy, recipe):
    work = cook(recipe)
    schedule = policy(work)
    taken = [(lane, slot) for part, slot in slots(schedule, work).items() for lane in work.graph.lanes[part.node]]
    assert len(taken) == len(set(taken))
    producer = None
    for part in parts_of(schedule):
        if part.kind in ("hop", "hop_back"):
            assert producer == (part.kind.replace("hop_back", "backward").replace("hop", "forward"), part.node)
        else:
            producer = (part.kind, part.node)


@given(recipe=recipes())
@settings(max_examples=25, deadline=None)
def test_restricted_orders_agree_and_cover_all(recipe):
    work = cook(recipe)
    schedule = one_f_one_b(work)
    for lanes in ([0], [1, 2], [0, 1, 2, 3, 4, 5]):
        mine = schedule.restricted_to(lanes)
        assert [op for op in schedule.ops if op.lanes & set(lanes)] == list(mine.ops)
    assert schedule.restricted_to(work.graph.all_lanes) == schedule


@pytest.mark.parametrize("microbatches", [1, 2, 4, 9])
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_a_chain_has_the_textbook_bubbles_and_residuals(length, microbatches):
    work = training(chain(length), microbatches)
    for policy, bounds in POLICIES:
        schedule = policy(work)
        # p - 1 slots of forward and p - 1 of backward are idle on every stage (GPipe, section 2.3).
        assert set(bubbles(schedule, work).values()) == {2 * (length - 1)}
        assert 1 + max(slots(schedule, work).values()) == 2 * (microbatches + length - 1)
        check_schedule(schedule, work, bounds(work))
    for stage in range(length):
        assert most_held(gpipe(work), [("unit", stage)]) == microbatches
        for policy in (one_f_one_b, interleaved):
            assert most_held(policy(work), [("unit", stage)]) == min(microbatches, length - stage)


def most_held(schedule, nodes):
    steps = {"forward": 1, "backward": -1}
    changes = [steps.get(part.kind, 0) for part in parts_of(schedule) if part.node in nodes]
    return max(itertools.accumulate(changes), default=0)


def test_one_f_one_b_in_full():
    order = [(p.kind[0], p.stage, p.microbatch) for p in parts_of(one_f_one_b(training(chain(2), 3)))]
    by_stage = {s: [f"{k}{m}" for k, stage, m in order if stage == s and k in "fb"] for s in (0, 1)}
    assert by_stage == {0: ["f0", "f1", "b0", "f2", "b1", "b2"], 1: ["f0", "b0", "f1", "b1", "f2", "b2"]}


@pytest.mark.parametrize(("near", "far", "backbone"), [(1, 1, 1), (1, 4, 2), (3, 2, 3)])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_unequal_depths_cost_no_more_than_the_longest_chain(near, far, backbone, microbatches):
    work = training(fan(near, far, backbone), microbatches)
    longest = max(near, far) + backbone + 1
    for policy, _ in POLICIES:
        assert 1 + max(slots(policy(work), work).values()) == 2 * (microbatches + longest - 1)
    assert one_f_one_b_bounds(work)[("near", 0)] == near + backbone + 1
    assert one_f_one_b_bounds(work)[("far", 0)] == far + backbone + 1


@pytest.mark.parametrize("length", [1, 3])
def test_forward_only_fills_and_drains_once(length):
    work = Work(chain(length), 4, updates=False)
    schedule = forward_only(work.graph, 4)
    check_schedule(schedule, work, one_f_one_b_bounds(work))
    assert set(bubbles(schedule, work).values()) == {length - 1}
    assert {part.kind for part in parts_of(schedule)} == {"gather", "forward"} | ({"hop"} if length > 1 else set())


def test_a_frozen_encoder_has_no_backward_and_does_not_run_ahead():
    graph = fan(1, 2, 1)
    trains = frozenset([("backbone", 0)])
    work = Work(graph, 6, graph.with_descendants(trains), trains)
    assert work.backward == {("backbone", 0), ("paint", 0), ("draw", 0)}
    schedule = one_f_one_b(work)
    parts = parts_of(schedule)
    assert not [part for part in parts if part.kind == "hop_back" and part.target_unit in ("near", "far")]
    assert [part.node for part in parts if part.kind == "update"] == [("backbone", 0)]
    ahead = held = 0
    for part in parts:
        held += {"near": 1, "backbone": -1}.get(part.unit, 0) * (part.kind == "forward")
        ahead = max(ahead, held)
    assert ahead == 3


WORK = training(fan(1, 2, 2), 3)
GOOD = one_f_one_b(WORK)


@given(st.integers(0, len(GOOD.ops) - 1))
@settings(max_examples=50, deadline=None)
def test_a_missing_or_repeated_op_is_found(index):
    bounds = one_f_one_b_bounds(WORK)
    with pytest.raises(ScheduleError, match="is missing|which it needs"):
        check_schedule(Schedule(GOOD.ops[:index] + GOOD.ops[index + 1 :]), WORK, bounds)
    with pytest.raises(ScheduleError, match="stands twice"):
        check_schedule(Schedule(GOOD.ops[: index + 1] + GOOD.ops[index:]), WORK, bounds)


@given(st.data())
@settings(deadline=None)
def test_an_op_before_what_it_needs_is_found(data):
    position = {op.parts[0]: index for index, op in enumerate(GOOD.ops)}
    part = data.draw(st.sampled_from([part for part, needs in WORK.needs.items() if needs]))
    need = data.draw(st.sampled_from(WORK.needs[part]))
    ops = list(GOOD.ops)
    ops.insert(position[need], ops.pop(position[part]))
    with pytest.raises(ScheduleError, match=re.escape(f"{part} stands before")):
        check_schedule(Schedule(tuple(ops)), WORK, one_f_one_b_bounds(WORK))


def test_too_much_in_flight_foreign_work_and_lanes_too_few_are_found():
    with pytest.raises(ScheduleError, match=r"forward unit 1 .* its stage then holds 2, not 1 at most"):
        work = training(chain(2), 3)
        check_schedule(gpipe(work), work, one_f_one_b_bounds(work))
    with pytest.raises(ScheduleError, match="forward other 0 of microbatch 1 is no part of this step"):
        check_schedule(Schedule((Op((Part("forward", "other", 0, 1),), frozenset([0])),)), WORK, {})
    narrow = [Op(op.parts, frozenset([0])) if op.parts[0].kind == "norm" else op for op in GOOD.ops]
    with pytest.raises(ScheduleError, match="norm  -1 does not hold devices"):
        check_schedule(Schedule(tuple(narrow)), WORK, one_f_one_b_bounds(WORK))
    with pytest.raises(ScheduleError, match="may hold 0 microbatches"):
        from sharding.list_scheduling import list_schedule

        list_schedule(WORK, dict.fromkeys(WORK.graph.nodes, 0), key=lambda part: (part.microbatch,))


def test_processes_with_orders_that_disagree_are_found():
    work = training(chain(2), 2)
    queues = [one_f_one_b(work).restricted_to([lane]) for lane in (0, 1)]
    check_no_cyclic_waits(queues, work)
    ops = list(queues[1].ops)
    hops = [index for index, op in enumerate(ops) if op.parts[0].kind == "hop"]
    ops[hops[0]], ops[hops[1]] = ops[hops[1]], ops[hops[0]]
    with pytest.raises(ScheduleError, match="wait for each other: .*hop unit 0 -> unit 1"):
        check_no_cyclic_waits([queues[0], Schedule(tuple(ops))], work)
    with pytest.raises(
        ScheduleError, match="forward unit 1 of microbatch 0 needs gather unit 1, which no process runs"
    ):
        check_no_cyclic_waits([queues[0], Schedule(queues[1].ops[1:])], work)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"microbatches": 0}, "0 microbatches"),
        ({"microbatches": 1, "trains": frozenset([("unit", 0)])}, r"\('unit', 0\) needs a backward: it, or"),
        ({"microbatches": 1, "backward": frozenset([("unit", 0)])}, r"\('unit', 1\) needs a backward: a stage that"),
        ({"microbatches": 1, "shares": ((("unit", 0), ("unit", 0)),)}, "borrows from itself"),
        ({"microbatches": 1, "trains": frozenset([("mind", 0)])}, r"\('mind', 0\) is not in the graph"),
    ],
)
def test_work_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ScheduleError, match=message):
        Work(chain(2), **fields)


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "gpipe"])
def test_a_plan_becomes_a_schedule_with_tied_embeddings(name):
    config = ModelConfig(encoders=(VisionConfig(),))
    backbone = UnitPlan("mind", ("backbone",), (1, 2), layers=(2, 2), recompute=("none",) * 2)
    units = (UnitPlan("eyes", ("vision",), (0,), layers=(2,)), backbone, UnitPlan("hand", ("generator",), (2,)))
    plan = Plan(units, microbatches=4, schedule=name)
    first, last = ("mind", 0), ("mind", 1)
    schedule = build_schedule(plan, module_graph(config), frozenset([first, last]), ((first, last),))
    parts = parts_of(schedule)
    assert parts[:5] == [
        Part("gather", "eyes", 0),
        Part("gather", *first),
        Part("gather", *last),
        Part("gather", "hand", 0),
        Part("share", *first, target_unit="mind", target_stage=1),
    ]
    assert parts[-6:] == [
        Part("reduce", *first),
        Part("reduce", *last),
        Part("share_back", *last, target_unit="mind", target_stage=0),
        Part("norm", "", -1),
        Part("update", *first),
        Part("update", *last),
    ]
    hop = next(op for op in schedule.ops if op.parts[0].kind == "hop" and op.parts[0].unit == "eyes")
    assert hop.lanes == {0, 1}
    assert {part.node for part in parts if part.kind == "backward"} == {first, last, ("hand", 0)}


def test_one_device_runs_a_microbatch_to_its_end_before_the_next():
    graph = module_graph(ModelConfig())
    plan = one_device(graph, microbatches=2)
    schedule = build_schedule(plan, graph, frozenset([("vision", 0), ("backbone", 0), ("generator", 0)]))
    pipeline = [f"{p.kind[0]} {p.unit} {p.microbatch}" for p in parts_of(schedule) if p.kind in ("forward", "backward")]
    turns = ["f vision", "f backbone", "f generator", "b generator", "b backbone", "b vision"]
    assert pipeline == [f"{turn} {number}" for number in (0, 1) for turn in turns]
    evaluation = [part.kind for part in parts_of(build_evaluation(plan, graph))]
    assert evaluation == ["gather"] * 3 + ["forward", "hop", "forward", "hop", "forward"] * 2


def test_nothing_trains_yet_the_norm_judges_the_losses():
    graph = module_graph(ModelConfig())
    kinds = [part.kind for part in parts_of(build_schedule(one_device(graph), graph, frozenset()))]
    assert kinds == ["gather"] * 3 + ["forward", "hop", "forward", "hop", "forward", "norm"]
