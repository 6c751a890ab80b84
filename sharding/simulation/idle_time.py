"""Where devices idle in a step, and why."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from sharding.plans.device_groups import DeviceGroups, source_replicas
from sharding.plans.stage_graph import StageId
from sharding.schedules.ops import OpGraph
from sharding.simulation.spans import Span

IDLE_CAUSES = {
    "warm-up": "before a device's first forward, apart from gathers",
    "dependency": "an input is not there, or a device of the instance is busy, for no other reason here",
    "straggler microbatch": "an input's producer took longer than for the mean microbatch",
    "straggler instance": "an input's producer took longer than the mean of its instances; or before a reduction",
    "hop": "an input is on its way",
    "tensor": "collectives of tensor, sequence or expert ranks inside an op",
    "gather": "data-parallel gathering of weights",
    "reduce": "data-parallel reduction of gradients",
    "cool-down": "after a device's last forward or backward, apart from reductions and updates",
}
"""Every cause, and what it means. They exclude each other: with the busy time they add up to the step.

A forward or backward that waits for an input, h seconds under way from an op of producer p, leaves a gap in which its
device idles; that of the latest input counts. `hop` is min(gap, h); of what remains, `straggler instance` is what p's
op took more than the mean of its instances, `straggler microbatch` what that mean is more than p's mean over all
microbatches, each at most the remainder, and the rest is `dependency`. So is the time in which the device itself is
free, but not every device of its instance. Fast instances' wait for slow ones in front of their reduction is
`straggler instance`. Where hops hold devices, the time inside one is `hop`, and that before it is divided like a gap.
Before a device's first forward all is `warm-up`, after its last forward or backward all is `cool-down`, but for the
collectives named.
"""

TRANSFERS = ("hop", "hop_back", "share", "share_back")
_PRODUCED_BY = {"hop": "forward", "hop_back": "backward"}


@dataclasses.dataclass(frozen=True, eq=False)
class IdlePeriod:
    """Idle time of some groups of devices around one span.

    Attributes:
        span: Number of the span, or -1 for what is left at the end of the step.
        inside: Whether it lies in the span, or in front of it.
        groups: Numbers of the groups.
        seconds: By cause, of each of the groups; zero where a group stands again.
    """

    span: int
    within_span: bool
    groups: Int[np.ndarray, "i g"]
    seconds: Mapping[str, Float[np.ndarray, "i g"]]


def idle_by_cause(idles: Sequence[IdlePeriod], groups: int) -> dict[str, Float[np.ndarray, " n"]]:
    """Idle seconds of every group of devices, by cause."""
    totals = {cause: np.zeros(groups) for cause in IDLE_CAUSES}
    for idle in idles:
        for cause, seconds in idle.seconds.items():
            np.add.at(totals[cause], idle.groups, seconds)
    return totals


def idle_times(work: OpGraph, groups: DeviceGroups, spans: Sequence[Span], rendezvous: bool) -> Iterator[IdlePeriod]:
    """All idle time of a step.

    Args:
        work: What the step did.
        groups: Its devices.
        spans: In an order that every device followed.
        rendezvous: Whether hops and shares held the devices at both their ends.
    """
    replay = _Replay(work, groups, spans)
    for number, span in enumerate(spans):
        kind = span.op.kind
        if kind in TRANSFERS:
            replay.note(span)
            if rendezvous:
                yield from replay.meeting(number, span)
        elif kind in ("forward", "backward"):
            yield from replay.compute(number, span)
        else:
            yield from replay.once_a_step(number, span)
    yield replay.rest(max(float(span.end.max()) for span in spans))


class _Replay:
    """Goes through spans in order and remembers when each group was last at work."""

    def __init__(self, work: OpGraph, groups: DeviceGroups, spans: Sequence[Span]) -> None:
        self._work = work
        self._groups = groups
        count = len(groups.sizes)
        self._everything = (np.arange(count)[None], np.ones((1, count), bool))
        self._free = np.zeros(count)
        self._left = np.zeros(count, int)  # forwards and backwards still to come
        self._ran: dict[tuple[str, StageId, int], Span] = {}
        self._came: dict[tuple[str, StageId, int], list[Span]] = collections.defaultdict(list)
        turns: dict[tuple[str, StageId], list[float]] = collections.defaultdict(list)
        for span in spans:
            if span.op.kind in ("forward", "backward"):
                turns[span.op.kind, span.op.stage_id].append(float(span.seconds.mean()))
                rows = groups.groups_of[span.op.stage_id]
                self._left[rows] += 1
        self._all = self._left.copy()
        self._mean = {key: float(np.mean(seconds)) for key, seconds in turns.items()}

    def note(self, span: Span) -> None:
        part = span.op
        if part.kind in _PRODUCED_BY:
            self._came[_PRODUCED_BY[part.kind], part.target_id, part.microbatch].append(span)

    def compute(self, number: int, span: Span) -> Iterator[IdlePeriod]:
        part = span.op
        rows, counted = self._groups.groups_of[part.stage_id], self._groups.is_first[part.stage_id]
        key = (part.kind, part.stage_id, part.microbatch)
        free = self._free[rows]
        gap = (span.start[:, None] - free) * counted
        if gap.any():
            first = self._left[rows] == self._all[rows]
            late = np.maximum(span.start - free.max(axis=1), 0.0)
            seconds = self._divide(np.where(first, 0.0, gap), late, self._came.get(key, []))
            yield IdlePeriod(number, False, rows, {"warm-up": gap * first, **seconds})
        if span.communication.any():
            yield IdlePeriod(number, True, rows, {"tensor": span.communication[:, None] * counted})
        self._free[rows] = span.end[:, None]
        self._left[rows] -= 1
        self._ran[key] = span

    def _divide(
        self, gap: Float[np.ndarray, "i g"], late: Float[np.ndarray, " i"], inputs: list[Span]
    ) -> dict[str, Float[np.ndarray, "i g"]]:
        """Divides gaps, of which an input accounts for the last `late` seconds, by cause."""
        if not inputs:
            return {"dependency": gap}
        limits = [self._limits(hop) for hop in inputs]
        latest = np.argmax(np.stack([hop.end for hop in inputs]), axis=0)
        here = np.arange(len(latest))
        seconds = {}
        rest = np.minimum(gap, late[:, None])
        busy_peers = gap - rest
        for cause in ("hop", "straggler instance", "straggler microbatch"):
            limit = np.stack([limit[cause] for limit in limits])[latest, here]
            seconds[cause] = np.minimum(rest, limit[:, None])
            rest = rest - seconds[cause]
        return {**seconds, "dependency": busy_peers + rest}

    def _limits(self, hop: Span) -> dict[str, Float[np.ndarray, " i"]]:
        """How long each cause can account for the wait for one input, on each instance."""
        part, kind = hop.op, _PRODUCED_BY[hop.op.kind]
        produced = self._ran[kind, part.stage_id, part.microbatch]
        sources = source_replicas(len(produced.end), len(hop.end))
        last = np.take_along_axis(sources, produced.end[sources].argmax(axis=1)[:, None], axis=1)[:, 0]
        took, mean = produced.seconds, produced.seconds.mean()
        return {
            "hop": hop.seconds,
            "straggler instance": np.maximum(took[last] - mean, 0.0),
            "straggler microbatch": np.full(len(last), max(mean - self._mean[kind, part.stage_id], 0.0)),
        }

    def once_a_step(self, number: int, span: Span) -> Iterator[IdlePeriod]:
        """Gathers, reductions, the norm and updates."""
        kind = span.op.kind
        rows, counted = self._everything
        if kind != "norm":
            rows, counted = self._groups.groups_of[span.op.stage_id], self._groups.is_first[span.op.stage_id]
        gap = (span.start[:, None] - self._free[rows]) * counted
        if gap.any():
            yield IdlePeriod(number, False, rows, {_BEFORE[kind]: gap})
        if kind in _WITHIN:
            yield IdlePeriod(number, True, rows, {_WITHIN[kind]: span.seconds[:, None] * counted})
        self._free[rows] = span.end[:, None]

    def meeting(self, number: int, span: Span) -> Iterator[IdlePeriod]:
        """A hop or a share that holds the devices at both its ends."""
        start, end = self._held(span)
        rows = np.flatnonzero(np.isfinite(start))[None]
        first, last = self._left[rows] == self._all[rows], self._left[rows] == 0
        between = ~first & ~last
        gap, within = start[rows] - self._free[rows], end[rows] - start[rows]
        outside = (gap + within) * ~between
        waits = {"dependency": gap * between}
        if span.op.kind in _PRODUCED_BY:
            waits = self._divide_meeting(rows, gap * between, span)
        yield IdlePeriod(
            number, False, rows, {"warm-up": outside * first, "cool-down": outside * (last & ~first), **waits}
        )
        yield IdlePeriod(number, True, rows, {"hop": within * between})
        self._free[rows] = end[rows]

    def _held(self, span: Span) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """From when to when a transfer holds each group; infinite where it does not."""
        here, there = self._groups.groups_of[span.op.stage_id], self._groups.groups_of[span.op.target_id]
        start, end = np.full(len(self._free), np.inf), np.full(len(self._free), -np.inf)
        back = source_replicas(len(there), len(here))
        np.minimum.at(start, there, span.start[:, None])
        np.minimum.at(start, here, span.start[back].min(axis=1)[:, None])
        np.maximum.at(end, there, span.end[:, None])
        np.maximum.at(end, here, span.end[back].max(axis=1)[:, None])
        return start, end

    def _divide_meeting(
        self, rows: Int[np.ndarray, "i g"], gap: Float[np.ndarray, "i g"], hop: Span
    ) -> dict[str, Float[np.ndarray, "i g"]]:
        """A hop's target waits for its producer, and its source for the target's devices."""
        limits = self._limits(hop)
        there = self._groups.groups_of[hop.op.target_id]
        seconds, rest = {}, gap
        for cause in ("straggler instance", "straggler microbatch"):
            limit = np.zeros(len(self._free))
            limit[there] = limits[cause][:, None]
            seconds[cause] = np.minimum(rest, limit[rows])
            rest = rest - seconds[cause]
        return {**seconds, "dependency": rest}

    def rest(self, step: float) -> IdlePeriod:
        rows, _ = self._everything
        return IdlePeriod(-1, False, rows, {"cool-down": step - self._free[rows]})


_BEFORE = {"gather": "warm-up", "reduce": "straggler instance", "norm": "cool-down", "update": "cool-down"}
_WITHIN = {"gather": "gather", "reduce": "reduce", "norm": "reduce"}
