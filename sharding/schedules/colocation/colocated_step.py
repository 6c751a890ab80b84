"""A step with a backbone and encoders on its devices, and orders of it: coarse, in all bubbles, with bundles."""

import collections
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import cast

from sharding.schedules.bubbles.filling import BubbleFiller, Filling, ReplicaOfMicrobatch
from sharding.schedules.bubbles.placement import EncoderStage
from sharding.schedules.colocation.backbone_timeline import BackboneTimeline, backbone_timeline, with_late_warm_up
from sharding.schedules.colocation.colocated_units import ColocatedUnits, colocated_units, without_units
from sharding.schedules.colocation.pass_order import Bundles, OrderedPasses
from sharding.schedules.colocation.waves import generators, wave_starts
from sharding.schedules.hop_order import HopsOfPasses, hops_of_passes
from sharding.schedules.in_flight import InFlightLimits
from sharding.schedules.interleaved_1f1b import interleaved_events, interleaved_in_flight
from sharding.schedules.list_scheduling import ONE_SLOT
from sharding.schedules.numbered_passes import NumberedPasses
from sharding.schedules.ops import OpGraph, PipelineOp
from sharding.schedules.pass_seconds import pass_times

_BUNDLE_SHARES = 4
"""Bundles are tried for so many shares of the encoders' ops, in equal steps up to all of them."""


@dataclasses.dataclass(frozen=True, eq=False)
class ColocatedStep:
    """A step whose encoders share the devices of a backbone.

    Attributes:
        op_graph: The step, with the seconds of every stage; one slot each where its plan has none.
        units: Its backbone and its encoders.
        timeline: When all other ops run, each as early as it can.
        wave: How many microbatches all ranks of the backbone may hold.
    """

    op_graph: OpGraph
    units: ColocatedUnits
    timeline: BackboneTimeline
    wave: int

    @functools.cached_property
    def passes(self) -> NumberedPasses:
        """Its forwards and backwards by numbers."""
        return NumberedPasses(self.op_graph)

    @functools.cached_property
    def hops(self) -> HopsOfPasses:
        """The hops of all its passes."""
        return hops_of_passes(self.op_graph)

    @property
    def pipeline_replicas(self) -> ReplicaOfMicrobatch:
        """Which pipeline replica of each encoder takes each microbatch."""
        graph, microbatches = self.op_graph.stage_graph, range(self.op_graph.microbatches)
        return {
            unit: tuple(graph.pipeline_replica_of_microbatch(unit, number) for number in microbatches)
            for unit in self.units.encoders
        }

    def coarse(self) -> OrderedPasses:
        """Encoders before the backbone's first op on their devices, and after its last."""
        filling = self._filler(self.timeline, coarse=True).fill(self.pipeline_replicas)
        return self._ordered(self.timeline, filling)

    def fine(self) -> Iterator[OrderedPasses]:
        """Encoders in all bubbles: of the backbone as it is, and of one whose warm-up is late."""
        for timeline, filler in zip(self.timelines, self.fillers, strict=True):
            yield self._ordered(timeline, filler.fill(self.pipeline_replicas))

    def bundled(self) -> Iterator[OrderedPasses]:
        """Encoders in all bubbles, and in programs of the backbone whose collectives are exposed."""
        if not self.has_bundles:
            return
        graph, filler = self.op_graph.stage_graph, self.fillers[0]
        passes_by_rank = collections.Counter(
            graph.rank_of_microbatch(stage, number)
            for stage in graph.stages
            if stage[0] in self.units.encoders
            for number in range(self.op_graph.microbatches)
        )
        most = max(passes_by_rank.values())
        for share in range(1, _BUNDLE_SHARES + 1):
            filling = filler.fill_with_bundles(self.pipeline_replicas, -(-most * share // _BUNDLE_SHARES))
            passes = self._ordered(self.timeline, filling)
            if len(passes.ops) == len(self.timeline.times) + len(filling.times):
                yield passes

    def interleaved(self) -> OrderedPasses:
        """All units in one interleaved 1F1B."""
        ops = tuple(self.passes.started(interleaved_events(self.passes)))
        return OrderedPasses(self.op_graph, ops, {}, pass_times(self.op_graph, ops), self.hops)

    def in_waves(self) -> Iterator[OrderedPasses]:
        """All generators on the backbone's devices at once, where it has no chunks."""
        graph = self.op_graph.stage_graph
        has_chunks = any(len(stages) > 1 for rank, stages in graph.stages_of.items() if rank[0] == self.units.backbone)
        if generators(self.op_graph, self.units) and not has_chunks:
            starts = wave_starts(self.passes, self.units, self.wave)
            yield OrderedPasses.by_start(self.passes, starts, {}, self.hops)

    @property
    def has_bundles(self) -> bool:
        """Whether the plan says that some op of the backbone has exposed collectives."""
        backbone_seconds = (
            seconds for stage, seconds in self.op_graph.seconds.items() if stage[0] == self.units.backbone
        )
        return any(
            max(stage_seconds.forward_communication, stage_seconds.backward_communication) > 0
            for stage_seconds in backbone_seconds
        )

    @functools.cached_property
    def timelines(self) -> tuple[BackboneTimeline, BackboneTimeline]:
        """The backbone as it is, and with a late warm-up."""
        return self.timeline, with_late_warm_up(self.timeline)

    @functools.cached_property
    def fillers(self) -> tuple[BubbleFiller, ...]:
        """What places the encoders in the bubbles of each of `timelines`."""
        return tuple(self._filler(timeline) for timeline in self.timelines)

    def _filler(self, timeline: BackboneTimeline, coarse: bool = False) -> BubbleFiller:
        return BubbleFiller(timeline.bubbles(), encoder_stages(timeline, self.units.encoders), coarse)

    def _ordered(self, timeline: BackboneTimeline, filling: Filling) -> OrderedPasses:
        stages = [stage for stage in self.op_graph.stage_graph.stages if stage[0] in self.units.encoders]
        ops = {(kind, (n, i)): PipelineOp(kind, *stages[n], i) for kind, (n, i) in filling.times}
        starts = {op: start for op, (start, _) in timeline.times.items()}
        starts |= {ops[slice_pass]: start for slice_pass, (start, _) in filling.times.items()}
        bundles = cast(Bundles, {host: ops[slice_pass] for host, slice_pass in filling.bundles.items()})
        return OrderedPasses.by_start(self.passes, starts, bundles, self.hops)


def encoder_stages(timeline: BackboneTimeline, encoders: Iterable[str]) -> tuple[EncoderStage, ...]:
    """The stages of encoders in topological order, which their numbers follow."""
    op_graph, graph, names = timeline.op_graph, timeline.op_graph.stage_graph, set(encoders)
    stages = [stage for stage in graph.stages if stage[0] in names]
    numbers = {stage: number for number, stage in enumerate(stages)}
    microbatches = range(op_graph.microbatches)
    return tuple(
        EncoderStage(
            stage_id=stage,
            lanes=tuple(timeline.lanes[rank] for rank in graph.ranks_of[stage]),
            forward=op_graph.seconds[stage].forward,
            backward=op_graph.seconds[stage].backward if stage in op_graph.backward_stages else None,
            targets=tuple(numbers[target] for target in graph.targets[stage] if target in numbers),
            needed_at=tuple(timeline.needed_at(stage, number) for number in microbatches),
            gradient_at=tuple(timeline.gradient_at(stage, number) for number in microbatches),
        )
        for stage in stages
    )


def colocated_step(op_graph: OpGraph, max_in_flight: InFlightLimits | None = None) -> ColocatedStep | None:
    """A step with its backbone scheduled; None where no encoder shares the devices of a backbone.

    Args:
        op_graph: The step.
        max_in_flight: How many microbatches the backbone's ranks may hold; by default as many as in interleaved 1F1B.
    """
    if not op_graph.seconds:
        op_graph = dataclasses.replace(op_graph, seconds=dict.fromkeys(op_graph.stage_graph.stages, ONE_SLOT))
    units = colocated_units(op_graph)
    if units is None:
        return None
    rest, limits = without_units(op_graph, units.encoders), max_in_flight or interleaved_in_flight(op_graph)
    held = [limit for rank, limit in limits.items() if rank[0] == units.backbone]
    # By default the other ranks may hold as many as the first: the memory of the fullest stays about the same.
    wave = min(held) if max_in_flight else max(held)
    return ColocatedStep(op_graph, units, backbone_timeline(op_graph, units.backbone, rest, limits), wave)
