"""Which share of the work of units on the devices of another makes a step no longer (Optimus, arXiv 2408.03505).

`Timeline.filled_idle` reports this share for simulated steps.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from sharding.costs.step_costs import PER_MICROBATCH, StageCosts, StepCosts, WgradCosts
from sharding.plans.resolved.device_groups import DeviceGroups
from sharding.plans.resolved.stage_graph import StageId
from sharding.schedules.ops import OpGraph, Schedule
from sharding.schedules.recurrence.node_builder import schedule_nodes
from sharding.simulation.idle.filled_idle import COMPUTE, groups_of_op, groups_of_unit, with_partners
from sharding.simulation.op_spans.node_spans import run_schedule
from sharding.simulation.op_spans.op_seconds import seconds_by_costs
from sharding.simulation.op_spans.spans import Span


def scheduling_efficiency(
    devices: Mapping[StageId, Int[np.ndarray, "_ _"]],
    op_graph: OpGraph,
    spans: Sequence[Span],
    costs: StepCosts,
    groups: DeviceGroups,
    unit: str,
    others: tuple[str, ...],
    rendezvous: bool,
) -> float:
    """Which share of the others' work on a unit's devices makes the step no longer.

        1 - (step - step in the same order if the others took no time) * devices / device-seconds of the others

    from 0 to 1; 1 if the others have no work. The work consists of their forwards, backwards, wgrads and updates, with
    the waits for collectives that nothing computes beside.

    Args:
        devices: Devices of every stage, as [pipeline replicas * replicas, ranks of a replica].
        op_graph: The ops.
        spans: When each ran, simulated with the costs.
        costs: Seconds of the ops.
        groups: The devices.
        unit: The unit.
        others: Units that share its devices.
        rendezvous: Whether hops occupied the devices of both their ends.
    """
    unit_groups, work = groups_of_unit(groups, unit), np.zeros(len(groups.sizes))
    for span in spans:
        if span.op.unit in others and span.op.kind in COMPUTE:
            rows, is_first = groups_of_op(groups, op_graph.stage_graph, span.op)
            np.add.at(work, rows, span.own_seconds[:, None] * is_first)
    schedule = Schedule(
        op_graph,
        tuple(span.op for span in spans),
        frozenset(partner.op for span, partner in with_partners(spans) if partner is not None),
    )
    nodes = schedule_nodes(devices, schedule, rendezvous)
    alone = run_schedule(nodes, seconds_by_costs(without_units(costs, others)))
    steps = [max(float(span.end.max()) for span in step_spans) for step_spans in (spans, alone)]
    device_seconds = float((work[unit_groups] * groups.sizes[unit_groups]).sum())
    if not device_seconds:
        return 1.0
    longer = (steps[0] - steps[1]) * float(groups.sizes[unit_groups].sum())
    return min(1.0, max(0.0, 1.0 - longer / device_seconds))


def without_units(costs: StepCosts, units: Sequence[str]) -> StepCosts:
    """The costs of a step in which all ops of some units, and the hops to and from them, take no time."""
    stages = {
        stage: _without_seconds(stage_costs) if stage[0] in units else stage_costs
        for stage, stage_costs in costs.stages.items()
    }
    hops, back = (
        {
            edge: np.zeros_like(seconds) if any(stage[0] in units for stage in edge) else seconds
            for edge, seconds in hop_seconds.items()
        }
        for hop_seconds in (costs.hops, costs.gradient_hops)
    )
    return dataclasses.replace(costs, stages=stages, hops=hops, gradient_hops=back)


def _without_seconds(costs: StageCosts) -> StageCosts:
    """Returns a stage's costs with zero seconds for all its ops."""
    once = dict.fromkeys(("gather", "reduce", "update"), 0.0)
    passes = {name: np.zeros_like(getattr(costs, name)) for name in PER_MICROBATCH[:4]}
    wgrad = costs.wgrad and WgradCosts(np.zeros_like(costs.wgrad.seconds), costs.wgrad.saved_bytes)
    return dataclasses.replace(costs, **once, **passes, wgrad=wgrad)
