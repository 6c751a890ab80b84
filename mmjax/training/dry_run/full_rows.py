"""Loads of rows that are full, as programs compute them whatever a row holds."""

from collections.abc import Mapping

import numpy as np

from data.packing.phases.phase_rows import PhaseRows, RowValues
from sharding.costs.batch_costs import LoadsByModule
from sharding.costs.own_rows import item_values
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.specs.layers.layer import LoadColumn, Loads
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph
from sharding.specs.row_load_statistics import RowLoadStatistics


def full_microbatch(
    resolved: ResolvedPlan,
    data: RowLoadStatistics,
    rows: int,
    values: Mapping[str, RowValues],
    phases: Mapping[str, PhaseRows],
    capacity: int,
) -> dict[str, Loads]:
    """By module, the load of a microbatch whose rows are full, of items of the mean size.

    Args:
        resolved: The plan.
        data: Loads of rows, from which the mean sizes of items come.
        rows: Rows of a microbatch of the global batch.
        values: By module, the values that such a row holds.
        phases: The modules with rows of their own.
        capacity: Number of the capacity of such rows; the largest where there are fewer.
    """
    loads = {}
    for module in resolved.graph.modules:
        held = rows * values[module.name].count
        if phase := phases.get(module.name):
            held = phase.rows * phase.values_per_slot * phase.capacities[min(capacity, len(phase.capacities) - 1)]
        loads[module.name] = _holding(held, module, data.mean_load(module.name))
    return loads


def full_rows(
    graph: ModuleGraph, rows: LoadsByModule, values: Mapping[str, RowValues], phases: Mapping[str, PhaseRows]
) -> LoadsByModule:
    """The rows of a global batch, full in every module that has no rows of its own, whose capacities count already.

    Args:
        graph: The modules.
        rows: Loads of the rows.
        values: By module, the values that a row holds.
        phases: The modules with rows of their own.
    """
    return {
        module.name: rows[module.name]
        if module.name in phases
        else np.tile(
            _holding(values[module.name].count, module, rows[module.name].mean(axis=0)), (len(rows[module.name]), 1)
        )
        for module in graph.modules
    }


def _holding(held: float, module: ModuleSpec, mean: Loads) -> Loads:
    """A load of so many values, of items of the mean size."""
    of_mean = float(mean[LoadColumn.TOKENS] if module.is_backbone else item_values(mean[None], module)[0])
    return mean * (held / of_mean if of_mean else 0.0)
