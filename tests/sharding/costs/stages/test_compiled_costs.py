"""What a unit of one program costs: ticks as long as their slowest op, after its inputs and before its gradients."""

import dataclasses

import numpy as np
import pytest

from sharding.costs.batch_costs import BatchCosts
from sharding.costs.stages.compiled_costs import lockstep_sums
from sharding.costs.stages.plan_costs import plan_costs
from sharding.plans.plan import Plan
from sharding.plans.trained_parts import trained_parts, trained_stages
from sharding.plans.unit_plan import ExecutorName, UnitPlan
from sharding.schedules.lockstep import tick_table
from sharding.schedules.named.build import build_schedule
from sharding.simulation.simulator import simulate
from sharding.specs.modules import module_graph
from tests.sharding.costs.stages.test_plan_costs import COSTS, MODEL, ROWS

TEXT = dataclasses.replace(MODEL, generators=())
GRAPH = module_graph(TEXT)
BATCH = BatchCosts(GRAPH, COSTS, ROWS)
ALL = trained_parts(GRAPH, ("all",))


def plan(executor: ExecutorName, chunks: int = 1, dp: int = 1) -> Plan:
    devices = tuple(range(2, 2 + 2 * dp))
    layers = (2 // chunks,) * (2 * chunks)
    backbone = UnitPlan(
        "backbone",
        ("backbone",),
        devices,
        dp=dp,
        layers=layers,
        recompute=("none",) * len(layers),
        chunks=chunks,
        executor=executor,
    )
    return Plan((UnitPlan("vision", ("vision",), (0, 1), dp=2, layers=(3,)), backbone), 2, "interleaved")


def test_a_tick_lasts_as_long_as_its_slowest_forward_and_its_slowest_backward():
    unit = dataclasses.replace(plan("compiled").units[1], dp=1)
    chunk = {
        name: np.array([[1.0], [10.0]])
        for name in ("forward", "backward", "forward_communication", "backward_communication")
    }
    chunk |= {"flops": np.ones((2, 1)), "saved_bytes": np.array([[5.0], [6.0]]), "offloaded_bytes": np.zeros((2, 1))}
    around = {name: np.full((2, 1), 0.5) for name in chunk}
    sums = lockstep_sums(chunk, around, unit)
    # F0; F1 F0 B0; F1 B1 B0; B1: of each tick the longest forward, and the longest backward.
    assert sums["forward"].tolist() == [[0.0], [(1 + 10 + 10) + (1 + 10 + 10) + 4 * 0.5]]
    assert not sums["backward"].any()
    assert sums["flops"].tolist() == [[2.5], [2.5]]
    table = tick_table(2, 1, 2)
    assert sums["saved_bytes"].sum() == table.residuals.size * 6.0


@pytest.mark.parametrize(("chunks", "dp"), [(1, 1), (2, 2)])
def test_a_compiled_unit_runs_between_the_encoders_forwards_and_backwards(chunks, dp):
    compiled, dispatched = plan("compiled", chunks, dp), plan("dispatched", chunks, dp)
    timelines = {}
    for each in (compiled, dispatched):
        costs = plan_costs(each, BATCH, ALL)
        schedule = build_schedule(each, GRAPH, trained_stages(each, GRAPH, ALL))
        timelines[each.units[1].executor] = simulate(each, schedule, costs)
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
    assert [len(of_timeline) for of_timeline in lanes] == [1, 2]
    held = [max(each.lane_peak_memory(lane) for lane in of) for each, of in zip((step, apart), lanes, strict=True)]
    assert 0.5 < held[0] / held[1] < 2
    assert step.summary().keys() == apart.summary().keys() and step.mfu < apart.mfu
