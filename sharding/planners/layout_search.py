"""The best integer layout of disjoint modules by DistTrain's objective (arXiv 2408.04275, equations 1 and 2), exactly.

Candidates, a data-parallel size and a tensor-parallel size of the backbone, are taken in the order of their relaxed
bounds and given up where that is no better than what is known. Of the others, every module's ways are reduced to those
that could still be part of something better, to their Pareto front, and the fronts are combined.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from sharding.planners.module_table import ModuleTable
from sharding.planners.problem import PlanningProblem
from sharding.planners.relaxed_candidates import RelaxedOptima, solve_relaxations

_TARGETS = (1.02, 1.06, 1.2, 2.0, 10.0, np.inf)  # of the bound; a search with a near target has few ways to combine
_SAME = 1e-9
_BLOCK = 128


class ModuleChoice(NamedTuple):
    """How one module is laid out.

    Attributes:
        way: Its number in the module's table.
        rows: Of an instance's microbatch.
        dp: Instances.
        devices: All of them.
    """

    candidate: int
    rows: int
    dp: int
    devices: int


@dataclasses.dataclass(frozen=True)
class DisjointLayout:
    """One choice for every module.

    Attributes:
        seconds: The objective: warm-up and steady phase.
        microbatches: Of a step.
        choices: By module.
    """

    seconds: float
    microbatches: int
    choices: Mapping[str, ModuleChoice]

    @property
    def devices(self) -> int:
        """Of all modules."""
        return sum(choice.devices for choice in self.choices.values())


def search_layouts(
    problem: PlanningProblem, keep: int = 1, limits: Mapping[str, int] | None = None
) -> list[DisjointLayout]:
    """The best layouts of different (dp, tp, chunks) of the backbone, best first; none if nothing fits.

    Args:
        problem: The problem.
        keep: How many.
        limits: The most devices of each module, where they are given.
    """
    known: list[DisjointLayout] = []
    for bound, group in _groups(problem, solve_relaxations(problem)):
        target = known[keep - 1].seconds if len(known) >= keep else np.inf
        if bound > target * (1 + _SAME):
            break
        found = _Group(problem, *group, limits or {}).best(bound, target)
        if found:
            known = sorted([*known, found], key=lambda layout: (layout.seconds, layout.devices))[:keep]
    return known


def _groups(problem: PlanningProblem, candidates: RelaxedOptima) -> list[tuple[float, tuple[int, int, int]]]:
    """(dp, tp, chunks) of the backbone with the best bound of their candidates, best first."""
    column = problem.graph.names.index(problem.graph.backbone.name)
    keys = np.stack([candidates.dp, candidates.tp[:, column], candidates.chunks], axis=1)
    fits = np.isfinite(candidates.seconds)
    if not fits.any():
        return []
    groups, of = np.unique(keys[fits], axis=0, return_inverse=True)
    bounds = np.full(len(groups), np.inf)
    np.minimum.at(bounds, of.ravel(), candidates.seconds[fits])
    return [(float(bounds[index]), tuple(map(int, groups[index]))) for index in np.argsort(bounds, kind="stable")]


class ParetoFront(NamedTuple):
    """Ways of one module, or of several together.

    Attributes:
        devices: How many they take.
        stage: Seconds of the slowest stage, at least the floor.
        warm: Seconds of the warm-up.
        behind: Stages that may come behind.
        marks: What was chosen, a column a module: (way, rows).
    """

    devices: Int[np.ndarray, " n"]
    stage: Float[np.ndarray, " n"]
    fill: Float[np.ndarray, " n"]
    behind: Float[np.ndarray, " n"]
    choices: Int[np.ndarray, "n i 2"]

    def select(self, which: np.ndarray) -> "ParetoFront":
        """Some of them."""
        return ParetoFront(*(part[which] for part in self))

    def pareto_optimal(self) -> "ParetoFront":
        """Without those that another is at least as good as in everything."""
        front = self.select(np.lexsort([-self.behind, self.fill, self.stage, self.devices]))
        columns = np.stack([front.stage, front.fill, -front.behind])
        kept = np.empty(0, int)
        for start in range(0, len(front.devices), _BLOCK):  # what dominates stands before
            block = np.arange(start, min(start + _BLOCK, len(front.devices)))
            block = block[~_covers(columns[:, block], columns[:, kept]).any(axis=1)]
            within = _covers(columns[:, block], columns[:, block]) & np.tri(len(block), k=-1, dtype=bool)
            kept = np.concatenate([kept, block[~within.any(axis=1)]])
        return front.select(kept)


def _covers(points: Float[np.ndarray, "3 n"], others: Float[np.ndarray, "3 e"]) -> Bool[np.ndarray, "n e"]:
    """Whether another is as good as a point in every column."""
    return (others[:, None, :] <= points[:, :, None]).all(axis=0)


class _Group:
    """All layouts with one data-parallel size, tensor-parallel size and number of chunks of the backbone."""

    def __init__(self, problem: PlanningProblem, dp: int, tp: int, chunks: int, limits: Mapping[str, int]) -> None:
        self._problem, self._dp, self._limits = problem, dp, limits
        self._microbatches = problem.rows // dp
        self._others = [name for name in problem.graph.names if name != problem.graph.backbone.name]
        work = 0.0
        self._ways: dict[str, ParetoFront] = {}
        for name in problem.graph.names:
            table = problem.module_tables[name]
            index = 0 if table.module.is_backbone else int(np.searchsorted(table.rows, dp))
            rates = [
                rate[index]
                for size, rate in table.device_seconds_per_row.items()
                if not table.module.is_backbone or size == tp
            ]
            work += dp * min(rates)
            chosen = (table.tp == tp) & (table.chunks == chunks) if table.module.is_backbone else table.tp > 0
            self._ways[name] = self._all(table, chosen, limits.get(name, problem.devices))
        self._floor = work / problem.devices

    def _all(self, table: ModuleTable, chosen: Bool[np.ndarray, " o"], limit: int) -> ParetoFront:
        """Ways of a module in as few devices as there are, fit or not."""
        ways = np.flatnonzero(chosen)[:, None]
        columns, instances = table.replica_options(self._dp)
        devices = table.replica_devices[ways] * instances
        row, column = np.nonzero(devices <= limit)
        way, rows = ways[row, 0], columns[column]
        marks = np.stack([way, rows], axis=1)[:, None]
        return ParetoFront(
            devices[row, column], table.slowest_stage[way, rows], table.fill[way, rows], np.zeros(len(way)), marks
        )

    def best(self, bound: float, target: float) -> DisjointLayout | None:
        """The best layout, if it takes at most `target` seconds."""
        for factor in _TARGETS:
            found = self._within(min(target, bound * factor))
            if found or bound * factor >= target:
                return found
        return None

    def _within(self, target: float) -> DisjointLayout | None:
        """The best layout of at most `target` seconds."""
        fronts = self._promising(target)
        if fronts is None:
            return None
        backbone = self._problem.graph.backbone.name
        total = fronts.pop(backbone)
        ways = total.choices[:, 0, 0]
        behind = self._problem.module_tables[backbone].stages_behind_sources(ways, int(self._problem.has_generators))
        total = total._replace(behind=behind)
        rest = sum(int(front.devices.min()) for front in fronts.values())
        warm = sum(float(front.fill.min()) for front in fronts.values())
        for front in fronts.values():
            rest, warm = rest - int(front.devices.min()), warm - float(front.fill.min())
            total = self._combine(total, front, self._problem.devices - rest, target - warm)
            if not len(total.devices):
                return None
        seconds = self._seconds(total)
        least = seconds <= seconds.min() * (1 + _SAME)
        index = int(np.flatnonzero(least)[total.devices[least].argmin()])
        names = (backbone, *fronts)
        choices = {
            name: self._choice(name, *mark) for name, mark in zip(names, total.choices[index].tolist(), strict=True)
        }
        return DisjointLayout(float(seconds[index]), self._microbatches, {name: choices[name] for name in self._ways})

    def _seconds(self, front: ParetoFront) -> Float[np.ndarray, " n"]:
        return front.fill + (self._microbatches - 1) * front.stage

    def _promising(self, target: float) -> dict[str, ParetoFront] | None:
        """By module, the front of the ways that fit the memory and could be part of `target` seconds."""
        fronts = {
            name: front._replace(stage=np.maximum(front.stage, self._floor)) for name, front in self._ways.items()
        }
        for step in (self._quick_enough, self._small_enough, self._fitting, self._quick_enough, self._small_enough):
            if any(not len(front.devices) for front in fronts.values()):
                return None
            fronts = step(fronts, target)
        if any(not len(front.devices) for front in fronts.values()):
            return None
        return {name: front.pareto_optimal() for name, front in fronts.items()}

    def _quick_enough(self, fronts: dict[str, ParetoFront], target: float) -> dict[str, ParetoFront]:
        """Without the ways that take more than `target` seconds whatever the other modules do."""
        least = {name: float(front.fill.min()) for name, front in fronts.items()}
        slowest = max(float(front.stage.min()) for front in fronts.values())
        room = (target - sum(least.values())) * (1 + _SAME)
        kept = {}
        for name, front in fronts.items():
            stage = np.maximum(front.stage, slowest)
            kept[name] = front.select(front.fill - least[name] + (self._microbatches - 1) * stage <= room)
        return kept

    def _small_enough(self, fronts: dict[str, ParetoFront], target: float) -> dict[str, ParetoFront]:
        """Without the ways that leave the other modules too few devices."""
        least = {name: int(front.devices.min()) for name, front in fronts.items()}
        rest = self._problem.devices - sum(least.values())
        return {name: front.select(front.devices - least[name] <= rest) for name, front in fronts.items()}

    def _fitting(self, fronts: dict[str, ParetoFront], target: float) -> dict[str, ParetoFront]:
        """Without the ways that never fit the memory."""
        return {name: self._fit(name, front) for name, front in fronts.items()}

    def _fit(self, name: str, front: ParetoFront) -> ParetoFront:
        table = self._problem.module_tables[name]
        way, column = front.choices[:, 0].T
        rows = table.rows[column]
        memory, most = self._problem.cluster.memory, np.full(len(way), self._microbatches)
        behind = table.max_stages_behind(way, rows, self._dp // rows, memory, most)
        if table.module.is_backbone:
            return front.select(behind >= int(self._problem.has_generators))
        if table.module.inputs:
            return front.select(behind >= 0)._replace(behind=np.full(int((behind >= 0).sum()), np.inf))
        return front._replace(behind=behind).select(behind >= 1 + int(self._problem.has_generators))

    def _combine(self, total: ParetoFront, front: ParetoFront, devices: int, target: float) -> ParetoFront:
        """Both together, as far as devices and seconds go."""
        count = total.devices[:, None] + front.devices
        stage = np.maximum(total.stage[:, None], front.stage)
        warm = total.fill[:, None] + front.fill
        fits = (count <= devices) & (front.behind >= total.behind[:, None])
        fits &= warm + (self._microbatches - 1) * stage <= target * (1 + _SAME)
        left, right = np.nonzero(fits)
        marks = np.concatenate([total.choices[left], front.choices[right]], axis=1)
        return ParetoFront(count[left, right], stage[left, right], warm[left, right], total.behind[left], marks)

    def _choice(self, name: str, way: int, column: int) -> ModuleChoice:
        table = self._problem.module_tables[name]
        rows = int(table.rows[column])
        dp = self._dp // rows
        return ModuleChoice(way, rows, dp, int(table.replica_devices[way]) * dp)
