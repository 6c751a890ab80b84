"""Layouts of the backbone on all devices, by an estimate of the step with the other modules in its idle time.

The policy `colocated` enumerates these layouts.
"""

import bisect
import dataclasses
import math

import numpy as np
from jaxtyping import Int

from sharding.planners.layouts.placement import make_unit
from sharding.planners.problem import PlanningProblem
from sharding.planners.tables.module_table import ModuleTable
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy

_MOST_ROWS = 16  # of a replica's microbatch
_FEWER_CHUNKS = 0.01  # share by which fewer chunks may take longer: hops, and ops to order, are fewer


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneLayout:
    """A layout of the backbone.

    Attributes:
        tp: Tensor ranks of a replica.
        pp: Pipeline ranks.
        chunks: Virtual stages of a pipeline rank.
        dp: Replicas.
        rows: Rows of a replica's microbatch.
        microbatches: Microbatches of a step.
        layers: Layers of each virtual stage.
        recompute: Their recomputation policy.
        work: Seconds of all its forwards and backwards on the devices of the slowest rank.
        alone: These seconds with filling and draining its pipeline: the step of the backbone alone.
        peak_bytes: Bytes on a device of its fullest rank.
    """

    tp: int
    pp: int
    chunks: int
    dp: int
    rows: int
    microbatches: int
    layers: tuple[int, ...]
    recompute: RecomputePolicy
    work: float
    alone: float
    peak_bytes: float

    @property
    def division(self) -> tuple[int, int, int, int]:
        """How it divides devices and rows; chunks and recomputation aside."""
        return self.tp, self.pp, self.dp, self.rows


def backbone_layouts(problem: PlanningProblem) -> list[BackboneLayout]:
    """All layouts on as many devices as replicas can use, by the step of the backbone alone.

    Raises:
        PlanError: No number of replicas divides the rows on any layout.
    """
    table = problem.module_tables[problem.graph.backbone.name]
    candidates, replicas, rows = _divisions(problem, table)
    microbatches = problem.rows // replicas // rows
    slowest, fill = table.stage_seconds(candidates, rows.astype(float))
    peak = table.peak_bytes(candidates, rows.astype(float), replicas, np.zeros(len(rows)), microbatches)
    work, alone = microbatches * slowest, fill + (microbatches - 1) * slowest
    tp, pp, chunks = (column[candidates].tolist() for column in (table.tp, table.pp, table.chunks))
    columns = [column.tolist() for column in (candidates, replicas, rows, microbatches, work, alone, peak)]
    candidate_numbers, dp, counts, microbatch_counts, work_seconds, alone_seconds, peak_bytes = columns
    return [
        BackboneLayout(
            tp=tp[index],
            pp=pp[index],
            chunks=chunks[index],
            dp=dp[index],
            rows=counts[index],
            microbatches=microbatch_counts[index],
            layers=table.layers[candidate_numbers[index]],
            recompute=table.recompute[candidate_numbers[index]],
            work=work_seconds[index],
            alone=alone_seconds[index],
            peak_bytes=peak_bytes[index],
        )
        for index in np.argsort(alone, kind="stable").tolist()
    ]


def _divisions(
    problem: PlanningProblem, table: ModuleTable
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Candidates of the backbone's table, with their replicas and the rows of a replica's microbatch."""
    most: dict[int, int] = {}
    divisions: list[tuple[int, int, int]] = []
    any_divides = False
    for candidate, devices in enumerate(table.replica_devices.tolist()):
        if devices not in most:
            most[devices] = problem.most_replicas(problem.devices // devices, table.fixed_ranks.ep)
        if not (dp := most[devices]):
            continue
        any_divides, replica_rows = True, problem.rows // dp
        # Interleaved 1F1B keeps its order where the pipeline ranks divide the microbatches.
        unit = int(table.pp[candidate]) if table.chunks[candidate] > 1 else 1
        divisions += [
            (candidate, dp, count)
            for count in range(1, min(_MOST_ROWS, replica_rows) + 1)
            if replica_rows % (count * unit) == 0
        ]
    if not any_divides:
        raise PlanError(
            f"on {problem.devices} devices no number of replicas of {problem.graph.backbone.name} divides the "
            f"{problem.rows} rows; use more devices or another number of rows"
        )
    candidates, replicas, rows = np.array(divisions, dtype=int).reshape(-1, 3).T
    return candidates, replicas, rows


class ShortestLayouts:
    """Collects the layouts with the shortest estimated steps; of those that differ in chunks alone, one.

    That is the one with the fewest chunks among the nearly shortest.

    Args:
        count: How many are wanted.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._alike: dict[tuple, list[tuple[float, int, BackboneLayout]]] = {}
        self._least: list[float] = []  # the shortest estimate of all layouts that are alike, ascending

    @property
    def is_empty(self) -> bool:
        """Whether no layout was added."""
        return not self._alike

    def add(self, seconds: float, number: int, layout: BackboneLayout) -> None:
        """Adds a layout.

        Args:
            seconds: Estimated seconds of its step.
            number: Its place among layouts with the same estimate.
            layout: The layout.
        """
        alike = self._alike.setdefault((*layout.division, layout.recompute), [])
        shortest = min((entry[0] for entry in alike), default=math.inf)
        if seconds < shortest:
            if alike:
                del self._least[bisect.bisect_left(self._least, shortest)]
            bisect.insort(self._least, seconds)
        alike.append((seconds, number, layout))

    def are_shorter_than(self, seconds: float) -> bool:
        """Whether no layout that takes at least so many seconds would be one of the shortest."""
        # A nearly shortest layout may stand for the shortest that is like it, among those found and beyond.
        return len(self._least) >= self._count and seconds > self._least[self._count - 1] * (1 + _FEWER_CHUNKS) ** 2

    def shortest(self) -> list[tuple[float, BackboneLayout]]:
        """The shortest layouts with their estimates, ascending."""
        chosen = []
        for alike in self._alike.values():
            longest = min(seconds for seconds, _, _ in alike) * (1 + _FEWER_CHUNKS)
            near = [entry for entry in alike if entry[0] <= longest]
            chosen.append(min(near, key=lambda entry: (entry[2].chunks, entry[1])))
        return [(seconds, layout) for seconds, _, layout in sorted(chosen, key=lambda entry: entry[:2])[: self._count]]


def backbone_unit(problem: PlanningProblem, layout: BackboneLayout) -> UnitPlan:
    """The unit of a layout, whose devices are numbered by pipeline rank, data and tensor rank."""
    name = problem.graph.backbone.name
    return make_unit(
        (name,),
        dp=layout.dp,
        tp=layout.tp,
        layers=layout.layers,
        recompute=layout.recompute,
        chunks=layout.chunks,
        fixed_ranks=problem.fixed_ranks_of(name),
        collectives=problem.collectives_of(name, layout.tp),
    )
