"""How long ops and bundles take by the costs of a step."""

from collections.abc import Callable

import numpy as np

from sharding.costs.step_costs import StepCosts
from sharding.schedules.ops import OpKind, PipelineOp
from sharding.simulation.bundles import BundleClock, BundledOp, bundle_spans
from sharding.simulation.schedule_replay import OpClock, Seconds
from sharding.simulation.spans import Span


def cost_clock(costs: StepCosts) -> OpClock:
    """Ops start as soon as they can, and take the seconds of these costs."""

    def run(op: PipelineOp, start: Seconds) -> Span:
        seconds, communication = _DURATIONS[op.kind](costs, op)
        return Span(op, start, start + seconds, np.zeros_like(start) if communication is None else communication)

    return run


def cost_bundle_clock(costs: StepCosts) -> BundleClock:
    """Bundles start as soon as they can, and hide what they can of these costs (`bundle_spans`)."""

    def run(ops: tuple[BundledOp, BundledOp], start: Seconds) -> tuple[Span, Span]:
        seconds, communication = [], []
        for op, part in ops:
            of_op, waits = _DURATIONS[op.kind](costs, op)
            seconds.append(np.broadcast_to(of_op, part.shape))
            communication.append(seconds[-1] if waits is None else waits)  # a gather or a reduction only waits
        return bundle_spans(ops, start, seconds, communication)

    return run


_Duration = tuple[Seconds | float, Seconds | None]
"""Seconds of an op, and those among them in which its devices wait for other ranks of the unit; None for none."""


def _forward(costs: StepCosts, op: PipelineOp) -> _Duration:
    stage = costs.stages[op.stage_id]
    return stage.forward[op.microbatch], stage.forward_communication[op.microbatch]


def _backward(costs: StepCosts, op: PipelineOp) -> _Duration:
    """What is sent back takes part in the collectives; a wgrad is taken to compute all of its time."""
    stage = costs.stages[op.stage_id]
    seconds = stage.of_pass("backward")[op.microbatch]
    return seconds, np.minimum(stage.backward_communication[op.microbatch], seconds)


def _wgrad(costs: StepCosts, op: PipelineOp) -> _Duration:
    return costs.stages[op.stage_id].of_pass("wgrad")[op.microbatch], None


_DURATIONS: dict[OpKind, Callable[[StepCosts, PipelineOp], _Duration]] = {
    "forward": _forward,
    "backward": _backward,
    "wgrad": _wgrad,
    "hop": lambda costs, op: (costs.hops[op.stage_id, op.target_id][op.microbatch], None),
    "gradient_hop": lambda costs, op: (costs.gradient_hops[op.target_id, op.stage_id][op.microbatch], None),
    "send_tied_weight": lambda costs, op: (0.0, None),
    "send_tied_gradient": lambda costs, op: (0.0, None),
    "gather": lambda costs, op: (costs.stages[op.stage_id].gather, None),
    "reduce": lambda costs, op: (costs.stages[op.stage_id].reduce, None),
    "update": lambda costs, op: (costs.stages[op.stage_id].update, None),
    "global_norm": lambda costs, op: (costs.global_norm, None),
}
