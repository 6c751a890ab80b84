"""What a unit of one program costs: ticks as long as their slowest op, after its inputs and before its gradients."""

import dataclasses

import numpy as np
import pytest

from sharding.costs.batch_costs import BatchCosts
from sharding.costs.stages.compiled_costs import CompiledSums, lockstep_sums
from sharding.costs.stages.plan_costs import plan_costs, unit_costs
from sharding.costs.stages.plan_work import plan_work
from sharding.planners.step_bound import least_step_seconds
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.plans.unit_plan import ExecutorName
from sharding.schedules.lockstep import tick_table
from sharding.schedules.named.build import build_schedule
from sharding.simulation.pages.html_page import html_page
from sharding.simulation.simulator import simulate
from sharding.simulation.summary import timeline_summary
from sharding.simulation.timeline import Timeline
from sharding.specs.modules import module_graph
from tests.sharding.costs.stages.test_plan_costs import COSTS, MODEL, ROWS
from tests.unit_plans import changed_unit, module_unit

TEXT = dataclasses.replace(MODEL, generators=())
GRAPH = module_graph(TEXT)
BATCH = BatchCosts(GRAPH, COSTS, ROWS)
ALL = trained_parts(GRAPH, ("all",))


def plan(executor: ExecutorName, chunks: int = 1, dp: int = 1) -> Plan:
    devices = tuple(range(2, 2 + 2 * dp))
    layers = (2 // chunks,) * (2 * chunks)
    backbone = module_unit("backbone", devices, layers=layers, executor=executor, dp=dp, chunks=chunks)
    return Plan(
        (module_unit("vision", (0, 1), layers=(3,), dp=2), backbone),
        2,
        "interleaved",
    )


def sums() -> CompiledSums:
    """Chunks of two microbatches, one of which takes ten times as long; activations of 3 and 2 bytes."""
    chunk = {
        name: np.array([[1.0], [10.0]])
        for name in ("forward", "backward", "forward_communication", "backward_communication")
    }
    chunk |= {"flops": np.ones((2, 1)), "saved_bytes": np.array([[5.0], [6.0]]), "offloaded_bytes": np.zeros((2, 1))}
    before, behind = ({name: np.full((2, 1), value) for name in chunk} for value in (0.25, 0.5))
    return CompiledSums(chunk, before, behind, np.array([[3.0], [2.0]]))


def test_a_tick_lasts_as_long_as_its_slowest_forward_and_its_slowest_backward():
    fields = lockstep_sums(sums(), plan("compiled").units[1], "1f1b")
    # F0; F1 F0 B0; F1 B1 B0; B1: of each tick the longest forward, and the longest backward.
    assert fields["forward"].tolist() == [[0.0], [(1 + 10 + 10) + (1 + 10 + 10) + 4 * 0.25 + 4 * 0.5]]
    assert not fields["backward"].any()
    assert fields["flops"].tolist() == [[2 + 0.75], [2 + 0.75]]
    table = tick_table(2, 1, 2)
    assert fields["saved_bytes"].sum() == table.residuals.size * 6.0 + (table.inputs.size + table.gradients.size) * 3.0


def test_backwards_of_a_program_of_their_own_count_as_the_last_of_them():
    """What is behind the stack runs both ways with the forwards; each rank keeps what left it of one microbatch."""
    fields = lockstep_sums(sums(), plan("compiled").units[1], "gpipe")
    # F0; F1 F0; F1 | B0; B1 B0; B1
    assert fields["forward"].tolist() == [[0.0], [1 + 10 + 10 + 2 * 0.25 + 4 * 0.5]]
    assert fields["backward"].tolist() == [[0.0], [1 + 10 + 10 + 2 * 0.25]]
    table = tick_table(2, 1, 2, "gpipe")
    assert (table.residuals.size, table.inputs.size, table.kept_size) == (2, 2, 1)
    assert fields["saved_bytes"].sum() == 2 * 6.0 + (2 + table.gradients.size + 2 * 1) * 3.0


@pytest.mark.parametrize(("chunks", "dp"), [(1, 1), (2, 2)])
def test_a_compiled_unit_runs_between_the_encoders_forwards_and_backwards(chunks, dp):
    compiled, dispatched = plan("compiled", chunks, dp), plan("dispatched", chunks, dp)
    timelines = {}
    for executed in (compiled, dispatched):
        resolved = ResolvedPlan(executed, GRAPH, ALL)
        schedule = build_schedule(resolved, resolved.trained_stages)
        timelines[executed.units[1].executor] = simulate(resolved, schedule, plan_costs(resolved, BATCH))
    step, apart = timelines["compiled"], timelines["dispatched"]
    assert step.costs.flops == pytest.approx(apart.costs.flops)
    spans = {(span.op.kind, *span.op.stage_id, span.op.microbatch): span for span in step.spans}
    program = spans["forward", "backbone", 0, 1]
    assert len(program.end) == dp
    for number in range(2):
        assert (spans["hop", "vision", 0, number].end <= program.start.max()).all()
        assert (spans["backward", "vision", 0, number].start >= program.end.min()).all()
    assert step.step > apart.step  # the encoder waits
    lanes = [timeline.lanes_of_units["backbone"] for timeline in (step, apart)]
    assert [len(rank_lanes) for rank_lanes in lanes] == [1, 2]
    held = [
        max(timeline.lane_peak_memory(lane) for lane in rank_lanes)
        for timeline, rank_lanes in zip((step, apart), lanes, strict=True)
    ]
    assert 0.5 < held[0] / held[1] < 2
    assert timeline_summary(step).keys() == timeline_summary(apart).keys() and step.mfu < apart.mfu


@pytest.mark.parametrize("fields", [{}, {"fsdp": 2}, {"cp": 2, "dp": 1}], ids=["dp", "fsdp", "cp"])
def test_replicas_of_a_pipeline_rank_may_be_on_any_devices(fields):
    """Devices are listed by pipeline rank: the replicas of the first are on the first two."""

    def once_per_step(*devices):
        unit = changed_unit(plan("compiled", dp=2).units[1], devices=devices, **fields)
        (costs,) = unit_costs(unit, 2, BATCH, ALL)
        communication = costs.forward_communication + costs.backward_communication
        return costs.gather + costs.reduce + float(communication.sum())

    per_node = COSTS.devices_per_node
    together = once_per_step(0, 1, 2, 3)
    assert once_per_step(0, 2, 1, 3) == pytest.approx(together)
    assert once_per_step(0, 1, per_node, per_node + 1) == pytest.approx(together)
    assert once_per_step(0, per_node, 1, per_node + 1) > together
    assert once_per_step(0, 1, 2, per_node) > together  # of the second rank


def with_generator(executor: ExecutorName, schedule: str = "1f1b", device: int = 4) -> Plan:
    vision, backbone = plan(executor).units
    return Plan((vision, backbone, module_unit("generator", (device,))), 2, schedule)


def simulated(simulated_plan: Plan, trainable: str = "all") -> Timeline:
    graph = module_graph(MODEL)
    resolved = ResolvedPlan(simulated_plan, graph, trained_parts(graph, (trainable,)))
    schedule = build_schedule(resolved, resolved.trained_stages)
    return simulate(resolved, schedule, plan_costs(resolved, BatchCosts(graph, COSTS, ROWS)))


def test_a_generator_waits_for_the_program_of_forwards_and_the_program_of_backwards_for_it():
    step, apart = (simulated(with_generator(executor)) for executor in ("compiled", "dispatched"))
    assert step.costs.flops == pytest.approx(apart.costs.flops)
    spans = {(span.op.kind, *span.op.stage_id, span.op.microbatch): span for span in step.spans}
    forwards, backwards = (spans[kind, "backbone", 0, 1] for kind in ("forward", "backward"))
    assert (forwards.end > forwards.start).all() and (backwards.end > backwards.start).all()
    for number in range(2):
        assert (spans["hop", "vision", 0, number].end <= forwards.start).all()
        assert (spans["forward", "generator", 0, number].start >= forwards.end).all()
        assert (spans["gradient_hop", "generator", 0, number].end <= backwards.start).all()
        assert (spans["backward", "vision", 0, number].start >= backwards.end).all()
    graph = module_graph(MODEL)
    work = plan_work(
        ResolvedPlan(with_generator("compiled"), graph, trained_parts(graph, ("all",))), BatchCosts(graph, COSTS, ROWS)
    )
    assert least_step_seconds(step.op_graph, work) <= step.step
    assert apart.step < step.step
    drawn = ["in the place of its last microbatch" in html_page(timeline, "A step") for timeline in (step, apart)]
    assert drawn == [True, False]


def test_it_holds_all_microbatches_until_its_backwards_end():
    """Also while the last microbatch is in a generator on its devices, after the gradients of others have come."""
    step = simulated(with_generator("compiled", device=2))
    backbone, generator = (step.costs.stages[unit, 0] for unit in ("backbone", "generator"))
    held = backbone.static_bytes + generator.static_bytes + backbone.saved_bytes.sum() + generator.saved_bytes.max()
    (lane,) = step.lanes_of_units["generator"]
    assert step.lane_peak_memory(lane) == pytest.approx(held)


def test_where_only_a_generator_trains_there_is_a_program_of_forwards():
    step = simulated(with_generator("compiled"), "generator")
    backbone = step.costs.stages["backbone", 0]
    assert (backbone.forward[-1] > 0).all() and not backbone.forward[:-1].any() and not backbone.backward.any()
    everything = simulated(with_generator("compiled")).costs.stages["backbone", 0]
    assert backbone.forward[-1] < everything.forward[-1]  # without the backward of the losses
