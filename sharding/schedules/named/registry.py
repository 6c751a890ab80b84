"""The schedules that a plan can name: the built-in ones, and the ones that a user registers."""

import dataclasses
from collections.abc import Callable, Mapping

from configs.common.errors import UserError
from sharding.plans.plan_error import PlanError
from sharding.schedules.colocation.colocated import colocated, colocated_in_flight
from sharding.schedules.in_flight import InFlightLimits
from sharding.schedules.interleaved_1f1b import interleaved, interleaved_in_flight
from sharding.schedules.one_f_one_b import gpipe, gpipe_in_flight, one_f_one_b, one_f_one_b_in_flight
from sharding.schedules.ops import OpGraph, Schedule
from sharding.schedules.zero_bubble import zero_bubble, zero_bubble_in_flight


@dataclasses.dataclass(frozen=True)
class SchedulePolicy:
    """A named schedule.

    Attributes:
        order: Orders the ops of a pass, given how many microbatches each pipeline rank may hold at once.
        max_in_flight: How many these are where the plan allows no more (`ScheduleHints.extra_microbatches`).
        reads_seconds: Whether the order may depend on the seconds of stages.
        splits_backward: Whether gradients of weights are ops of their own (`OpGraph.split_stages`), apart from what a
            stage sends back.
        bundles: Whether an op may run in one program with the op before it (`Schedule.bundled`).
    """

    order: Callable[[OpGraph, InFlightLimits], Schedule]
    max_in_flight: Callable[[OpGraph], InFlightLimits]
    reads_seconds: bool = True
    splits_backward: bool = False
    bundles: bool = True


BUILT_IN_SCHEDULES: Mapping[str, SchedulePolicy] = {
    "gpipe": SchedulePolicy(gpipe, gpipe_in_flight, reads_seconds=False, bundles=False),
    "1f1b": SchedulePolicy(one_f_one_b, one_f_one_b_in_flight, reads_seconds=False, bundles=False),
    "interleaved": SchedulePolicy(interleaved, interleaved_in_flight, bundles=False),
    "zb-h1": SchedulePolicy(
        zero_bubble, zero_bubble_in_flight, reads_seconds=False, splits_backward=True, bundles=False
    ),
    "colocated": SchedulePolicy(colocated, colocated_in_flight),
}

_schedules = dict(BUILT_IN_SCHEDULES)


def register_schedule(
    name: str,
    order: Callable[[OpGraph, InFlightLimits], Schedule],
    max_in_flight: Callable[[OpGraph], InFlightLimits],
    *,
    splits_backward: bool = False,
) -> None:
    """Registers a schedule, so that plans can name it; a name of one's own may be registered again.

    Every process of a run calls both functions, so they must depend on their arguments alone.

    Args:
        name: Value of `Plan.schedule`.
        order: Orders the ops of a training step within the limits that it gets, for instance by
            `sharding.schedules.list_scheduling.list_schedule`. The order is checked before anything runs
            (`sharding/schedules/checks.py`).
        max_in_flight: How many microbatches each pipeline rank must be able to hold at once; a plan may add to that
            (`ScheduleHints.extra_microbatches`).
        splits_backward: Whether the order has an op `wgrad` for every stage and microbatch of `OpGraph.split_stages`,
            which holds the microbatch until then; such a stage's backward computes only what is sent back.

    Raises:
        UserError: A built-in schedule has this name.
    """
    if name in BUILT_IN_SCHEDULES:
        raise UserError(f"the schedule {name!r} is built in; register yours under another name")
    _schedules[name] = SchedulePolicy(order, max_in_flight, splits_backward=splits_backward)


def find_schedule(name: str) -> SchedulePolicy:
    """Returns the schedule of this name; raises PlanError, which lists the known ones, for an unknown name."""
    if name not in _schedules:
        raise PlanError(
            f"the plan's schedule is {name!r}; choose from {', '.join(_schedules)}, "
            "or import the file that registers it (mmjax.register_schedule)"
        )
    return _schedules[name]
