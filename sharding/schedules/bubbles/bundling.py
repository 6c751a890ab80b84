"""Which ops of the backbone can run in one program with an encoder's, in which it computes while they communicate."""

import bisect
from collections.abc import Sequence

from sharding.schedules.bubbles.backbone_timeline import BackboneTimeline
from sharding.schedules.bubbles.idle_intervals import Interval
from sharding.schedules.ops import PipelineOp


class BundleHosts:
    """Ops of the backbone with exposed collectives, by the classes of devices that run them; each takes one slice.

    Args:
        timeline: When they run.
        budget: How many of them may be taken of each set of classes of devices, in either direction.
    """

    def __init__(self, timeline: BackboneTimeline, budget: int) -> None:
        seconds = timeline.op_graph.seconds
        self._hosts: dict[tuple[int, ...], list[tuple[float, float, PipelineOp]]] = {}
        self._left: dict[tuple[tuple[int, ...], str], int] = {}
        for op, (start, end) in timeline.times.items():
            if op.unit == timeline.unit and seconds[op.stage_id].communication_of(op.kind) > 0:
                self._hosts.setdefault(timeline.lanes_of(op), []).append((start, end, op))
        for lanes, hosts in self._hosts.items():
            hosts.sort(key=lambda host: host[:2])
            self._left |= {(lanes, "forward"): budget, (lanes, "backward"): budget}

    def take_latest(self, lanes: Sequence[int], due: float) -> tuple[Interval, PipelineOp] | None:
        """The last op on exactly these devices that ends by a time; None where there is none, or no more may be."""
        hosts, key = self._hosts.get(tuple(lanes), []), (tuple(lanes), "forward")
        for position in range(bisect.bisect_right(hosts, due, key=lambda host: host[1]) - 1, -1, -1):
            if self._left[key] > 0 and hosts[position][1] <= due:
                return self._take(hosts, position, key)
        return None

    def take_earliest(self, lanes: Sequence[int], release: float) -> tuple[Interval, PipelineOp] | None:
        """The first op on exactly these devices that starts at a time or later; None as above."""
        hosts, key = self._hosts.get(tuple(lanes), []), (tuple(lanes), "backward")
        position = bisect.bisect_left(hosts, release, key=lambda host: host[0])
        return self._take(hosts, position, key) if position < len(hosts) and self._left[key] > 0 else None

    def _take(self, hosts: list[tuple[float, float, PipelineOp]], position: int, key: tuple) -> tuple:
        start, end, op = hosts.pop(position)
        self._left[key] -= 1
        return (start, end), op
