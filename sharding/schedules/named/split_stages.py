"""Which stages leave the gradients of their weights for later, in schedules that fill bubbles with these."""

from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.schedules.named.registry import find_schedule


def split_stages(resolved: ResolvedPlan, trained: frozenset[StageId]) -> frozenset[StageId]:
    """The stages whose wgrad is an op of its own: if the schedule says so, all that train and send a gradient back.

    A compiled unit is one op, which computes all gradients.

    Args:
        resolved: The plan.
        trained: The stages with parameters that train.

    Raises:
        PlanError: Of a unit that is cut into stages, some send a gradient back and train nothing.
    """
    plan, stages = resolved.plan, resolved.stages
    if not find_schedule(plan.schedule).splits_backward:
        return frozenset()
    sends_back = stages.with_descendants(frozenset(target for stage in trained for target in stages.targets[stage]))
    for unit in plan.units:
        unit_stages = [stage for stage in stages.stages if stage[0] == unit.name]
        frozen = [number for _, number in unit_stages if (unit.name, number) in sends_back - trained]
        if len(unit_stages) > 1 and frozen:
            instead = "interleaved" if unit.parallelism.chunks > 1 else "1f1b"
            raise PlanError(
                f"schedule {plan.schedule!r} splits backwards, but {len(frozen)} of the {unit.stage_count} stages of "
                f"unit {unit.name} ({', '.join(map(str, frozen))}) train nothing, so that they have no gradients of "
                f'weights to leave for later; use the schedule "{instead}", or train parts of these stages too'
            )
    return (trained & sends_back) - stages.compiled
