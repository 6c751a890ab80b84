"""What follows from a timeline: idle time by cause, memory, MFU."""

import json

import numpy as np
import pytest
from hypothesis import given, settings

from sharding.costs.step_costs import StageCosts, StaticBytes
from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.named.build import forward_only
from sharding.schedules.one_f_one_b import gpipe, one_f_one_b
from sharding.schedules.ops import COMPUTE_KINDS, OpGraph, Schedule
from sharding.simulation.idle.idle_time import IDLE_CAUSES
from sharding.simulation.simulator import simulate_on_devices
from sharding.simulation.summary import timeline_summary
from sharding.simulation.timeline import Timeline
from sharding.specs.layers.recomputed_kernels import RecomputedFlops
from tests.sharding.stage_graphs import chain, ring
from tests.sharding.steps import (
    build_step,
    overlapping_replicas,
    single_devices,
    stage_costs,
    step_costs,
    step_recipes,
    uneven_timeline,
)

FIRST, SECOND = ("unit", 0), ("unit", 1)


def causes(timeline: Timeline) -> list[dict[str, float]]:
    """Idle seconds by cause of every lane, without the causes that do not occur."""
    return [{cause: s for cause, s in timeline.lane_idle(lane).items() if s} for lane in timeline.lanes]


def feed(durations: list[list[float]], then: list[list[float]], hop: float = 0.0, rendezvous: bool = False) -> Timeline:
    """The timeline of two stages' forwards; seconds are [microbatches][replicas], with one device per replica."""
    held = np.arange(len(durations[0]) + len(then[0]))[:, None]
    devices = {FIRST: held[: len(durations[0])], SECOND: held[len(durations[0]) :]}
    graph = StageGraph({n: frozenset(d.ravel().tolist()) for n, d in devices.items()}, ((FIRST, SECOND),))
    op_graph = OpGraph(stage_graph=graph, microbatches=len(durations), with_update=False)
    costs = step_costs(op_graph, {FIRST: stage_costs(durations), SECOND: stage_costs(then)}, hop)
    return simulate_on_devices(devices, forward_only(graph, len(durations)), costs, rendezvous)


def test_waiting_for_a_long_microbatch_is_split_into_its_causes():
    timeline = feed([[1.0], [4.0], [1.0]], [[1.0], [1.0], [1.0]], hop=0.5)
    # The second stage waits for microbatch 1 from 2.5 to 5.5: 0.5 on the way, 2 beyond the mean of (1, 4, 1), and 0.5.
    first, second = causes(timeline)
    assert first == {"cool-down": 1.5}
    assert second == {"warm-up": 1.5, "hop": 0.5, "straggler microbatch": 2.0, "dependency": 0.5}


def test_waiting_for_a_slow_replica_is_a_straggler_replica():
    timeline = feed([[1.0, 1.0], [1.0, 5.0]], [[1.0], [1.0]])
    # Of the 4 seconds from 2 to 6, 2 are beyond the mean (1 + 5) / 2, 1 is beyond the mean of 1 and 3.
    _, second = causes(timeline)
    assert second == {"warm-up": 1.0, "straggler replica": 2.0, "straggler microbatch": 1.0, "dependency": 1.0}


def test_hops_that_occupy_devices_are_idle_time_of_both_ends():
    timeline = feed([[1.0], [4.0], [1.0]], [[1.0], [1.0], [3.0]], hop=0.5, rendezvous=True)
    first, second = causes(timeline)
    # The first sends at 1, 5.5 and 7 (after the second's microbatch 1); the second then waits from 2.5 to 5.5.
    assert first == {"hop": 1.0, "cool-down": 3.5}
    assert second == {"warm-up": 1.5, "hop": 1.0, "straggler microbatch": 2.0, "dependency": 1.0}


def test_waiting_for_an_ordinary_microbatch_is_dependency():
    timeline = feed([[2.0]] * 3, [[1.0]] * 3)
    assert causes(timeline)[1] == {"warm-up": 2.0, "dependency": 2.0}


def test_waiting_for_slow_replicas_before_a_reduction_is_a_straggler_replica():
    graph = chain(1)
    stage_id = graph.stages[0]
    op_graph = OpGraph(
        stage_graph=graph, microbatches=1, backward_stages=frozenset([stage_id]), trained_stages=frozenset([stage_id])
    )
    stage = stage_costs([[1.0, 2.0]], [[1.0, 4.0]], gather=0.5, reduce=0.25, update=0.125)
    costs = step_costs(op_graph, {stage_id: stage})
    timeline = simulate_on_devices({stage_id: np.array([[0, 1], [2, 3]])}, gpipe(op_graph), costs)
    assert causes(timeline) == [{"gather": 0.5, "straggler replica": 2.0, "reduce": 0.25}]
    assert timeline.busy == 4.0 + 0.125


def test_tensor_collectives_are_idle_time_inside_ops():
    graph = chain(1)
    op_graph = OpGraph(stage_graph=graph, microbatches=2, with_update=False)
    stage = stage_costs([[1.0], [2.0]], forward_communication=np.array([[0.25], [0.5]]))
    timeline = simulate_on_devices(single_devices(graph), forward_only(graph, 2), step_costs(op_graph, {FIRST: stage}))
    assert causes(timeline) == [{"tensor parallel": 0.75}]
    assert timeline.busy == 2.25


def test_waiting_for_another_unit_on_a_device_of_the_replica_is_dependency():
    feeding, other, fed = ("feeding", 0), ("other", 0), ("fed", 0)
    devices = {feeding: np.array([[0]]), other: np.array([[1]]), fed: np.array([[1, 2]])}
    graph = StageGraph({n: frozenset(d.ravel().tolist()) for n, d in devices.items()}, ((feeding, fed),))
    op_graph = OpGraph(stage_graph=graph, microbatches=2, with_update=False)
    stages = {feeding: [[1.0], [1.0]], other: [[1.0], [6.0]], fed: [[1.0], [1.0]]}
    costs = step_costs(op_graph, {stage_id: stage_costs(seconds) for stage_id, seconds in stages.items()}, hop=0.5)
    *ops, last_fed, last_other = forward_only(graph, 2).ops
    timeline = simulate_on_devices(devices, Schedule(op_graph, (*ops, last_other, last_fed)), costs)
    # Device 1: other, 0.5 for the hop, fed, other, fed. Device 2: 1.5 of warm-up, fed, 6 until device 1 is done, fed.
    assert causes(timeline)[2] == {"warm-up": 0.75, "hop": 0.25, "dependency": 3.0}


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 8), (3, 5)])
def test_one_f_one_b_warms_up_and_cools_down_as_the_textbook_says(stages, microbatches):
    graph = chain(stages)
    everything = frozenset(graph.stages)
    op_graph = OpGraph(
        stage_graph=graph, microbatches=microbatches, backward_stages=everything, trained_stages=everything
    )
    ones = np.ones((microbatches, 1))
    costs = step_costs(op_graph, dict.fromkeys(graph.stages, stage_costs(ones, 2 * ones)))
    timeline = simulate_on_devices(single_devices(graph), one_f_one_b(op_graph), costs)
    for stage, idle_seconds in enumerate(causes(timeline)):
        assert idle_seconds.get("warm-up", 0.0) == stage * 1.0
        assert idle_seconds.get("cool-down", 0.0) == stage * 2.0
        assert idle_seconds.get("dependency", 0.0) == (stages - 1 - stage) * 3.0


@settings(max_examples=40, deadline=None)
@given(step_recipes())
def test_idle_by_cause_and_busy_time_are_the_whole_step_on_every_device(recipe):
    step = build_step(recipe)
    for rendezvous in (False, True):
        timeline = step.run(rendezvous)
        assert all(np.all(seconds >= 0) for seconds in timeline.idle_by_group.values())
        assert set(timeline.idle_by_group) == set(IDLE_CAUSES)
        busy = dict.fromkeys(timeline.groups.members[:, 0].tolist(), 0.0)
        for span in timeline.spans:
            if span.op.kind in (*COMPUTE_KINDS, "update"):
                for replica, held in enumerate(step.replicas(span.op.stage_id, span.op.microbatch)):
                    for device in held.tolist():
                        busy[device] += span.compute_seconds[replica]
        for device, group in timeline.groups.members.tolist():
            idle = sum(seconds[group] for seconds in timeline.idle_by_group.values())
            assert idle + busy[device] == pytest.approx(timeline.step, abs=1e-9)
        assert sum(timeline.idle.values()) + timeline.busy == pytest.approx(timeline.step, abs=1e-9)


def most_held(step, timeline: Timeline, device: int) -> float:
    """Peak bytes on a device, over all moments at which an op starts."""
    graph = step.op_graph.stage_graph
    ran = {(span.op.kind, span.op.stage_id, span.op.microbatch): span for span in timeline.spans}
    bytes_of, for_wgrads = {}, {}  # by stage, of each microbatch
    for stage_id, held in step.devices.items():
        if device in held:
            saved = step.costs.stages[stage_id].saved_bytes
            replica_devices = held.size // graph.pipeline_replica_count(stage_id[0])
            place = held.ravel().tolist().index(device) % replica_devices
            bytes_of[stage_id] = saved[:, place // (replica_devices // saved.shape[1])]
            if wgrad := step.costs.stages[stage_id].wgrad:
                for_wgrads[stage_id] = wgrad.saved_bytes[:, place // (replica_devices // saved.shape[1])]
    intervals = []
    for stage_id, replica, number in (
        (n, i, m)
        for n in bytes_of
        for m in range(step.op_graph.microbatches)
        for i in np.argwhere(step.replicas(n, m) == device)[:, 0].tolist()
    ):
        forward, backward, wgrad = (ran.get((kind, stage_id, number)) for kind in COMPUTE_KINDS)
        end = (wgrad or backward or forward).end[replica]
        for target in step.op_graph.stage_graph.targets[stage_id] if backward is None else ():
            shares = overlapping_replicas(len(step.replicas(target, number)), len(step.replicas(stage_id, number)))
            end = max(end, *(ran["forward", target, number].start[j] for j in shares[replica]))
        intervals.append((forward.start[replica], end, bytes_of[stage_id][number]))
        if wgrad is not None:
            intervals.append((backward.start[replica], end, for_wgrads[stage_id][number]))
    moments = [sum(held for start, end, held in intervals if start <= now < end) for now, _, _ in intervals]
    return max(moments, default=0.0) + sum(step.costs.stages[stage_id].static_bytes for stage_id in bytes_of)


@settings(max_examples=15, deadline=None)
@given(step_recipes())
def test_memory_is_the_most_held_at_any_moment(recipe):
    step = build_step(recipe)
    timeline = step.run()
    for lane in timeline.lanes:
        assert timeline.lane_peak_memory(lane) == max(most_held(step, timeline, device) for device in lane.devices)


def test_stages_that_share_devices_add_up_in_memory():
    graph = ring(2, 2)
    everything = frozenset(graph.stages)
    op_graph = OpGraph(stage_graph=graph, microbatches=2, backward_stages=everything, trained_stages=everything)
    ones = np.ones((2, 1))
    static = StaticBytes(weights=60.0, gradients=20.0, optimizer=10.0, gathered=4.0, workspace=3.0, reserved=3.0)
    stage = stage_costs(ones, ones, saved_bytes=10.0 * ones, static=static)
    timeline = simulate_on_devices(
        single_devices(graph), gpipe(op_graph), step_costs(op_graph, dict.fromkeys(graph.stages, stage))
    )
    assert [timeline.lane_peak_memory(lane) for lane in timeline.lanes] == [240.0, 240.0]
    twice = {kind: 2 * held for kind, held in static._asdict().items()}
    assert [timeline.lane_memory(lane) for lane in timeline.lanes] == [twice | {"saved": 40.0}] * 2
    assert [len(lane.stages) for lane in timeline.lanes] == [2, 2]


@pytest.mark.parametrize("parts", [1, 3, 5])
def test_bytes_are_of_replicas_or_equal_parts_of_them(parts):
    held = np.ones((2, parts))
    with pytest.raises(
        ValueError, match=r"StageCosts: the shapes .* of saved_bytes and offloaded_bytes must be one, \[2, 2"
    ):
        stage_costs(np.ones((2, 2)), saved_bytes=held, offloaded_bytes=held)


def shared_and_own() -> Timeline:
    """A unit on device 0 and 1, another on 1, 2 and 3 with a data-parallel size of its own."""
    devices = {("near", 0): np.array([[0, 1]]), ("far", 0): np.array([[1], [2], [3]])}
    graph = StageGraph({n: frozenset(d.ravel().tolist()) for n, d in devices.items()}, ())
    op_graph = OpGraph(stage_graph=graph, microbatches=1, with_update=False)
    zeros = np.zeros((1, 3))
    stages = {
        ("near", 0): stage_costs([[1.0]], flops=np.array([[8.0]])),
        ("far", 0): StageCosts(
            forward=zeros + 3,
            backward=zeros,
            forward_communication=zeros,
            backward_communication=zeros,
            flops=np.array([[2.0, 4.0, 6.0]]),
            saved_bytes=zeros,
            offloaded_bytes=zeros,
        ),
    }
    costs = step_costs(
        op_graph, stages, peak_flops=5.0, tokens=12.0, masked_flops=8.0, recomputed=RecomputedFlops(5.0, 2.0)
    )
    return simulate_on_devices(devices, forward_only(graph, 1), costs)


def test_mfu_counts_allocated_devices_once():
    timeline = shared_and_own()
    assert timeline.step == 4.0
    assert timeline.mfu == 20.0 / (4.0 * 4 * 5.0)
    assert timeline.mfu_whole_squares == 28.0 / (4.0 * 4 * 5.0)
    assert timeline.hfu == 25.0 / (4.0 * 4 * 5.0) and timeline.hfu_whole_squares == 35.0 / (4.0 * 4 * 5.0)
    assert timeline.mfu_by_unit == {"near": 8.0 / (4.0 * 2 * 5.0), "far": 12.0 / (4.0 * 3 * 5.0)}
    assert timeline.tokens_per_second == 3.0
    assert timeline.busy == (2 * 1.0 + 3 * 3.0) / 4


def test_the_summary_is_json_and_holds_the_figures():
    timeline = shared_and_own()
    summary = json.loads(json.dumps(timeline_summary(timeline)))
    assert (summary["step_seconds"], summary["devices"], summary["mfu"]) == (4.0, 4, timeline.mfu)
    assert [(stage["unit"], stage["devices"], stage["replicas"]) for stage in summary["stages"]] == [
        ("near", 2, 1),
        ("far", 3, 3),
    ]
    shares = summary["busy"]["share"] + sum(idle["share"] for idle in summary["idle"].values())
    assert shares == pytest.approx(1.0)
    assert summary["stages"][1]["busy_seconds"] == 3.0
    assert summary["stages"][1]["idle_seconds"]["cool-down"] == pytest.approx(2 / 3)


def test_a_timeline_needs_spans():
    timeline = shared_and_own()
    with pytest.raises(ValueError, match="at least one span"):
        Timeline(timeline.op_graph, timeline.devices, timeline.costs, ())


def test_a_frame_has_every_op_on_every_replica():
    timeline = uneven_timeline()
    frame = timeline.to_frame()
    assert list(frame.columns) == [
        *("kind", "unit", "stage", "microbatch", "target_unit", "target_stage"),
        *("replica", "start", "end", "communication", "beside"),
    ]
    assert len(frame) == sum(len(span.start) for span in timeline.spans) and frame.end.max() == timeline.step
    assert (frame.kind == "hop").sum() == 4 * 4 * 2  # microbatches, edges, replicas of the backbone
    compute = frame[frame.kind.isin(["forward", "backward", "update"])]
    encoder = compute[compute.unit == "encoder"]  # a device each
    busy = (encoder.end - encoder.start - encoder.communication).sum() / 3
    assert busy == pytest.approx(timeline.busy_by_unit["encoder"])
