"""Checks whether a unit can run a step as one program, or two (`UnitPlan.executor`), for `check_layout`."""

from configs.common.short_repr import shown_fields
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import ModuleGraph


def check_compiled_unit(unit: UnitPlan, schedule: str, graph: ModuleGraph) -> None:
    """Raises PlanError, naming what is at fault, if a unit is to be one program but cannot.

    Args:
        unit: The unit; a dispatched one passes.
        schedule: Name of the plan's schedule.
        graph: The model's modules.
    """
    if not unit.is_compiled:
        return
    where = f'unit {unit.name}: executor "compiled"'
    _check_stages(where, unit)
    _check_module(where, unit, graph)
    if schedule == "colocated":
        raise PlanError(f'{where} with schedule "colocated", which bundles programs; use another schedule')
    if schedule == "zb-h1":
        instead = "interleaved" if unit.parallelism.chunks > 1 else "1f1b"
        raise PlanError(
            f'{where} with schedule "zb-h1", for whose waiting wgrads one program takes tens of GiB; use the schedule '
            f'"{instead}", or the executor "dispatched"'
        )


def _check_stages(where: str, unit: UnitPlan) -> None:
    policies = set(unit.program_recompute(0))
    if len(set(unit.layers)) > 1:
        raise PlanError(
            f"{where} has layers {list(unit.layers)}; give all {unit.stage_count} stages as many, because they are one "
            "program"
        )
    if len(policies) > 1 or "offload" in policies:
        raise PlanError(
            f'{where} has recompute {", ".join(unit.recompute)}; give all layers one policy, and not "offload", '
            "because they are one program whose residuals stay on its devices"
        )
    dispatched_only = shown_fields(unit.schedule_hints)
    if unit.parallelism.pipeline_replicas > 1:
        dispatched_only["pipeline_replicas"] = unit.parallelism.pipeline_replicas
    if dispatched_only:
        key, value = next(iter(dispatched_only.items()))
        raise PlanError(f"{where} has {key} {value}, which is for dispatched programs; leave it out")


def _check_module(where: str, unit: UnitPlan, graph: ModuleGraph) -> None:
    backbone = graph.backbone
    if unit.modules != (backbone.name,):
        raise PlanError(
            f"{where} holds {', '.join(unit.modules)}; only a unit of the backbone alone can be one program"
        )
    early = [layer.name for layer in backbone.leading_layers if layer.name.startswith("early_")]
    if early or backbone.later_runs:
        unlike = [*early, *(layer.name for layer, _ in backbone.stack)]
        raise PlanError(
            f"{where}: the layers of {backbone.name} are unlike ({', '.join(unlike)}), but its stages are one program; "
            'use the executor "dispatched"'
        )
