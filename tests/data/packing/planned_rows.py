"""Planners of rows, and rows of an encoder's phase, for tests of packing and of producers."""

from collections.abc import Mapping, Sequence

import grain

from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.packing.grouping.grouping_policies import (
    GROUPING_POLICIES,
    isf_thresholds,
    limited_quantities,
    row_limits,
)
from data.packing.phases.phase_rows import PhaseRows
from data.packing.rows.row_planner import RowPlanner


def row_planner(
    policy: str,
    index: SampleIndex,
    stream: Sequence[int] | grain.MapDataset,
    capacity: RowCapacity,
    *,
    rows: int,
    window: int,
    epoch: int,
    seed: int = 0,
    thresholds: Mapping[str, float] | None = None,
) -> RowPlanner:
    """A planner of rows whose samples are grouped by a policy; a sample that does not fit is left out."""
    limits = row_limits(capacity)
    by_limit = isf_thresholds(limited_quantities(capacity), limits, thresholds or {})
    return RowPlanner(
        sample_stream=stream,
        sample_index=index,
        capacity=capacity,
        rows_per_step=rows,
        window_size=window,
        epoch_length=epoch,
        group_samples=GROUPING_POLICIES[policy].make_algorithm(limits, by_limit, rows),
        form_steps=GROUPING_POLICIES[policy].form_steps,
        seed=seed,
        strict=False,
    )


def vision_rows(rows: int, slots: int, capacities: tuple[int, ...], values_per_slot: int = 4) -> PhaseRows:
    """Rows of a vision encoder's phase."""
    return PhaseRows(
        module="vision",
        unit="vision",
        is_generator=False,
        rows=rows,
        slots=slots,
        capacities=capacities,
        values="patches",
        values_per_slot=values_per_slot,
    )
