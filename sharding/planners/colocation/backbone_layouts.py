"""Layouts of the backbone on all devices, by an estimate of the step with the other modules in its idle time.

The policy `colocated` enumerates these layouts.
"""

import bisect
import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from sharding.planners.layouts.placement import make_unit
from sharding.planners.problem import PlanningProblem
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


def backbone_layouts(problem: PlanningProblem) -> Iterator[BackboneLayout]:
    """All layouts on as many devices as replicas can use.

    Raises:
        PlanError: No number of replicas divides the rows on any layout.
    """
    table, any_divides = problem.module_tables[problem.graph.backbone.name], False
    for candidate, devices in enumerate(table.replica_devices.tolist()):
        dp = problem.most_replicas(problem.devices // devices, table.fixed_ranks.ep)
        if not dp:
            continue
        pp, chunks = int(table.pp[candidate]), int(table.chunks[candidate])
        replica_rows = problem.rows // dp
        rows = [count for count in range(1, min(_MOST_ROWS, replica_rows) + 1) if replica_rows % count == 0]
        any_divides = True
        if chunks > 1:  # interleaved 1F1B keeps its order where the pipeline ranks divide the microbatches
            rows = [count for count in rows if replica_rows // count % pp == 0]
        numbers, counts = np.full(len(rows), candidate), np.array(rows, dtype=float)
        replicas_of = np.full(len(rows), dp)
        microbatches = np.array([replica_rows // count for count in rows], dtype=int)
        slowest, fill = table.stage_seconds(numbers, counts)
        peak = table.peak_bytes(numbers, counts, replicas_of, np.zeros(len(rows)), microbatches)
        for index, count in enumerate(rows):
            yield BackboneLayout(
                tp=int(table.tp[candidate]),
                pp=pp,
                chunks=chunks,
                dp=dp,
                rows=count,
                microbatches=int(microbatches[index]),
                layers=table.layers[candidate],
                recompute=table.recompute[candidate],
                work=float(microbatches[index] * slowest[index]),
                alone=float(fill[index] + (microbatches[index] - 1) * slowest[index]),
                peak_bytes=float(peak[index]),
            )
    if not any_divides:
        raise PlanError(
            f"on {problem.devices} devices no number of replicas of {problem.graph.backbone.name} divides the "
            f"{problem.rows} rows; use more devices or another number of rows"
        )


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
