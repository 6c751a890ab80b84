"""Steps of plans with the rows of each grouping, as they are packed and reordered, and the choice among them.

Rows have static shapes, so programs compute all positions of a row, filled or not: the simulated steps here do too.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mmjax.planning.samples.sample_rows import SampleRows
from sharding.balancing.reordering.row_reorderer import RowReorderer
from sharding.balancing.reordering.step_replays import RowPermutation
from sharding.costs.batch_costs import LoadsByModule
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.plans.plan import Plan
from sharding.schedules.ops import ScheduleError
from sharding.specs.layers.layer import LoadColumn

AS_PACKED = "none"
"""Name of the reordering policy (`TrainConfig.reordering`) that keeps rows in the order in which they are packed."""

REORDERINGS = ("both", "intra_microbatch")
"""Reordering policies in order of preference: both of DistTrain's, or, where microbatches run in lockstep, one."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SimulatedGrouping:
    """The steps of a plan with the rows of the grouping that it was made for.

    Attributes:
        rows: The rows.
        reordering: Policy that orders the rows of a step (`TrainConfig.reordering`).
        samples: Samples of the mean length that all these steps hold: that their lengths are drawn longer or shorter
            says nothing of a grouping.
        seconds: Seconds of all these steps, if all positions of a row are computed.
        seconds_of_loads: The same if only the positions are computed that samples use, as in a plan's own step.
        steps: Number of the steps.
    """

    rows: SampleRows
    reordering: str
    samples: float
    seconds: float
    seconds_of_loads: float
    steps: int

    @property
    def name(self) -> str:
        """The grouping and the reordering in words."""
        return self.rows.grouping + ("" if self.reordering == AS_PACKED else f", reordered by {self.reordering}")

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step."""
        return self.seconds / self.steps

    @property
    def samples_per_second(self) -> float:
        """Samples a second of steps that compute all positions of a row."""
        return self.samples / self.seconds

    @property
    def samples_per_second_of_loads(self) -> float:
        """Samples a second of steps that compute the positions that samples use."""
        return self.samples / self.seconds_of_loads

    @property
    def backbone_fill(self) -> float:
        """Share of the positions of the backbone's rows that samples use."""
        return self.rows.fill[self.rows.backbone]

    @property
    def reordering_gin(self) -> tuple[str, ...]:
        """Lines of a gin file by which a training run orders rows so; none for rows as they are packed."""
        return () if self.reordering == AS_PACKED else (f"config.TrainConfig.reordering = {self.reordering!r}",)


@dataclasses.dataclass(frozen=True, eq=False)
class GroupingComparison:
    """Steps with the rows of several groupings, each of a plan for its rows.

    Attributes:
        policy: Planning policy of the plans.
        simulated: The steps.
        reasons: Why there is no plan, by grouping without one.
    """

    policy: str
    simulated: tuple[SimulatedGrouping, ...]
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def choice(self) -> SimulatedGrouping:
        """The grouping with the most samples a second; of those within `STEP_SLACK` of it, the fullest rows.

        Of equally full ones, rows in the order in which they are packed.
        """
        most = max(grouping.samples_per_second for grouping in self.simulated)
        tied = [one for one in self.simulated if one.samples_per_second >= most / (1 + STEP_SLACK)]
        return max(tied, key=lambda one: (one.backbone_fill, one.reordering == AS_PACKED))


class GroupedPlan(NamedTuple):
    """A plan for the rows of a grouping.

    Attributes:
        problem: The problem for which it was made.
        plan: The plan.
        rows: The rows.
    """

    problem: PlanningProblem
    plan: Plan
    rows: SampleRows


def simulated_groupings(plans: Sequence[GroupedPlan]) -> tuple[SimulatedGrouping, ...]:
    """Simulates steps of each plan with the rows of its grouping, as they are packed and reordered for the plan."""
    length = _mean_length([rows for _, _, rows in plans])
    return tuple(one for grouped in plans for one in _simulated(grouped, length))


def _mean_length(groupings: Sequence[SampleRows]) -> float:
    """Backbone tokens of the mean sample, over the rows of all groupings."""
    loads = np.concatenate([rows.statistics.loads[rows.backbone] for rows in groupings])
    return float(loads[:, LoadColumn.TOKENS].sum() / loads[:, LoadColumn.ITEMS].sum())


def _simulated(grouped: GroupedPlan, mean_length: float) -> list[SimulatedGrouping]:
    problem, plan, rows = grouped
    packed = rows.batches
    tokens = sum(float(batch[rows.backbone][:, LoadColumn.TOKENS].sum()) for batch in packed)
    return [
        SimulatedGrouping(
            rows=rows,
            reordering=reordering,
            samples=tokens / mean_length,
            seconds=sum(problem.simulate(plan, rows=_whole(batch, plan, rows)).step for batch in batches),
            seconds_of_loads=sum(problem.simulate(plan, rows=batch).step for batch in batches),
            steps=len(batches),
        )
        for reordering, batches in ({AS_PACKED: packed} | _reordered(problem, plan, packed)).items()
    ]


def _reordered(
    problem: PlanningProblem, plan: Plan, batches: Sequence[LoadsByModule]
) -> dict[str, Sequence[LoadsByModule]]:
    """The rows of batches in the order of the first of `REORDERINGS` that the plan allows; empty if it allows none."""
    for policy in REORDERINGS:
        reorderer = RowReorderer(problem.resolve(plan), problem.costs, policy, rendezvous=problem.rendezvous)
        with contextlib.suppress(ScheduleError):
            return {policy: [_in_order(batch, reorderer.row_order(batch)) for batch in batches]}
    return {}


def _in_order(batch: LoadsByModule, order: RowPermutation) -> LoadsByModule:
    return {module: loads[order] for module, loads in batch.items()}


def _whole(batch: LoadsByModule, plan: Plan, rows: SampleRows) -> LoadsByModule:
    """The loads if all positions of a row are computed; rows of a module's own have their capacities in the plan."""
    whole = dict(batch)
    for name, positions in rows.positions.items():
        if not plan.unit_of(name).phase_rows:
            whole[name] = batch[name].copy()
            whole[name][:, LoadColumn.TOKENS] = positions
    return whole
