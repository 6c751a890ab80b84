"""How much of a unit's idle time is filled by the ops of other units on its devices (Optimus, arXiv 2408.03505)."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from sharding.plans.resolved.device_groups import DeviceGroups, replicas_of_microbatch
from sharding.plans.resolved.stage_graph import StageGraph
from sharding.schedules.ops import COMPUTE_KINDS, GLOBAL_NORM, TRANSFERS, OpKind, PipelineOp
from sharding.simulation.idle.idle_time import IDLE_CAUSES, IdleCause, IdlePeriod, idle_times
from sharding.simulation.op_spans.spans import Span

COMPUTE = (*COMPUTE_KINDS, "update")
"""Kinds of ops that fill idle time."""


@dataclasses.dataclass(frozen=True)
class FilledIdle:
    """The idle time of a unit as if no other unit were on its devices, in seconds, the mean over these.

    What counts is when the ops ran. A device that works for another unit idles from the unit's view, and so does one
    that runs an op of the unit in a bundle, for all of its time in which the unit computes nothing.

    Attributes:
        unit: The unit that computes most on the devices that it shares.
        others: The units with which it shares them.
        idle: Its idle time by cause.
        filled: The share of it in which the others compute.
        scheduling_efficiency: Which share of the others' work on its devices makes the step no longer
            (`scheduling_efficiency`); None if the step was measured.
    """

    unit: str
    others: tuple[str, ...]
    idle: Mapping[IdleCause, float]
    filled: Mapping[IdleCause, float]
    scheduling_efficiency: float | None

    @property
    def filled_share(self) -> float:
        """The filled share of all idle time; 0 without any."""
        idle = sum(self.idle.values())
        return sum(self.filled.values()) / idle if idle else 0.0


def units_on_shared_devices(graph: StageGraph, busy: Mapping[str, float]) -> dict[str, tuple[str, ...]]:
    """By unit that computes most on devices which it shares, the units with which it shares some of them.

    A unit that shares devices with several such units is listed for each.

    Args:
        graph: The stages.
        busy: Device-seconds in which each unit computes.
    """
    devices: dict[str, frozenset[int]] = collections.defaultdict(frozenset)
    for (unit, _), held in graph.devices.items():
        devices[unit] |= held
    for rank, held in graph.rank_devices.items():
        devices[rank[0]] |= held
    order = sorted(devices, key=lambda unit: -busy[unit])
    others_by_unit: dict[str, tuple[str, ...]] = {}
    for unit in order:
        if any(unit in others for others in others_by_unit.values()):
            continue
        others = [other for other in order if other != unit and devices[unit] & devices[other]]
        if others := [other for other in others if other not in others_by_unit]:
            others_by_unit[unit] = tuple(others)
    return others_by_unit


def filled_idle(
    groups: DeviceGroups, stages: StageGraph, spans: Sequence[Span], unit: str, others: tuple[str, ...]
) -> tuple[dict[IdleCause, float], dict[IdleCause, float]]:
    """A unit's idle seconds by cause, and the idle seconds that other units fill; both the mean over its devices.

    Where idle time before an op has several causes, they are filled alike. What others compute between a unit's
    backwards and a reduction of its gradients counts as its cool-down.

    Args:
        groups: The devices.
        stages: Which stages feed which.
        spans: When each op ran, in an order that every device followed.
        unit: The unit.
        others: Units that share its devices.
    """
    walk = _UnitAlone(groups, stages, unit, others)
    for span, partner in with_partners(spans):
        walk.add(span, partner)
    idle: dict[IdleCause, Float[np.ndarray, " n"]] = {cause: np.zeros(len(groups.sizes)) for cause in IDLE_CAUSES}
    filled: dict[IdleCause, Float[np.ndarray, " n"]] = {cause: np.zeros(len(groups.sizes)) for cause in idle}
    step = max(float(span.end.max()) for span in spans)
    for period in idle_times(groups, stages, walk.spans, rendezvous=False, step=step):
        before = None if period.within_span or period.span < 0 else walk.spans[period.span].op.kind
        for cause, seconds, computed in _divided(period, before, walk.filled(period.span, period.within_span)):
            np.add.at(idle[cause], period.groups, seconds)
            np.add.at(filled[cause], period.groups, computed)
    unit_groups = groups_of_unit(groups, unit)
    return _means(groups, unit_groups, idle), _means(groups, unit_groups, filled)


def _means(
    groups: DeviceGroups, unit_groups: Int[np.ndarray, " k"], seconds: Mapping[IdleCause, Float[np.ndarray, " n"]]
) -> dict[IdleCause, float]:
    return {cause: groups.mean_over(unit_groups, group_seconds) for cause, group_seconds in seconds.items()}


def _divided(
    period: IdlePeriod, before: OpKind | None, computed: Float[np.ndarray, " n"]
) -> Iterator[tuple[IdleCause, Float[np.ndarray, "i g"], Float[np.ndarray, "i g"]]]:
    """Idle seconds of a period by cause, and the seconds among them in which other units compute.

    Args:
        period: The period.
        before: The kind of the op before which it is, if any.
        computed: Seconds of it in which others compute, for every group.
    """
    total = sum(period.seconds.values(), start=np.zeros(period.groups.shape))
    filled = np.where(total > 0, computed[period.groups], 0.0)
    if before == "reduce":
        yield "cool-down", filled, filled
        yield "straggler replica", total - filled, np.zeros_like(total)
        return
    for cause, seconds in period.seconds.items():
        yield cause, seconds, filled * np.divide(seconds, total, out=np.zeros_like(total), where=total > 0)


def with_partners(spans: Sequence[Span]) -> Iterator[tuple[Span, Span | None]]:
    """Every span that runs alone or begins a bundle, with the other one of the bundle."""
    remaining = iter(spans)
    for span in remaining:
        yield span, None if span.beside is None else next(remaining)


class _UnitAlone:
    """The spans of one unit, and what others compute before, in and after them on each group of devices.

    Attributes:
        spans: The unit's.
    """

    def __init__(self, groups: DeviceGroups, stages: StageGraph, unit: str, others: tuple[str, ...]) -> None:
        self._groups, self._stages, self._unit, self._others = groups, stages, unit, others
        self.spans: list[Span] = []
        self._since_last = np.zeros(len(groups.sizes))
        self._before: dict[int, Float[np.ndarray, " n"]] = {}
        self._inside: dict[int, Float[np.ndarray, " n"]] = {}

    def add(self, span: Span, partner: Span | None) -> None:
        """Records the next op or bundle of the step."""
        own_spans = [member for member in (span, partner) if member is not None and self._is_own(member.op)]
        beside = [member for member in (span, partner) if member is not None and member not in own_spans]
        for own_span in own_spans:
            number = len(self.spans)
            self.spans.append(_as_if_alone(own_span))
            if own_span.op.kind in TRANSFERS:
                continue
            rows, _ = self._groups_at(own_span.op)
            self._before[number] = self._since_last.copy()
            self._since_last[rows] = 0.0
            if partner is not None:
                self._inside[number] = self._computed(beside)
        if not own_spans:
            self._since_last += self._computed(beside)

    def filled(self, span: int, within: bool) -> Float[np.ndarray, " n"]:
        """Seconds that others computed before one of the unit's spans, or in it; before span -1, after all of them."""
        if span < 0:
            return self._since_last
        return self._inside.get(span, np.zeros_like(self._since_last)) if within else self._before[span]

    def _is_own(self, op: PipelineOp) -> bool:
        if op.kind in TRANSFERS:
            return op.unit == op.target_unit == self._unit
        return op == GLOBAL_NORM or op.unit == self._unit

    def _computed(self, spans: Sequence[Span]) -> Float[np.ndarray, " n"]:
        """Seconds that each group computes in ops of the other units."""
        seconds = np.zeros_like(self._since_last)
        for span in spans:
            if span.op.unit in self._others and span.op.kind in COMPUTE:
                rows, is_first = self._groups_at(span.op)
                np.add.at(seconds, rows, span.compute_seconds[:, None] * is_first)
        return seconds

    def _groups_at(self, op: PipelineOp) -> tuple[Int[np.ndarray, "i g"], np.ndarray]:
        if op == GLOBAL_NORM:
            count = len(self._groups.sizes)
            return np.arange(count)[None], np.ones((1, count), bool)
        return groups_of_op(self._groups, self._stages, op)


def _as_if_alone(span: Span) -> Span:
    """A span that counts what its bundle's other op takes as its own waiting."""
    if span.beside is None:
        return span
    return Span(span.op, span.start, span.end, span.communication + span.beside)


def groups_of_op(groups: DeviceGroups, stages: StageGraph, op: PipelineOp) -> tuple[Int[np.ndarray, "i g"], np.ndarray]:
    """The groups that run an op of a stage, and which of them are no repetitions."""
    tables = (groups.groups_of[op.stage_id], groups.is_first[op.stage_id])
    rows, is_first = (
        replicas_of_microbatch(stages.pipeline_replicas, op.unit, op.microbatch, table) for table in tables
    )
    return rows, is_first


def groups_of_unit(groups: DeviceGroups, unit: str) -> Int[np.ndarray, " k"]:
    """The groups of all devices of a unit."""
    return np.unique(np.concatenate([table.ravel() for stage, table in groups.groups_of.items() if stage[0] == unit]))
