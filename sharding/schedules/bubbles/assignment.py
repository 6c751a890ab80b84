"""Which pipeline replica of an encoder takes which microbatch (Optimus, arXiv 2408.03505, sections 4.1 and 4.3).

Optimus enumerates how many microbatches each of m pipeline replicas takes, O(N^(m-1)) divisions, and orders them by
when they end. Here each microbatch goes, one after another, to the pipeline replica with which the step is shortest;
then microbatches move and change places as long as that makes the step shorter.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from sharding.schedules.bubbles.filling import NO_REPLICA, BubbleFiller, Extent, added_seconds

_MOST_TRIALS = 200
"""Most moves and exchanges that are tried."""

_FEW_DIVISIONS = 1000
"""Among so many divisions the best is found by branch and bound."""


def best_division(filler: BubbleFiller) -> dict[str, tuple[int, ...]]:
    """For every encoder, the pipeline replica of each microbatch with which the encoders add little to the step."""
    return _DivisionSearch(filler).best().pipeline_replicas


class _Division(NamedTuple):
    """A division of the microbatches among the pipeline replicas of encoders.

    Attributes:
        added: Time that the encoders add to the step, as a multiple of a unit above rounding.
        summed: Time that they add on every group of pipeline replicas, summed; likewise.
        pipeline_replicas: Which pipeline replica of each encoder takes each microbatch.
        extents: Of every group of pipeline replicas, the extents of each way to place it.
    """

    added: int
    summed: int
    pipeline_replicas: dict[str, tuple[int, ...]]
    extents: list[tuple[Extent, ...]]


class _DivisionSearch:
    """Divides the microbatches of encoders among their pipeline replicas.

    Args:
        filler: Places the encoders.
    """

    def __init__(self, filler: BubbleFiller) -> None:
        self._filler = filler
        # An encoder that feeds another one comes after it: when its outputs are needed follows from the other.
        self._counts = {stage.stage_id[0]: len(stage.lanes) for stage in reversed(filler.stages)}
        self._microbatches = range(filler.bubbles.microbatches)
        self._group_of = {
            pipeline_replica: number for number, group in enumerate(filler.groups) for pipeline_replica in group
        }
        self._resolution = 1e-9 * (filler.bubbles.end or 1.0)

    def best(self) -> _Division:
        """Returns the division that exchanges find after dealing microbatches one by one; of few ones, the best."""
        least = self._least()
        division = self._exchanged(self._one_by_one(), least)
        number = math.prod(count ** len(self._microbatches) for count in self._counts.values())
        return self._shortest(division, least) if number <= _FEW_DIVISIONS else division

    def _division(self, pipeline_replicas: dict[str, tuple[int, ...]], extents: list[tuple[Extent, ...]]) -> _Division:
        summed = sum(min(before + after for before, after in ways) for ways in extents)
        return _Division(self._rounded(added_seconds(extents)), self._rounded(summed), pipeline_replicas, extents)

    def _rounded(self, seconds: float) -> int:
        return round(seconds / self._resolution)

    def _one_by_one(self) -> _Division:
        """Each microbatch in turn goes to the pipeline replica that makes the step shortest; the idlest of several."""
        division = self._nothing()
        for number, unit in itertools.product(self._microbatches, self._counts):
            taken = division.pipeline_replicas[unit]
            moved = self._with_microbatch(division, unit, number)
            division = min(
                moved,
                key=lambda candidate: (
                    candidate.added,
                    taken.count(candidate.pipeline_replicas[unit][number]),
                    candidate.summed,
                ),
            )
        return division

    def _nothing(self) -> _Division:
        pipeline_replicas = {unit: (NO_REPLICA,) * len(self._microbatches) for unit in self._counts}
        return self._division(
            pipeline_replicas, [self._filler.extents(share) for share in self._filler.shares(pipeline_replicas)]
        )

    def _with_microbatch(self, division: _Division, unit: str, number: int) -> list[_Division]:
        """The divisions in which a pipeline replica of a unit takes one more microbatch.

        Every pipeline replica shall have one in the end.
        """
        taken = division.pipeline_replicas[unit]
        unused = set(range(self._counts[unit])).difference(taken)
        pipeline_replicas = sorted(unused) if len(unused) == taken.count(NO_REPLICA) else range(self._counts[unit])
        return [self._moved(division, unit, {number: pipeline_replica}) for pipeline_replica in pipeline_replicas]

    def _shortest(self, best: _Division, least: int) -> _Division:
        """The division with the shortest step, by branch and bound: more microbatches never make it shorter."""
        items = list(itertools.product(self._microbatches, self._counts))
        stack = [(0, self._nothing())]
        while stack and best.added > least:
            depth, division = stack.pop()
            if division.added >= best.added:
                continue
            if depth == len(items):
                best = division
                continue
            number, unit = items[depth]
            further = self._with_microbatch(division, unit, number)
            stack += [
                (depth + 1, candidate)
                for candidate in sorted(further, key=lambda candidate: candidate[:2], reverse=True)
            ]
        return best

    def _exchanged(self, division: _Division, least: int) -> _Division:
        """Moves microbatches, or exchanges two, as long as that makes the step shorter."""
        changes, left = self._changes(division), _MOST_TRIALS
        while division.added > least and left and (change := next(changes, None)):
            left -= 1
            moved = self._moved(division, *change)
            if moved[:2] < division[:2]:
                division, changes = moved, self._changes(moved)
        return division

    def _least(self) -> int:
        """Least time that the encoders add: of the first microbatch before the backbone, of the last one after it."""
        sides = [0.0, 0.0]
        feeding = {
            stage.stage_id[0]
            for stage in self._filler.stages
            for target in stage.targets
            if self._filler.stages[target].stage_id[0] != stage.stage_id[0]
        }
        last = [(unit, count) for unit, count in self._counts.items() if unit not in feeding]
        for (unit, count), side in itertools.product(last, range(2)):
            number = self._microbatches[-side]
            alone = [
                self._filler.extents(((number, ((unit, pipeline_replica),)),)) for pipeline_replica in range(count)
            ]
            sides[side] = max(sides[side], min(way[side] for ways in alone for way in ways))
        return self._rounded(sum(sides))

    def _moved(self, division: _Division, unit: str, change: dict[int, int]) -> _Division:
        """The division after microbatches have gone to other pipeline replicas of a unit.

        Only their groups are placed anew.
        """
        before = division.pipeline_replicas[unit]
        pipeline_replicas = division.pipeline_replicas | {
            unit: tuple(change.get(number, pipeline_replica) for number, pipeline_replica in enumerate(before))
        }
        changed = {
            (unit, pipeline_replica)
            for number in change
            for pipeline_replica in (before[number], change[number])
            if pipeline_replica != NO_REPLICA
        }
        extents = list(division.extents)
        for group in {self._group_of[pipeline_replica] for pipeline_replica in changed}:
            extents[group] = self._filler.extents(self._filler.share(pipeline_replicas, group))
        return self._division(pipeline_replicas, extents)

    def _changes(self, division: _Division) -> Iterator[tuple[str, dict[int, int]]]:
        """Microbatches of groups that make the step long change pipeline replicas, alone or with others."""
        critical = self._critical(division.extents)
        for unit, count in self._counts.items():
            taken = division.pipeline_replicas[unit]
            critical_microbatches = [
                number for number in self._microbatches if self._group_of[unit, taken[number]] in critical
            ]
            for number, pipeline_replica in itertools.product(critical_microbatches, range(count)):
                if pipeline_replica != taken[number] and taken.count(taken[number]) > 1:
                    yield unit, {number: pipeline_replica}
            for one, other in itertools.product(critical_microbatches, self._microbatches):
                if taken[one] != taken[other]:
                    yield unit, {one: taken[other], other: taken[one]}

    def _critical(self, extents: list[tuple[Extent, ...]]) -> set[int]:
        """The groups that take longest before the backbone's start or after its end, in any way to place them."""
        groups: set[int] = set()
        for way, side in itertools.product(zip(*extents, strict=True), range(2)):
            longest = max(self._rounded(extent[side]) for extent in way)
            groups |= {number for number, extent in enumerate(way) if self._rounded(extent[side]) >= longest}
        return groups
