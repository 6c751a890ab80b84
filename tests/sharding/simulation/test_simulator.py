"""The simulator against closed forms, a case by hand, a second simulator, and lower bounds."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings

from sharding.plans.plan import Plan
from sharding.plans.resolved.device_groups import (
    group_devices,
    last_source,
    latest_of_sources,
    replica_devices,
    source_replicas,
)
from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_events
from sharding.schedules.list_scheduling import schedule_of_events
from sharding.schedules.named.build import forward_only
from sharding.schedules.numbered_passes import NumberedPasses
from sharding.schedules.one_f_one_b import gpipe, one_f_one_b
from sharding.schedules.ops import COMPUTE_KINDS, OpGraph, PipelineOp, Schedule, ScheduleError
from sharding.simulation.simulator import simulate_on_devices
from tests.sharding.simulation import brute_force_simulator as brute_force
from tests.sharding.stage_graphs import chain, ring
from tests.sharding.steps import (
    SimulatedStep,
    build_step,
    overlapping_replicas,
    single_devices,
    stage_costs,
    step_costs,
    step_recipes,
)
from tests.unit_plans import module_unit


def pipeline(
    policy, graph: StageGraph, microbatches: int, forward: list[float], backward: list[float], **hop
) -> SimulatedStep:
    """A chain that trains, with one device per stage and these seconds per stage."""
    everything = frozenset(graph.stages)
    op_graph = OpGraph(
        stage_graph=graph, microbatches=microbatches, backward_stages=everything, trained_stages=everything
    )
    stages = {
        stage_id: stage_costs(np.full((microbatches, 1), f), np.full((microbatches, 1), b))
        for stage_id, f, b in zip(graph.stages, forward, backward, strict=True)
    }
    return SimulatedStep(single_devices(graph), policy(op_graph), step_costs(op_graph, stages, **hop))


@pytest.mark.parametrize("rendezvous", [False, True])
@pytest.mark.parametrize("policy", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (4, 4), (4, 9), (8, 3)])
def test_equal_stages_take_the_textbook_time(policy, stages, microbatches, rendezvous):
    step = pipeline(policy, chain(stages), microbatches, [1.0] * stages, [2.0] * stages).run(rendezvous)
    assert step.step == (microbatches + stages - 1) * 3.0


def hops_right_behind_producers(op_graph: OpGraph) -> Schedule:
    """Interleaved 1F1B with every hop behind the op that produces its array."""
    passes = NumberedPasses(op_graph)
    return schedule_of_events(passes, interleaved_events(passes))


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(4, 2, 16), (8, 2, 32), (8, 4, 32)])
def test_ranks_with_chunks_hardly_wait_for_hops_that_occupy_both_ends(ranks, chunks, microbatches):
    """Every device takes part in about four hops for each chunk and microbatch."""
    count, hop = ranks * chunks, 0.1
    graph, seconds = ring(ranks, chunks), ([1.0] * count, [2.0] * count)
    steps = [
        pipeline(policy, graph, microbatches, *seconds, hop=hop).run(rendezvous=True).step
        for policy in (interleaved, hops_right_behind_producers)
    ]
    computing = microbatches * 3.0 * chunks + (ranks - 1) * 3.0
    assert steps[0] < computing + 5 * hop * chunks * microbatches < steps[1]


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), [(2, 2, 4), (4, 3, 8)])
def test_interleaving_divides_the_bubble_by_the_chunks(stages, chunks, microbatches):
    count = stages * chunks
    timeline = pipeline(interleaved, ring(stages, chunks), microbatches, [1.0] * count, [2.0] * count).run()
    assert timeline.step == microbatches * 3.0 * chunks + (stages - 1) * 3.0


def test_the_slowest_of_uneven_stages_sets_the_pace():
    forward, backward = [1.0, 3.0, 2.0], [2.0, 6.0, 4.0]
    timeline = pipeline(gpipe, chain(3), 5, forward, backward).run()
    assert timeline.step == sum(forward) + sum(backward) + 4 * (3.0 + 6.0)


def test_hops_add_up_along_a_chain_and_occupy_no_device():
    timeline = pipeline(gpipe, chain(3), 4, [1.0] * 3, [1.0] * 3, hop=0.25).run()
    assert timeline.step == 2 * (4 + 2) + 4 * 0.25


def test_hops_that_occupy_devices_take_time_from_both_ends():
    graph = chain(2)
    step = pipeline(gpipe, graph, 3, [1.0] * 2, [0.0] * 2, hop=0.5)
    # Stage 0: forward, then a hop in which stage 1 takes part once it has done its own forward.
    forward = [span for span in step.run(rendezvous=True).spans if span.op.kind == "forward"]
    by_stage = {stage: [s.start[0] for s in forward if s.op.stage == stage] for stage in (0, 1)}
    assert by_stage == {0: [0.0, 1.5, 3.0], 1: [1.5, 3.0, 4.5]}


def three_feed_two(durations) -> SimulatedStep:
    """Three encoder replicas with one device each feed two backbone replicas with two devices each; nothing trains."""
    encoder, backbone = ("encoder", 0), ("backbone", 0)
    devices = {encoder: np.arange(3).reshape(3, 1), backbone: np.arange(3, 7).reshape(2, 2)}
    lanes = {stage_id: frozenset(held.ravel().tolist()) for stage_id, held in devices.items()}
    graph = StageGraph(lanes, ((encoder, backbone),))
    op_graph = OpGraph(stage_graph=graph, microbatches=2, with_update=False)
    stages = {encoder: stage_costs(durations), backbone: stage_costs([[4.0, 4.0], [1.0, 1.0]], gather=0.5)}
    return SimulatedStep(devices, forward_only(graph, 2), step_costs(op_graph, stages, hop=0.25))


def test_a_replica_waits_for_the_source_replicas_whose_rows_it_takes():
    timeline = three_feed_two([[1.0, 2.0, 5.0], [1.0, 6.0, 1.0]]).run()
    times = {(span.op.unit, span.op.microbatch): span for span in timeline.spans if span.op.kind == "forward"}
    np.testing.assert_array_equal(times["encoder", 1].end, [2.0, 8.0, 6.0])
    # The first third and half of the second go to replica 0, the rest to replica 1.
    np.testing.assert_array_equal(times["backbone", 0].start, [2.25, 5.25])
    np.testing.assert_array_equal(times["backbone", 1].start, [8.25, 9.25])
    assert timeline.step == 10.25


def test_units_on_the_same_devices_wait_for_each_other_device_by_device():
    near, far = ("near", 0), ("far", 0)
    devices = {near: np.array([[0], [1], [2]]), far: np.array([[1, 2]])}
    graph = StageGraph({near: frozenset([0, 1, 2]), far: frozenset([1, 2])}, ())
    op_graph = OpGraph(stage_graph=graph, microbatches=1, with_update=False)
    costs = step_costs(op_graph, {near: stage_costs([[5.0, 1.0, 2.0]]), far: stage_costs([[1.0]])})
    timeline = simulate_on_devices(devices, forward_only(graph, 1), costs)
    spans = {span.op.unit: span for span in timeline.spans if span.op.kind == "forward"}
    order = [op.unit for op in forward_only(graph, 1).ops if op.kind == "forward"]
    assert order == ["near", "far"]
    assert (spans["far"].start[0], timeline.step) == (2.0, 5.0)


def test_stages_without_a_backward_run_forwards_only():
    graph = chain(3)
    trains = frozenset(graph.stages[1:])
    op_graph = OpGraph(stage_graph=graph, microbatches=4, backward_stages=trains, trained_stages=trains)
    stages = {n: stage_costs(np.ones((4, 1)), np.full((4, 1), 2.0 * (n in trains))) for n in graph.stages}
    timeline = simulate_on_devices(single_devices(graph), one_f_one_b(op_graph), step_costs(op_graph, stages))
    assert timeline.step == 1.0 + (4 + 1) * 3.0
    assert {span.op.stage_id for span in timeline.spans if span.op.kind == "backward"} == trains


def test_ops_that_run_once_per_step_are_at_both_ends():
    graph = chain(2)
    everything = frozenset(graph.stages)
    op_graph = OpGraph(
        stage_graph=graph,
        microbatches=1,
        backward_stages=everything,
        trained_stages=everything,
        tied_stages=(graph.edges[0],),
    )
    stages = {
        graph.stages[0]: stage_costs([[1.0]], [[2.0]], gather=1.0, reduce=0.5, update=0.25),
        graph.stages[1]: stage_costs([[1.0]], [[2.0]], gather=4.0, reduce=8.0, update=2.0),
    }
    timeline = simulate_on_devices(single_devices(graph), one_f_one_b(op_graph), step_costs(op_graph, stages))
    ends = {(span.op.kind, span.op.stage): float(span.end[0]) for span in timeline.spans}
    assert ends["send_tied_weight", 0] == 4.0  # a weight is lent once its owner and its borrower have theirs
    assert (ends["backward", 1], ends["backward", 0]) == (7.0, 9.0)
    assert (ends["reduce", 1], ends["reduce", 0], ends["global_norm", -1]) == (15.0, 9.5, 15.0)
    assert (ends["update", 0], ends["update", 1], timeline.step) == (15.25, 17.0, 17.0)


@settings(max_examples=25, deadline=None)
@given(step_recipes())
def test_a_second_simulator_agrees_to_the_bit(recipe):
    step = build_step(recipe)
    for rendezvous in (False, True):
        expected = brute_force.run(step, rendezvous)
        for span in step.run(rendezvous).spans:
            for number, interval in enumerate(zip(span.start, span.end, strict=True)):
                assert interval == expected.get((span.op, number), expected[span.op, 0]), span.op


@settings(max_examples=25, deadline=None)
@given(step_recipes())
def test_no_op_starts_before_its_inputs_and_no_device_runs_two_at_once(recipe):
    step = build_step(recipe)
    timeline = step.run()
    ends = {span.op: span.end for span in timeline.spans}
    used: dict[int, float] = {}
    began: dict[int, float] = {}
    for span in timeline.spans:
        inputs = step.op_graph.dependencies[span.op]
        if span.op.kind in ("hop", "gradient_hop"):
            (producer,) = inputs
            sources = overlapping_replicas(len(ends[producer]), len(span.start))
            assert all(span.start[i] >= max(ends[producer][k]) for i, k in enumerate(sources))
        elif span.op.kind in (*COMPUTE_KINDS, "gather", "reduce"):
            for need in inputs:  # those that run once per step end on all pipeline replicas together
                assert np.all(
                    span.start >= (ends[need] if need.microbatch >= 0 <= span.op.microbatch else ends[need].max())
                )
            for replica, held in enumerate(step.replicas(span.op.stage_id, span.op.microbatch)):
                for device in held.tolist():
                    if span.op in step.schedule.bundled:  # with the op before it
                        assert (span.start[replica], span.end[replica]) == (began[device], used[device])
                    assert span.op in step.schedule.bundled or span.start[replica] >= used.get(device, 0.0)
                    began[device], used[device] = span.start[replica], span.end[replica]
    assert timeline.step >= max(used.values())


@settings(max_examples=25, deadline=None)
@given(step_recipes())
def test_a_step_is_no_shorter_than_its_bounds(recipe):
    step = build_step(recipe)
    timeline = step.run()
    shortest: dict[PipelineOp, float] = {}
    for op in step.schedule.ops:
        inputs = max((shortest[need] for need in step.op_graph.dependencies[op]), default=0.0)
        seconds = {"hop": step.costs.hops, "gradient_hop": step.costs.gradient_hops}.get(op.kind)
        stage = step.costs.stages.get(op.stage_id)
        if seconds is not None:
            edge = (op.stage_id, op.target_id) if op.kind == "hop" else (op.target_id, op.stage_id)
            taken = seconds[edge][op.microbatch].min()
        elif op.microbatch >= 0:
            taken = stage.of_pass(op.kind)[op.microbatch].min()
        else:
            taken = getattr(stage, op.kind, 0.0)
        shortest[op] = inputs + float(taken)
    assert timeline.step >= max(shortest.values())
    busiest = max(timeline.lane_busy(lane) for lane in timeline.lanes)
    assert timeline.step >= busiest


@pytest.mark.parametrize(("sources", "targets"), [(a, b) for a in range(1, 8) for b in range(1, 8)])
def test_rows_go_to_the_replicas_whose_shares_overlap(sources, targets):
    assert [sorted(set(row)) for row in source_replicas(sources, targets).tolist()] == overlapping_replicas(
        sources, targets
    )


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize(("sources", "targets"), [(1, 5), (5, 1), (3, 4), (4, 2), (6, 6)])
def test_a_target_waits_for_the_last_of_its_sources(sources, targets, exchanged):
    ends = np.random.default_rng(sources).permutation(sources).astype(float)
    of_target = [range(sources)] * targets if exchanged else overlapping_replicas(sources, targets)
    last = [max(replicas, key=ends.__getitem__) for replicas in of_target]
    assert last_source(ends, targets, exchanged).tolist() == last
    np.testing.assert_array_equal(latest_of_sources(ends, targets, exchanged), ends[last])


def test_an_exchange_among_many_replicas_lists_no_pairs_of_them():
    ends = np.zeros(60_000)
    ends[7] = 1.0
    assert (last_source(ends, 70_000, exchanged=True) == 7).all()
    assert (latest_of_sources(ends, 70_000, exchanged=True) == 1.0).all()


def test_devices_that_always_work_alike_are_one_group():
    groups = group_devices({("a", 0): np.arange(8).reshape(2, 4), ("b", 0): np.array([[1, 0], [7, 8]])})
    group_of = dict(groups.members.tolist())
    classes = [{2, 3}, {0, 1}, {4, 5, 6}, {7}, {8}]
    assert sorted(sorted(d for d in group_of if group_of[d] == g) for g in set(group_of.values())) == sorted(
        map(sorted, classes)
    )
    assert groups.device_count == 9
    assert groups.groups_of["a", 0].shape == (2, 2)
    assert groups.groups_of["b", 0].shape == (2, 2) and groups.is_first["b", 0].sum() == 3


def test_replica_devices_follow_from_the_plan():
    plan = Plan((module_unit("backbone", range(8), layers=(1, 1), name="unit", dp=2, tp=2),))
    devices = replica_devices(plan, [("unit", 0), ("unit", 1)])
    np.testing.assert_array_equal(devices["unit", 1], [[4, 5], [6, 7]])
    graph = StageGraph({n: frozenset(d.ravel().tolist()) for n, d in devices.items()}, ((("unit", 0), ("unit", 1)),))
    op_graph = OpGraph(stage_graph=graph, microbatches=1, with_update=False)
    costs = step_costs(op_graph, {stage_id: stage_costs([[1.0, 2.0]]) for stage_id in graph.stages})
    assert simulate_on_devices(devices, forward_only(graph, 1), costs).step == 4.0


LARGE = """
import time, itertools, numpy as np
from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.interleaved_1f1b import interleaved
from sharding.schedules.ops import OpGraph
from sharding.simulation.simulator import simulate_on_devices
from sharding.simulation.summary import timeline_summary
from tests.sharding.steps import stage_costs, step_costs
devices = {("encoder", 0): np.arange(384).reshape(96, 4)}
devices |= {("backbone", v): 384 * (1 + v % 8) + np.arange(384).reshape(48, 8) for v in range(96)}
rng = np.random.default_rng(0)
stages = {n: stage_costs(f, 2 * f) for n, f in ((n, rng.uniform(1, 2, (32, len(d)))) for n, d in devices.items())}
started = time.process_time()
lanes = {node: frozenset(held.ravel().tolist()) for node, held in devices.items()}
nodes = frozenset(devices)
graph = StageGraph(lanes, tuple(itertools.pairwise(devices)), {"backbone": 8})
work = OpGraph(stage_graph=graph, microbatches=32, backward_stages=nodes, trained_stages=nodes)
timeline = simulate_on_devices(devices, interleaved(work), step_costs(work, stages, 0.01))
summary = timeline_summary(timeline)
print(summary["devices"], time.process_time() - started)
"""


@pytest.mark.processes
def test_thousands_of_devices_are_simulated_in_seconds():
    """Runs in a process without type checks: 0.6 s alone; quadratic growth would take far longer."""
    ran = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    devices, seconds = ran.stdout.split()
    assert int(devices) == 3456 and float(seconds) < 20


def test_costs_of_another_step_are_refused():
    step = three_feed_two(np.ones((2, 3)))
    fewer = three_feed_two(np.ones((2, 3)))
    del fewer.costs.stages["backbone", 0]
    with pytest.raises(ScheduleError, match="none for .*backbone"):
        fewer.run()
    step.costs.hops[step.op_graph.stage_graph.edges[0]] = np.zeros((2, 3))
    with pytest.raises(ScheduleError, match=r"shape \[2, 3\], but the step has 2 microbatches on 2 replicas"):
        step.run()


def test_orders_that_cannot_run_are_refused():
    step = three_feed_two(np.ones((2, 3)))
    with pytest.raises(ScheduleError, match="hop encoder 0 -> backbone 0 .* before the forward"):
        simulate_on_devices(step.devices, Schedule(step.op_graph, step.schedule.ops[3:]), step.costs)
    without_hops = Schedule(step.op_graph, tuple(op for op in step.schedule.ops if op.kind != "hop"))
    with pytest.raises(ScheduleError, match="forward backbone 0 of microbatch 0 is scheduled before what it needs"):
        simulate_on_devices(step.devices, without_hops, step.costs)
