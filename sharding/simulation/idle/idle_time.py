"""Where devices idle in a step, and why."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from sharding.plans.resolved.device_groups import DeviceGroups, last_source, latest_of_sources, replicas_of_microbatch
from sharding.plans.resolved.stage_graph import StageGraph, StageId
from sharding.schedules.ops import COMPUTE_KINDS, TRANSFERS, OpKind, PipelineOp
from sharding.simulation.op_spans.spans import Span

IdleCause = Literal[
    "warm-up",
    "dependency",
    "straggler microbatch",
    "straggler replica",
    "hop",
    "tensor parallel",
    "gather",
    "reduce",
    "cool-down",
]

IDLE_CAUSES: dict[IdleCause, str] = {
    "warm-up": "A device waits for its first forward: the pipeline fills. Gathers are counted apart.",
    "dependency": "An input has not been computed yet, or another device of the replica is busy, for no other reason "
    "listed here.",
    "straggler microbatch": "The op that produces an input took longer than it takes for the mean microbatch.",
    "straggler replica": "The op that produces an input took longer than on its mean replica, or fast replicas wait "
    "for slow ones before they reduce gradients.",
    "hop": "An input has been computed and is on its way from the devices of another stage.",
    "tensor parallel": "Collectives of tensor, context-parallel or expert ranks inside an op, as far as no other op of "
    "its bundle computes beside them.",
    "gather": "Data-parallel ranks gather their compute weights, once a step, and compute nothing beside it.",
    "reduce": "Data-parallel ranks sum their gradients, once a step, and compute nothing beside it.",
    "cool-down": "A device has finished its last forward, backward or wgrad: the pipeline drains. Reductions and "
    "updates are counted apart.",
}
"""Every cause, and what it means. The causes exclude each other: with the busy time they add up to the step.

A forward or backward whose input took h seconds to arrive from the op p that produced it leaves a gap in which its
device idles; of several inputs the latest counts. `hop` is min(gap, h). Of what remains, `straggler replica` is what
p took longer than the mean of its replicas, and `straggler microbatch` what that mean is longer than p's mean over
all microbatches, each limited to the remainder; the rest is `dependency`. So is the time in which a device itself is
free, but not every device of its replica. What fast replicas wait for slow ones before their reduction, or before
they gather the weights of a chunk that is not their first, is `straggler replica`. Where hops occupy devices, the
time inside a hop is `hop`, and the time before it is divided like a gap. Before a device's first forward all idle
time is `warm-up`, after its last forward, backward or wgrad all is `cool-down`, except for the collectives named.
"""

_PRODUCER: dict[OpKind, OpKind] = {"hop": "forward", "gradient_hop": "backward"}


@dataclasses.dataclass(frozen=True, eq=False)
class IdlePeriod:
    """Idle time of some groups of devices around one span.

    Attributes:
        span: Number of the span, or -1 for what is left at the end of the step.
        within_span: Whether the time is in the span, or before it.
        groups: Numbers of the groups of devices.
        seconds: By cause, the seconds of each of the groups; 0 where a group is repeated.
    """

    span: int
    within_span: bool
    groups: Int[np.ndarray, "i g"]
    seconds: Mapping[IdleCause, Float[np.ndarray, "i g"]]


def idle_by_cause(periods: Sequence[IdlePeriod], groups: int) -> dict[IdleCause, Float[np.ndarray, " n"]]:
    """Idle seconds of every group of devices, by cause."""
    totals: dict[IdleCause, Float[np.ndarray, " n"]] = {cause: np.zeros(groups) for cause in IDLE_CAUSES}
    for period in periods:
        for cause, seconds in period.seconds.items():
            np.add.at(totals[cause], period.groups, seconds)
    return totals


def idle_times(
    groups: DeviceGroups, stages: StageGraph, spans: Sequence[Span], rendezvous: bool, step: float
) -> Iterator[IdlePeriod]:
    """All idle time of a step.

    Args:
        groups: The devices.
        stages: Which stages feed which.
        spans: When each op ran, in an order that every device followed.
        rendezvous: Whether hops and transfers of tied parameters occupied the devices of both their ends.
        step: Seconds of the step.
    """
    replay, numbered = _Replay(groups, stages, spans), iter(enumerate(spans))
    for number, span in numbered:
        if span.op.kind in TRANSFERS:
            replay.record_transfer(span)
            if rendezvous:
                yield from replay.transfer(number, span)
        elif span.beside is None:
            yield from replay.alone(number, span)
        else:
            _, second = next(numbered)
            yield from replay.bundle(number, span, second)
    yield replay.rest_of_step(step)


class _Replay:
    """Goes through the spans in order and records when each group of devices was last busy."""

    def __init__(self, groups: DeviceGroups, stages: StageGraph, spans: Sequence[Span]) -> None:
        self._groups, self._stages = groups, stages
        count = len(groups.sizes)
        self._all_groups = (np.arange(count)[None], np.ones((1, count), bool))
        self._free = np.zeros(count)
        self._remaining = np.zeros(count, int)  # ops of `COMPUTE_KINDS` still to come
        self._ran: dict[tuple[OpKind, StageId, int], Span] = {}
        self._inputs: dict[tuple[OpKind, StageId, int], list[Span]] = collections.defaultdict(list)
        seconds: dict[tuple[OpKind, StageId], list[float]] = collections.defaultdict(list)
        for span in spans:
            if span.op.kind in COMPUTE_KINDS:
                seconds[span.op.kind, span.op.stage_id].append(float(span.own_seconds.mean()))
                self._remaining[self._groups_at(span.op)[0]] += 1
        self._total = self._remaining.copy()
        self._mean_seconds = {key: float(np.mean(values)) for key, values in seconds.items()}

    def record_transfer(self, span: Span) -> None:
        """Records a hop as an input of the op that it feeds."""
        if span.op.kind in _PRODUCER:
            self._inputs[_PRODUCER[span.op.kind], span.op.target_id, span.op.microbatch].append(span)

    def alone(self, number: int, span: Span) -> Iterator[IdlePeriod]:
        """Idle time before and inside an op that is no transfer."""
        yield from self._before(number, span, span.start)
        yield from self._inside(number, span)
        self._finish(span)

    def bundle(self, number: int, first: Span, second: Span) -> Iterator[IdlePeriod]:
        """Idle time before and inside two ops of one program.

        Devices wait for what the first needs, and what remains until both start for what the second needs.
        """
        ready = np.minimum(self._ready(first), first.start)
        yield from self._before(number, first, ready)
        self._free[self._groups_at(first.op)[0]] = ready[:, None]
        yield from self._before(number + 1, second, second.start)
        for turn, span in enumerate((first, second)):
            yield from self._inside(number + turn, span)
            self._finish(span)

    def _ready(self, span: Span) -> Float[np.ndarray, " i"]:
        """Seconds at which each replica of an op could start it."""
        free = self._free[self._groups_at(span.op)[0]].max(axis=1)
        if span.op.microbatch < 0:
            return np.full_like(free, free.max())
        for hop in self._inputs.get((span.op.kind, span.op.stage_id, span.op.microbatch), ()):
            free = np.maximum(free, hop.end)
        return free

    def _before(self, number: int, span: Span, until: Float[np.ndarray, " i"]) -> Iterator[IdlePeriod]:
        """Idle time from when devices were last busy until a moment before an op."""
        op = span.op
        rows, is_first = self._groups_at(op)
        free = self._free[rows]
        gap = (until[:, None] - free) * is_first
        if not gap.any():
            return
        if op.kind in COMPUTE_KINDS:
            before_first = self._remaining[rows] == self._total[rows]
            waited = np.maximum(until - free.max(axis=1), 0.0)
            inputs = self._inputs.get((op.kind, op.stage_id, op.microbatch), [])
            seconds = self._divide_gap(np.where(before_first, 0.0, gap), waited, inputs)
            yield IdlePeriod(number, False, rows, {"warm-up": gap * before_first, **seconds})
        elif op.kind == "gather":  # of a chunk that the devices did not start with
            started = self._remaining[rows] < self._total[rows]
            yield IdlePeriod(number, False, rows, {"warm-up": gap * ~started, "straggler replica": gap * started})
        else:
            yield IdlePeriod(number, False, rows, {_BEFORE[op.kind]: gap})

    def _inside(self, number: int, span: Span) -> Iterator[IdlePeriod]:
        """Idle time inside an op."""
        rows, is_first = self._groups_at(span.op)
        if span.op.kind in _INSIDE:
            yield IdlePeriod(number, True, rows, {_INSIDE[span.op.kind]: span.own_seconds[:, None] * is_first})
        elif span.communication.any():
            yield IdlePeriod(number, True, rows, {"tensor parallel": span.communication[:, None] * is_first})

    def _finish(self, span: Span) -> None:
        """Records that an op has occupied its devices until its end."""
        op = span.op
        rows, _ = self._groups_at(op)
        self._free[rows] = span.end[:, None]
        if op.kind in COMPUTE_KINDS:
            self._remaining[rows] -= 1
            self._ran[op.kind, op.stage_id, op.microbatch] = span

    def _divide_gap(
        self, gap: Float[np.ndarray, "i g"], waited: Float[np.ndarray, " i"], inputs: list[Span]
    ) -> dict[IdleCause, Float[np.ndarray, "i g"]]:
        """Divides gaps by cause; the latest input accounts for their last `waited` seconds."""
        if not inputs:
            return {"dependency": gap}
        limits = [self._limits(hop) for hop in inputs]
        latest = np.argmax(np.stack([hop.end for hop in inputs]), axis=0)
        replicas = np.arange(len(latest))
        seconds: dict[IdleCause, Float[np.ndarray, "i g"]] = {}
        rest = np.minimum(gap, waited[:, None])
        peers_busy = gap - rest
        causes: tuple[IdleCause, ...] = ("hop", "straggler replica", "straggler microbatch")
        for cause in causes:
            limit = np.stack([limit[cause] for limit in limits])[latest, replicas]
            seconds[cause] = np.minimum(rest, limit[:, None])
            rest = rest - seconds[cause]
        return {**seconds, "dependency": peers_busy + rest}

    def _limits(self, hop: Span) -> dict[IdleCause, Float[np.ndarray, " i"]]:
        """The most that each cause can account for of the wait for one input, on each replica."""
        op, kind = hop.op, _PRODUCER[hop.op.kind]
        produced = self._ran[kind, op.stage_id, op.microbatch]
        exchanged = self._stages.is_exchange(op.stage_id, op.target_id)
        last = last_source(produced.end, len(hop.end), exchanged)
        seconds = produced.own_seconds
        mean = seconds.mean()
        return {
            "hop": hop.seconds,
            "straggler replica": np.maximum(seconds[last] - mean, 0.0),
            "straggler microbatch": np.full(len(last), max(mean - self._mean_seconds[kind, op.stage_id], 0.0)),
        }

    def _groups_at(self, op: PipelineOp) -> tuple[Int[np.ndarray, "i g"], Bool[np.ndarray, "i g"]]:
        """The groups that run an op that is no transfer, and which of them are no repetitions."""
        if op.kind == "global_norm":
            return self._all_groups
        tables = (self._groups.groups_of[op.stage_id], self._groups.is_first[op.stage_id])
        groups, is_first = (
            replicas_of_microbatch(self._stages.pipeline_replicas, op.unit, op.microbatch, table) for table in tables
        )
        return groups, is_first

    def _ends(self, op: PipelineOp) -> tuple[Int[np.ndarray, "_ _"], Int[np.ndarray, "_ _"]]:
        """The groups at both ends of a transfer."""
        source, target = (
            replicas_of_microbatch(
                self._stages.pipeline_replicas, stage[0], op.microbatch, self._groups.groups_of[stage]
            )
            for stage in (op.stage_id, op.target_id)
        )
        return source, target

    def transfer(self, number: int, span: Span) -> Iterator[IdlePeriod]:
        """Idle time before and inside a transfer that occupies the devices of both its ends."""
        start, end = self._occupied(span)
        rows = np.flatnonzero(np.isfinite(start))[None]
        before_first, after_last = self._remaining[rows] == self._total[rows], self._remaining[rows] == 0
        between = ~before_first & ~after_last
        gap, inside = start[rows] - self._free[rows], end[rows] - start[rows]
        outside = (gap + inside) * ~between
        waits: dict[IdleCause, Float[np.ndarray, "i g"]] = {"dependency": gap * between}
        if span.op.kind in _PRODUCER:
            waits = self._divide_transfer_gap(rows, gap * between, span)
        ends: dict[IdleCause, Float[np.ndarray, "i g"]] = {
            "warm-up": outside * before_first,
            "cool-down": outside * (after_last & ~before_first),
        }
        yield IdlePeriod(number, False, rows, {**ends, **waits})
        yield IdlePeriod(number, True, rows, {"hop": inside * between})
        self._free[rows] = end[rows]

    def _occupied(self, span: Span) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """From when to when a transfer occupies each group; infinite where it does not."""
        source, target = self._ends(span.op)
        start, end = np.full(len(self._free), np.inf), np.full(len(self._free), -np.inf)
        exchanged = self._stages.is_exchange(span.op.stage_id, span.op.target_id)
        first_start = -latest_of_sources(-span.start, len(source), exchanged)
        last_end = latest_of_sources(span.end, len(source), exchanged)
        np.minimum.at(start, target, span.start[:, None])
        np.minimum.at(start, source, first_start[:, None])
        np.maximum.at(end, target, span.end[:, None])
        np.maximum.at(end, source, last_end[:, None])
        return start, end

    def _divide_transfer_gap(
        self, rows: Int[np.ndarray, "i g"], gap: Float[np.ndarray, "i g"], hop: Span
    ) -> dict[IdleCause, Float[np.ndarray, "i g"]]:
        """Divides the gap before a hop: its target waits for the producing op, its source for the target's devices."""
        limits = self._limits(hop)
        _, target = self._ends(hop.op)
        seconds: dict[IdleCause, Float[np.ndarray, "i g"]] = {}
        rest = gap
        causes: tuple[IdleCause, ...] = ("straggler replica", "straggler microbatch")
        for cause in causes:
            limit = np.zeros(len(self._free))
            limit[target] = limits[cause][:, None]
            seconds[cause] = np.minimum(rest, limit[rows])
            rest = rest - seconds[cause]
        return {**seconds, "dependency": rest}

    def rest_of_step(self, step: float) -> IdlePeriod:
        """Idle time from each group's last op to the end of the step."""
        rows, _ = self._all_groups
        return IdlePeriod(-1, False, rows, {"cool-down": step - self._free[rows]})


_BEFORE: dict[OpKind, IdleCause] = {
    "reduce": "straggler replica",
    "global_norm": "cool-down",
    "update": "cool-down",
}
_INSIDE: dict[OpKind, IdleCause] = {"gather": "gather", "reduce": "reduce", "global_norm": "reduce"}
