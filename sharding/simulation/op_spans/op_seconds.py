"""How long ops take by the costs of a step.

The simulator gives these seconds to the recurrence of a schedule.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from sharding.costs.step_costs import StepCosts
from sharding.plans.resolved.stage_graph import StageId
from sharding.schedules.ops import OpKind

ByMicrobatch = Float[np.ndarray, "m i"]

OpSeconds = tuple[ByMicrobatch | float, ByMicrobatch | None]
"""Seconds of an op by microbatch and replica, or on all replicas if it runs once a step, and the seconds among them in
which its devices only wait for other ranks of the unit; None stands for an op that always computes, or, where it is in
a bundle, for a gather or a reduction, which only waits."""

SecondsOfOps = Callable[[OpKind, StageId, StageId], OpSeconds]
"""Called with a kind of op, its stage and its target; gives the seconds of the op on every microbatch."""


def seconds_by_costs(costs: StepCosts) -> SecondsOfOps:
    """The seconds of all ops by the costs of a step."""

    def seconds(kind: OpKind, stage: StageId, target: StageId) -> OpSeconds:
        return _SECONDS[kind](costs, stage, target)

    return seconds


def _forward(costs: StepCosts, stage: StageId, target: StageId) -> OpSeconds:
    return costs.stages[stage].forward, costs.stages[stage].forward_communication


def _backward(costs: StepCosts, stage: StageId, target: StageId) -> OpSeconds:
    """All collectives are in the dgrad; a wgrad is taken to compute all of its time."""
    seconds = costs.stages[stage].of_pass("backward")
    return seconds, np.minimum(costs.stages[stage].backward_communication, seconds)


_SECONDS: dict[OpKind, Callable[[StepCosts, StageId, StageId], OpSeconds]] = {
    "forward": _forward,
    "backward": _backward,
    "wgrad": lambda costs, stage, target: (costs.stages[stage].of_pass("wgrad"), None),
    "hop": lambda costs, stage, target: (costs.hops[stage, target], None),
    "gradient_hop": lambda costs, stage, target: (costs.gradient_hops[target, stage], None),
    "send_tied_weight": lambda costs, stage, target: (0.0, None),
    "send_tied_gradient": lambda costs, stage, target: (0.0, None),
    "gather": lambda costs, stage, target: (costs.stages[stage].gather, None),
    "reduce": lambda costs, stage, target: (costs.stages[stage].reduce, None),
    "update": lambda costs, stage, target: (costs.stages[stage].update, None),
    "global_norm": lambda costs, stage, target: (costs.global_norm, None),
}
