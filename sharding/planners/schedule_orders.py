"""Schedules of plans, with their orders of ops cached: many plans of a search differ only in the costs of their ops."""

from sharding.plans.parallelism import Parallelism
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.named.build import build_schedule, training_op_graph
from sharding.schedules.ops import PipelineOp, Schedule


class ScheduleOrders:
    """Makes schedules; plans whose stages are alike and on devices of their own share the order of ops."""

    def __init__(self) -> None:
        self._known: dict[tuple, tuple[PipelineOp, ...]] = {}

    def schedule(self, resolved: ResolvedPlan) -> Schedule:
        """The schedule of a plan."""
        plan, trained = resolved.plan, resolved.trained_stages
        if plan.shares_devices:
            return build_schedule(resolved, trained)
        key = (plan.schedule, plan.microbatches, tuple(map(_order_key, plan.units)))
        if key not in self._known:
            self._known[key] = build_schedule(resolved, trained).ops
        return Schedule(training_op_graph(resolved, trained), self._known[key])


def _order_key(unit: UnitPlan) -> tuple:
    """Returns a key that is equal for units on their own devices whose ops have the same order."""
    pipeline = Parallelism(chunks=unit.parallelism.chunks, pipeline_replicas=unit.parallelism.pipeline_replicas)
    return unit.name, unit.modules, unit.layers, pipeline, unit.executor, unit.schedule_hints
