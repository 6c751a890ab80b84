"""The layouts that `python -m mmjax.verify` compares by default: every kind of division that a model allows.

`layout_table.py` lists the kinds; `configured_run.py` takes the layouts that a configuration allows.
"""

from mmjax.training.verification.layouts.divided_plans import GlobalRows
from mmjax.training.verification.layouts.layout_kinds import LayoutKind, NamedLayout
from mmjax.training.verification.layouts.layout_table import (
    EXPERT_LAYOUT_KINDS,
    GENERATOR_LAYOUT_KINDS,
    LAYOUT_KINDS,
)
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.specs.modules import ModuleGraph


def default_layouts(graph: ModuleGraph, rows: GlobalRows, devices: int) -> tuple[list[NamedLayout], dict[str, str]]:
    """Makes one layout of every kind for a model, and gives the reason for each kind that is impossible.

    Args:
        graph: The model's modules.
        rows: Rows of the global batch.
        devices: Number of available devices.
    """
    layouts, refused = [], {}
    for kind, alternatives in kinds_for(graph).items():
        for make in alternatives(graph, rows):
            try:
                layout = make()
                resolve_plan(layout.plan, graph, devices, rows.count)
            except PlanError as error:
                refused[kind] = str(error)
                continue
            layouts.append(layout)
            refused.pop(kind, None)
            break
    return layouts, refused


def kinds_for(graph: ModuleGraph) -> dict[str, LayoutKind]:
    """Returns the kinds of layouts for a model, some only for models with experts or a generator that can be cut."""
    generators = [module for module in graph.modules if module.inputs and not module.is_backbone]
    return (
        LAYOUT_KINDS
        | (EXPERT_LAYOUT_KINDS if any(module.expert_count for module in graph.modules) else {})
        | (GENERATOR_LAYOUT_KINDS if any(module.divisible for module in generators) else {})
    )
