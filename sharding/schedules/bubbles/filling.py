"""Fills a backbone's idle time with its encoders.

Groups of pipeline replicas that share devices are placed each by itself.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from sharding.schedules.bubbles.bundling import BundleHosts, Host
from sharding.schedules.bubbles.idle_intervals import IdleIntervals, Interval
from sharding.schedules.bubbles.placement import (
    EncoderStage,
    Placement,
    SlicePass,
    Work,
    delay_forwards,
    place_backwards_early,
    place_forwards_early,
    place_forwards_late,
)

UnitReplica = tuple[str, int]
"""(encoder, number of its pipeline replica)."""

Share = tuple[tuple[int, tuple[UnitReplica, ...]], ...]
"""The microbatches of a group of pipeline replicas, and by which of its pipeline replicas each is taken."""

Extent = tuple[float, float]
"""Seconds before the backbone's start, and seconds after its end."""

ReplicaOfMicrobatch = Mapping[str, tuple[int, ...]]
"""For every encoder, the pipeline replica that takes each microbatch."""

NO_REPLICA = -1
"""Stands for no pipeline replica: the microbatch does not pass through the encoder."""


@dataclasses.dataclass(frozen=True)
class Filling:
    """When all encoders run, in the times of the backbone alone.

    Attributes:
        before: Seconds that they start before the backbone could.
        after: Seconds that they end after the backbone.
        times: Start and end of every forward and backward of the encoders, in seconds.
        bundles: Ops of the backbone, and the op that runs in one program with each.
    """

    before: float
    after: float
    times: dict[SlicePass, Interval]
    bundles: dict[Host, SlicePass]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bubbles:
    """The idle time of a backbone, and its ops that take slices of encoders.

    Attributes:
        busy: For every class of devices, when it computes, ascending.
        end: When its last op ends.
        microbatches: Number of microbatches.
        hosts: Ops of it that take a slice of an encoder into their program.
    """

    busy: Sequence[Sequence[Interval]]
    end: float
    microbatches: int
    hosts: BundleHosts


class BubbleFiller:
    """Places encoders in the idle time of one backbone, for any division of the microbatches among pipeline replicas.

    Pipeline replicas whose devices are disjoint, and that do not feed each other, do not see each other: each such
    group is placed by itself, and its seconds are kept for the divisions that give it the same microbatches.

    Args:
        bubbles: The bubbles of the backbone.
        stages: The stages of the encoders, in topological order.
        coarse: Whether encoders only run before the backbone's first op on their devices and after its last.
    """

    def __init__(self, bubbles: Bubbles, stages: Sequence[EncoderStage], coarse: bool = False) -> None:
        self.bubbles, self.stages = bubbles, stages
        self.groups = _groups(self.stages)
        self._slices = {
            (unit, pipeline_replica): [
                (number, stage.lanes[pipeline_replica])
                for number, stage in enumerate(self.stages)
                if stage.stage_id[0] == unit
            ]
            for unit, pipeline_replica in sorted(frozenset().union(*self.groups))
        }
        lengths = {length for stage in self.stages for length in (stage.forward, stage.backward) if length}
        self._idle = IdleIntervals(bubbles.busy, min(lengths, default=0.0), coarse)
        self._kept: dict[Share, tuple[Placement, ...]] = {}

    def seconds(self, pipeline_replicas: ReplicaOfMicrobatch) -> float:
        """How much longer than the backbone alone the step takes."""
        return added_seconds([self.extents(share) for share in self.shares(pipeline_replicas)])

    def fill(self, pipeline_replicas: ReplicaOfMicrobatch) -> Filling:
        """Returns the shortest of several placements; of equally short ones the first, which holds least."""
        choices = zip(*map(self._placements, self.shares(pipeline_replicas)), strict=True)
        return self._filling(min(choices, key=lambda placements: sum(self._extent(*placements))))

    def fill_with_bundles(self, pipeline_replicas: ReplicaOfMicrobatch, budget: int) -> Filling:
        """A placement in which the backbone's ops on each device take up to so many slices, in either direction.

        The last forwards and the first backwards do: they have most of these ops to choose from, and leave idle time
        to the others.
        """
        hosts = self.bubbles.hosts.copy(budget)
        works = [self._work(share) for share in self.shares(pipeline_replicas)]
        return self._filling([self._late(work, hosts) for work in works])

    def shares(self, pipeline_replicas: ReplicaOfMicrobatch) -> list[Share]:
        """The microbatches of every group of pipeline replicas."""
        return [self.share(pipeline_replicas, number) for number in range(len(self.groups))]

    def share(self, pipeline_replicas: ReplicaOfMicrobatch, group: int) -> Share:
        """The microbatches of one group of pipeline replicas."""
        members, share = self.groups[group], []
        for number in range(self.bubbles.microbatches):
            taken = [
                pipeline_replica
                for unit in pipeline_replicas
                if (pipeline_replica := (unit, pipeline_replicas[unit][number])) in members
            ]
            if taken:
                share.append((number, tuple(taken)))
        return tuple(share)

    def extents(self, share: Share) -> tuple[Extent, ...]:
        """For each way to place a group: seconds before the backbone's start, and seconds after its end."""
        return tuple(self._extent(placement) for placement in self._placements(share))

    def _placements(self, share: Share) -> tuple[Placement, ...]:
        """Placements with forwards as late as possible, with early ones, and with backwards placed before them."""
        if share not in self._kept:
            work = self._work(share)
            late = self._late(work)
            self._kept[share] = late, self._early(work, late), self._backwards_first(work)
        return self._kept[share]

    def _extent(self, *placements: Placement) -> Extent:
        before = max((-placement.first_start for placement in placements), default=0.0)
        after = max((placement.last_end for placement in placements), default=0.0) - self.bubbles.end
        return max(before, 0.0), max(after, 0.0)

    def _late(self, work: Work, hosts: BundleHosts | None = None) -> Placement:
        placement = self._empty(work, hosts)
        place_forwards_late(placement, self.stages, work)
        place_backwards_early(placement, self.stages, work)
        return placement

    def _early(self, work: Work, late: Placement) -> Placement:
        """Places forwards from the same start as early as possible, so that later idle time is there for backwards.

        Afterwards they are as late as these let them be.
        """
        placement = self._empty(work)
        if not place_forwards_early(placement, self.stages, work, min(late.first_start, 0.0)):
            return late
        place_backwards_early(placement, self.stages, work)
        delay_forwards(placement, self.stages, work)
        return placement

    def _backwards_first(self, work: Work) -> Placement:
        placement = self._empty(work)
        place_backwards_early(placement, self.stages, work)
        place_forwards_late(placement, self.stages, work)
        return placement

    def _empty(self, work: Work, hosts: BundleHosts | None = None) -> Placement:
        lanes = {lane for _, slices in work for _, lanes in slices for lane in lanes}
        return Placement(self._idle.copy(lanes), hosts=hosts)

    def _work(self, share: Share) -> Work:
        return [
            (number, sorted(item for pipeline_replica in taken for item in self._slices[pipeline_replica]))
            for number, taken in share
        ]

    def _filling(self, placements: Sequence[Placement]) -> Filling:
        times: dict[SlicePass, Interval] = {}
        bundles: dict[Host, SlicePass] = {}
        for placement in placements:
            times |= {
                ("forward", stage_microbatch): interval for stage_microbatch, interval in placement.forwards.items()
            }
            times |= {
                ("backward", stage_microbatch): interval for stage_microbatch, interval in placement.backwards.items()
            }
            bundles |= placement.bundles
        before, after = self._extent(*placements)
        return Filling(before, after, times, bundles)


def added_seconds(extents: Sequence[tuple[Extent, ...]]) -> float:
    """Returns the seconds that groups add to the step, all placed in the way in which these are fewest."""
    return min(
        max((before for before, _ in way), default=0.0) + max((after for _, after in way), default=0.0)
        for way in zip(*extents, strict=True)
    )


def _groups(stages: Sequence[EncoderStage]) -> list[frozenset[UnitReplica]]:
    """Pipeline replicas in groups: two are in one if they share devices, or if their encoders feed each other."""
    together: list[set[UnitReplica | int]] = []  # pipeline replicas, and the classes of devices that they are on
    for stage in stages:
        name = stage.stage_id[0]
        together += [{(name, pipeline_replica), *lanes} for pipeline_replica, lanes in enumerate(stage.lanes)]
        fed = [target for target in stage.targets if stages[target].stage_id[0] != name]
        for number in fed:
            ends = (stage, stages[number])
            together.append(
                {(end.stage_id[0], pipeline_replica) for end in ends for pipeline_replica in range(len(end.lanes))}
            )
    groups: list[set[UnitReplica | int]] = []
    for members in together:
        joined = [group for group in groups if group & members]
        groups = [group for group in groups if not group & members] + [members.union(*joined)]
    return sorted((frozenset(member for member in group if isinstance(member, tuple)) for group in groups), key=min)
