"""Which ops of the backbone can run in one program with an encoder's, in which it computes while they communicate."""

import bisect
from collections.abc import Sequence

from sharding.schedules.bubbles.backbone_timeline import BackboneTimeline
from sharding.schedules.bubbles.idle_intervals import Interval
from sharding.schedules.ops import PipelineOp

_Host = tuple[float, float, PipelineOp]
"""Start and end of an op that takes a slice, and the op."""

_Taken = tuple[Interval, PipelineOp]


class BundleHosts:
    """Ops of the backbone with exposed collectives, by the classes of devices that run them; each takes one slice.

    Args:
        timeline: When they run.
    """

    def __init__(self, timeline: BackboneTimeline) -> None:
        seconds = timeline.op_graph.seconds
        self._hosts: dict[tuple[int, ...], list[_Host]] = {}
        self._left: dict[tuple[tuple[int, ...], str], int] = {}
        for op, (start, end) in timeline.times.items():
            if op.unit == timeline.unit and seconds[op.stage_id].communication_of(op.kind) > 0:
                self._hosts.setdefault(timeline.lanes_of(op), []).append((start, end, op))
        for hosts in self._hosts.values():
            hosts.sort(key=lambda host: host[:2])

    def copy(self, budget: int) -> "BundleHosts":
        """Independent of others; so many ops on the same devices may be taken in either direction."""
        new = object.__new__(BundleHosts)
        new._hosts = {lanes: list(hosts) for lanes, hosts in self._hosts.items()}
        new._left = {(lanes, kind): budget for lanes in new._hosts for kind in ("forward", "backward")}
        return new

    def take_latest(self, lanes: Sequence[int], due: float) -> _Taken | None:
        """The last op on exactly these devices that ends by a time; None where there is none, or no more may be."""
        hosts, key = self._hosts.get(tuple(lanes), []), (tuple(lanes), "forward")
        position = bisect.bisect_right(hosts, due, key=lambda host: host[1]) - 1
        return self._take(hosts, position, key) if position >= 0 and self._left[key] > 0 else None

    def take_earliest(self, lanes: Sequence[int], release: float) -> _Taken | None:
        """The first op on exactly these devices that starts at a time or later; None as above."""
        hosts, key = self._hosts.get(tuple(lanes), []), (tuple(lanes), "backward")
        position = bisect.bisect_left(hosts, release, key=lambda host: host[0])
        return self._take(hosts, position, key) if position < len(hosts) and self._left[key] > 0 else None

    def _take(self, hosts: list[_Host], position: int, key: tuple[tuple[int, ...], str]) -> _Taken:
        start, end, op = hosts.pop(position)
        self._left[key] -= 1
        return (start, end), op
