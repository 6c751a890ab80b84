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

from sharding.planners.candidates import Candidates, relax
from sharding.planners.module_table import ModuleTable
from sharding.planners.problem import Problem

_TARGETS = (1.02, 1.06, 1.2, 2.0, 10.0, np.inf)  # of the bound; a search with a near target has few ways to combine
_SAME = 1e-9
_BLOCK = 128


class Choice(NamedTuple):
    """How one module is laid out.

    Attributes:
        way: Its number in the module's table.
        rows: Of an instance's microbatch.
        dp: Instances.
        devices: All of them.
    """

    way: int
    rows: int
    dp: int
    devices: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """One choice for every module.

    Attributes:
        seconds: The objective: warm-up and steady phase.
        microbatches: Of a step.
        choices: By module.
    """

    seconds: float
    microbatches: int
    choices: Mapping[str, Choice]

    @property
    def devices(self) -> int:
        """Of all modules."""
        return sum(choice.devices for choice in self.choices.values())


def search(problem: Problem, keep: int = 1, limits: Mapping[str, int] | None = None) -> list[Layout]:
    """The best layouts of different (dp, tp, chunks) of the backbone, best first; none if nothing fits.

    Args:
        problem: The problem.
        keep: How many.
        limits: The most devices of each module, where they are given.
    """
    known: list[Layout] = []
    for bound, group in _groups(problem, relax(problem)):
        target = known[keep - 1].seconds if len(known) >= keep else np.inf
        if bound > target * (1 + _SAME):
            break
        found = _Group(problem, *group, limits or {}).best(bound, target)
        if found:
            known = sorted([*known, found], key=lambda layout: (layout.seconds, layout.devices))[:keep]
    return known


def _groups(problem: Problem, candidates: Candidates) -> list[tuple[float, tuple[int, int, int]]]:
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


class Front(NamedTuple):
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
    warm: Float[np.ndarray, " n"]
    behind: Float[np.ndarray, " n"]
    marks: Int[np.ndarray, "n i 2"]

    def at(self, which: np.ndarray) -> "Front":
        """Some of them."""
        return Front(*(part[which] for part in self))

    def undominated(self) -> "Front":
        """Without those that another is at least as good as in everything."""
        front = self.at(np.lexsort([-self.behind, self.warm, self.stage, self.devices]))
        columns = np.stack([front.stage, front.warm, -front.behind])
        kept = np.empty(0, int)
        for start in range(0, len(front.devices), _BLOCK):  # what dominates stands before
            block = np.arange(start, min(start + _BLOCK, len(front.devices)))
            block = block[~_covers(columns[:, block], columns[:, kept]).any(axis=1)]
            within = _covers(columns[:, block], columns[:, block]) & np.tri(len(block), k=-1, dtype=bool)
            kept = np.concatenate([kept, block[~within.any(axis=1)]])
        return front.at(kept)


def _covers(points: Float[np.ndarray, "3 n"], others: Float[np.ndarray, "3 e"]) -> Bool[np.ndarray, "n e"]:
    """Whether another is as good as a point in every column."""
    return (others[:, None, :] <= points[:, :, None]).all(axis=0)


class _Group:
    """All layouts with one data-parallel size, tensor-parallel size and number of chunks of the backbone."""

    def __init__(self, problem: Problem, dp: int, tp: int, chunks: int, limits: Mapping[str, int]) -> None:
        self._problem, self._dp, self._limits = problem, dp, limits
        self._microbatches = problem.rows // dp
        self._others = [name for name in problem.graph.names if name != problem.graph.backbone.name]
        work = 0.0
        self._ways: dict[str, Front] = {}
        for name in problem.graph.names:
            table = problem.tables[name]
            index = 0 if table.module.backbone else int(np.searchsorted(table.rows, dp))
            rates = [rate[index] for size, rate in table.rate.items() if not table.module.backbone or size == tp]
            work += dp * min(rates)
            chosen = (table.tp == tp) & (table.chunks == chunks) if table.module.backbone else table.tp > 0
            self._ways[name] = self._all(table, chosen, limits.get(name, problem.devices))
        self._floor = work / problem.devices

    def _all(self, table: ModuleTable, chosen: Bool[np.ndarray, " o"], limit: int) -> Front:
        """Ways of a module in as few devices as there are, fit or not."""
        ways = np.flatnonzero(chosen)[:, None]
        columns, instances = table.instances(self._dp)
        devices = table.instance_devices[ways] * instances
        row, column = np.nonzero(devices <= limit)
        way, rows = ways[row, 0], columns[column]
        marks = np.stack([way, rows], axis=1)[:, None]
        return Front(devices[row, column], table.stage[way, rows], table.warm[way, rows], np.zeros(len(way)), marks)

    def best(self, bound: float, target: float) -> Layout | None:
        """The best layout, if it takes at most `target` seconds."""
        for factor in _TARGETS:
            found = self._within(min(target, bound * factor))
            if found or bound * factor >= target:
                return found
        return None

    def _within(self, target: float) -> Layout | None:
        """The best layout of at most `target` seconds."""
        fronts = self._promising(target)
        if fronts is None:
            return None
        backbone = self._problem.graph.backbone.name
        total = fronts.pop(backbone)
        ways = total.marks[:, 0, 0]
        behind = self._problem.tables[backbone].behind_source(ways, int(self._problem.deep))
        total = total._replace(behind=behind)
        rest = sum(int(front.devices.min()) for front in fronts.values())
        warm = sum(float(front.warm.min()) for front in fronts.values())
        for front in fronts.values():
            rest, warm = rest - int(front.devices.min()), warm - float(front.warm.min())
            total = self._combine(total, front, self._problem.devices - rest, target - warm)
            if not len(total.devices):
                return None
        seconds = self._seconds(total)
        least = seconds <= seconds.min() * (1 + _SAME)
        index = int(np.flatnonzero(least)[total.devices[least].argmin()])
        names = (backbone, *fronts)
        choices = {
            name: self._choice(name, *mark) for name, mark in zip(names, total.marks[index].tolist(), strict=True)
        }
        return Layout(float(seconds[index]), self._microbatches, {name: choices[name] for name in self._ways})

    def _seconds(self, front: Front) -> Float[np.ndarray, " n"]:
        return front.warm + (self._microbatches - 1) * front.stage

    def _promising(self, target: float) -> dict[str, Front] | None:
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
        return {name: front.undominated() for name, front in fronts.items()}

    def _quick_enough(self, fronts: dict[str, Front], target: float) -> dict[str, Front]:
        """Without the ways that take more than `target` seconds whatever the other modules do."""
        least = {name: float(front.warm.min()) for name, front in fronts.items()}
        slowest = max(float(front.stage.min()) for front in fronts.values())
        room = (target - sum(least.values())) * (1 + _SAME)
        kept = {}
        for name, front in fronts.items():
            stage = np.maximum(front.stage, slowest)
            kept[name] = front.at(front.warm - least[name] + (self._microbatches - 1) * stage <= room)
        return kept

    def _small_enough(self, fronts: dict[str, Front], target: float) -> dict[str, Front]:
        """Without the ways that leave the other modules too few devices."""
        least = {name: int(front.devices.min()) for name, front in fronts.items()}
        rest = self._problem.devices - sum(least.values())
        return {name: front.at(front.devices - least[name] <= rest) for name, front in fronts.items()}

    def _fitting(self, fronts: dict[str, Front], target: float) -> dict[str, Front]:
        """Without the ways that never fit the memory."""
        return {name: self._fit(name, front) for name, front in fronts.items()}

    def _fit(self, name: str, front: Front) -> Front:
        table = self._problem.tables[name]
        way, column = front.marks[:, 0].T
        rows = table.rows[column]
        memory, most = self._problem.cluster.memory, np.full(len(way), self._microbatches)
        behind = table.behind(way, rows, self._dp // rows, memory, most)
        if table.module.backbone:
            return front.at(behind >= int(self._problem.deep))
        if table.module.inputs:
            return front.at(behind >= 0)._replace(behind=np.full(int((behind >= 0).sum()), np.inf))
        return front._replace(behind=behind).at(behind >= 1 + int(self._problem.deep))

    def _combine(self, total: Front, front: Front, devices: int, target: float) -> Front:
        """Both together, as far as devices and seconds go."""
        count = total.devices[:, None] + front.devices
        stage = np.maximum(total.stage[:, None], front.stage)
        warm = total.warm[:, None] + front.warm
        fits = (count <= devices) & (front.behind >= total.behind[:, None])
        fits &= warm + (self._microbatches - 1) * stage <= target * (1 + _SAME)
        left, right = np.nonzero(fits)
        marks = np.concatenate([total.marks[left], front.marks[right]], axis=1)
        return Front(count[left, right], stage[left, right], warm[left, right], total.behind[left], marks)

    def _choice(self, name: str, way: int, column: int) -> Choice:
        table = self._problem.tables[name]
        rows = int(table.rows[column])
        dp = self._dp // rows
        return Choice(way, rows, dp, int(table.instance_devices[way]) * dp)
