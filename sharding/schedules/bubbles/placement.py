"""Places the slices of encoders in idle intervals: forwards before the backbone needs them, backwards after its own.

Times are the backbone's alone. What fits in none of its idle intervals comes before 0, or after its end.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from math import inf
from typing import Literal

from sharding.plans.resolved.stage_graph import StageId
from sharding.schedules.bubbles.bundling import BundleHosts, Host
from sharding.schedules.bubbles.idle_intervals import IdleIntervals, Interval


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderStage:
    """A stage of an encoder: a slice of its work on each microbatch.

    Attributes:
        stage_id: The stage.
        lanes: The classes of devices of each pipeline replica.
        forward: Seconds of a forward.
        backward: Seconds of a backward; None if it runs none.
        targets: Numbers of the encoder stages that it feeds.
        needed_at: Seconds F_i of every microbatch, from the stages that it feeds beyond the encoders; infinity if none.
        gradient_at: Seconds B_i of every microbatch, likewise; minus infinity if none.
    """

    stage_id: StageId
    lanes: tuple[tuple[int, ...], ...]
    forward: float
    backward: float | None
    targets: tuple[int, ...]
    needed_at: tuple[float, ...]
    gradient_at: tuple[float, ...]


Slice = tuple[int, int]
"""(number of the encoder stage, microbatch)."""

SlicePass = tuple[Literal["forward", "backward"], Slice]
"""The forward or the backward of a slice."""

Work = Sequence[tuple[int, Sequence[tuple[int, tuple[int, ...]]]]]
"""The work of a group of pipeline replicas:

for each microbatch its (number of the encoder stage, classes of devices).
"""


@dataclasses.dataclass
class Placement:
    """When the slices of some pipeline replicas run.

    Attributes:
        idle: The idle intervals that remain.
        forwards: Start and end of every slice's forward, in seconds.
        backwards: Start and end of every slice's backward, in seconds.
        hosts: Ops that take a slice into their program; None for no bundles.
        bundles: The ops that have taken a slice, and the slice that each took.
    """

    idle: IdleIntervals
    forwards: dict[Slice, Interval] = dataclasses.field(default_factory=dict)
    backwards: dict[Slice, Interval] = dataclasses.field(default_factory=dict)
    hosts: BundleHosts | None = None
    bundles: dict[Host, SlicePass] = dataclasses.field(default_factory=dict)

    @property
    def first_start(self) -> float:
        """When the first forward starts; infinity without any."""
        return min((start for start, _ in self.forwards.values()), default=inf)

    @property
    def last_end(self) -> float:
        """When the last backward ends; minus infinity without any."""
        return max((end for _, end in self.backwards.values()), default=-inf)

    def starts_of_forwards(self, stages: Iterable[int], microbatch: int) -> list[float]:
        """When the stages that are placed start a microbatch's forward, in seconds."""
        return [self.forwards[stage, microbatch][0] for stage in stages if (stage, microbatch) in self.forwards]

    def ends_of_backwards(self, stages: Iterable[int], microbatch: int) -> list[float]:
        """When the stages that are placed end a microbatch's backward, in seconds."""
        return [self.backwards[stage, microbatch][1] for stage in stages if (stage, microbatch) in self.backwards]


def place_forwards_late(placement: Placement, stages: Sequence[EncoderStage], work: Work) -> None:
    """Places forwards as late as the backbone's dependency points allow, the latest microbatch first.

    That is the least time before the backbone that these slices take, and leaves early idle time to earlier ones.
    """
    for microbatch, slices in sorted(work, key=lambda item: _due(stages, item), reverse=True):
        for number, lanes in reversed(slices):
            stage = stages[number]
            due = min([stage.needed_at[microbatch], *placement.starts_of_forwards(stage.targets, microbatch)])
            taken = placement.hosts.take_latest(lanes, due) if placement.hosts else None
            if taken:
                placement.forwards[number, microbatch], host = taken
                placement.bundles[host] = ("forward", (number, microbatch))
                continue
            placement.forwards[number, microbatch] = placement.idle.take_latest(lanes, stage.forward, due)


def place_forwards_early(placement: Placement, stages: Sequence[EncoderStage], work: Work, begin: float) -> bool:
    """Places forwards as early as possible from `begin` on, the first due first; whether all meet their points."""
    for microbatch, slices in sorted(work, key=lambda item: _due(stages, item)):
        ready: dict[int, float] = {}
        for number, lanes in slices:
            stage = stages[number]
            interval = placement.idle.take_earliest(lanes, stage.forward, ready.get(number, begin))
            if interval[1] > stage.needed_at[microbatch] + placement.idle.slack:
                return False
            placement.forwards[number, microbatch] = interval
            for target in stage.targets:
                ready[target] = max(ready.get(target, begin), interval[1])
    return True


def delay_forwards(placement: Placement, stages: Sequence[EncoderStage], work: Work) -> None:
    """Moves forwards into later idle intervals, so that less is in flight."""
    for microbatch, slices in sorted(work, key=lambda item: _due(stages, item), reverse=True):
        for number, lanes in reversed(slices):
            stage, interval = stages[number], placement.forwards[number, microbatch]
            due = min([stage.needed_at[microbatch], *placement.starts_of_forwards(stage.targets, microbatch)])
            placement.idle.release(lanes, interval)
            placement.forwards[number, microbatch] = placement.idle.take_latest(lanes, stage.forward, due)


def place_backwards_early(placement: Placement, stages: Sequence[EncoderStage], work: Work) -> None:
    """Places backwards as early as the backbone has their gradients, the first microbatch first."""
    for microbatch, slices in sorted(work, key=lambda item: _release(stages, item)):
        for number, lanes in reversed(slices):
            stage = stages[number]
            if stage.backward is None:
                continue
            release = max([stage.gradient_at[microbatch], *placement.ends_of_backwards(stage.targets, microbatch)])
            if (number, microbatch) in placement.forwards:
                release = max(release, placement.forwards[number, microbatch][1])
            taken = placement.hosts.take_earliest(lanes, release) if placement.hosts else None
            if taken:
                placement.backwards[number, microbatch], host = taken
                placement.bundles[host] = ("backward", (number, microbatch))
                continue
            placement.backwards[number, microbatch] = placement.idle.take_earliest(lanes, stage.backward, release)


def _due(stages: Sequence[EncoderStage], item: tuple[int, Sequence]) -> tuple[float, int]:
    """When the backbone first needs something of a microbatch."""
    microbatch, slices = item
    return min(stages[number].needed_at[microbatch] for number, _ in slices), microbatch


def _release(stages: Sequence[EncoderStage], item: tuple[int, Sequence]) -> tuple[float, int]:
    """When the backbone first has some gradient of a microbatch."""
    microbatch, slices = item
    gradients = [stages[number].gradient_at[microbatch] for number, _ in slices]
    return min((value for value in gradients if value > -inf), default=-inf), microbatch
