"""A schedule as data: ops, the dependencies of each, and a total order of them."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from configs.common.errors import UserError
from sharding.plans.resolved.stage_graph import StageEdge, StageGraph, StageId

OpKind = Literal[
    "forward",
    "backward",
    "wgrad",
    "hop",
    "gradient_hop",
    "gather",
    "send_tied_weight",
    "reduce",
    "send_tied_gradient",
    "global_norm",
    "update",
]

COMPUTE_KINDS: tuple[OpKind, ...] = ("forward", "backward", "wgrad")
"""Kinds that compute on a microbatch in a stage."""

TRANSFERS: tuple[OpKind, ...] = ("hop", "gradient_hop", "send_tied_weight", "send_tied_gradient")
"""Kinds that move arrays from one stage to another."""


class ScheduleError(UserError):
    """A schedule that cannot run; the message names the op at fault."""


class PipelineOp(NamedTuple):
    """One piece of work of a step. A tuple, because a step has tens of thousands that serve as dictionary keys.

    Attributes:
        kind: Once per microbatch: `forward`, `backward`, `hop` (sends an activation), `gradient_hop` (sends a
            gradient), `wgrad` (computes the gradients of weights where `backward` leaves them for later,
            `OpGraph.split_stages`). Once per step: `gather` (makes compute weights from master weights),
            `send_tied_weight` (sends a tied weight from its owner to its borrower), `reduce` (sums gradients over
            replicas), `send_tied_gradient` (sends the gradient of a tied weight from the borrower to the owner),
            `global_norm` (gradient norm and losses, over all devices), `update`.
        unit: Unit of the stage that runs the op, or that sends; empty for `global_norm`, which runs on every device.
        stage: Number of that stage in its unit; -1 for `global_norm`.
        microbatch: Number of the microbatch; -1 for an op that runs once per step.
        target_unit: Unit of the receiving stage of a transfer; empty for the other kinds.
        target_stage: Number of the receiving stage; -1 for the other kinds.
    """

    kind: OpKind
    unit: str
    stage: int
    microbatch: int = -1
    target_unit: str = ""
    target_stage: int = -1

    @property
    def stage_id(self) -> StageId:
        """The stage that runs the op, or that sends."""
        return (self.unit, self.stage)

    @property
    def target_id(self) -> StageId:
        """The stage that receives; ("", -1) for an op that is no transfer."""
        return (self.target_unit, self.target_stage)

    def __str__(self) -> str:
        if not self.unit:
            return self.kind
        target = f" -> {self.target_unit} {self.target_stage}" if self.target_unit else ""
        microbatch = f" of microbatch {self.microbatch}" if self.microbatch >= 0 else ""
        return f"{self.kind} {self.unit} {self.stage}{target}{microbatch}"


GLOBAL_NORM = PipelineOp("global_norm", "", -1)
"""The one op that runs on every device."""


class StageSeconds(NamedTuple):
    """How long a stage's ops take; only the proportions between stages matter to an order.

    Attributes:
        forward: Seconds of the forward of a microbatch.
        backward: Seconds of its backward, without what `wgrad` computes.
        forward_communication: Seconds among `forward` in which devices only wait for collectives.
        backward_communication: Seconds among `backward` in which devices only wait for collectives.
        wgrad: Seconds of its gradients of weights where they are an op of their own.
    """

    forward: float
    backward: float
    forward_communication: float = 0.0
    backward_communication: float = 0.0
    wgrad: float = 0.0

    def of(self, kind: OpKind) -> float:
        """Seconds of an op of `COMPUTE_KINDS`."""
        return {"forward": self.forward, "backward": self.backward, "wgrad": self.wgrad}[kind]

    def communication_of(self, kind: OpKind) -> float:
        """Seconds of a forward or a backward in which devices only wait for collectives."""
        return self.forward_communication if kind == "forward" else self.backward_communication


_Place = tuple[StageId, int, StageId, int]
"""(stage, pipeline replica, target stage, its pipeline replica);

pipeline replicas are -1 for all pipeline replicas, of ops that run once a step.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpGraph:
    """All ops of one pass over the pipeline; the dependencies of each follow from the fields.

    Attributes:
        stage_graph: The stages.
        microbatches: Number of microbatches.
        backward_stages: Stages that run a backward.
        trained_stages: Stages with parameters to update; each of them runs a backward.
        split_stages: Trained stages whose backward computes only what is sent back, and leaves the gradients of weights
            to an op `wgrad` (zero-bubble schedules, arXiv 2401.10241).
        tied_stages: Pairs (owner, borrower) of stages with a tied parameter. Its gradient returns if both stages train.
        seconds: How long every stage's forward and backward take, where the plan says so; else empty.
        with_update: True for a training step, which ends with reductions, the norm and updates; False for evaluation.
    """

    stage_graph: StageGraph
    microbatches: int
    backward_stages: frozenset[StageId] = frozenset()
    trained_stages: frozenset[StageId] = frozenset()
    split_stages: frozenset[StageId] = frozenset()
    tied_stages: tuple[StageEdge, ...] = ()
    seconds: Mapping[StageId, StageSeconds] = dataclasses.field(default_factory=dict)
    with_update: bool = True

    def __post_init__(self) -> None:
        graph = self.stage_graph
        if self.microbatches < 1:
            raise ScheduleError(f"a step of {self.microbatches} microbatches; it must have at least 1")
        for unit, pipeline_replicas in graph.pipeline_replicas.items():
            if len(pipeline_replicas.of_microbatch) != self.microbatches:
                raise ScheduleError(
                    f"the pipeline replicas of unit {unit} divide {len(pipeline_replicas.of_microbatch)} microbatches "
                    f"among them, but the step has {self.microbatches}"
                )
        known = frozenset(graph.stages)
        named = self.backward_stages | self.trained_stages | {stage for share in self.tied_stages for stage in share}
        for stage in sorted(named - known):
            raise ScheduleError(f"stage {stage} is not in the graph; it has {', '.join(map(str, graph.stages))}")
        for stage in sorted(graph.with_descendants(self.trained_stages) - self.backward_stages):
            raise ScheduleError(f"stage {stage} needs a backward: it, or a stage that feeds it, trains")
        for stage in sorted(graph.with_descendants(self.backward_stages) - self.backward_stages):
            raise ScheduleError(f"stage {stage} needs a backward: a stage that feeds it waits for its gradient")
        for stage in sorted(self.split_stages - self.trained_stages):
            raise ScheduleError(f"stage {stage} trains nothing, so there are no gradients of weights to compute later")
        for owner, borrower in self.tied_stages:
            if owner == borrower:
                raise ScheduleError(f"stage {owner} borrows from itself; share only between two stages")

    @functools.cached_property
    def prologue(self) -> tuple[PipelineOp, ...]:
        """The ops that make compute weights, in an order in which they can run; each before what needs its weights."""
        gathers = [PipelineOp("gather", *stage) for stage in self.stage_graph.stages]
        return (
            *gathers,
            *(PipelineOp("send_tied_weight", *owner, -1, *borrower) for owner, borrower in self.tied_stages),
        )

    @functools.cached_property
    def epilogue(self) -> tuple[PipelineOp, ...]:
        """The ops that follow backwards, in an order in which they can run."""
        if not self.with_update:
            return ()
        trained = [stage for stage in self.stage_graph.stages if stage in self.trained_stages]
        returned = [share for share in self.tied_stages if self.trained_stages.issuperset(share)]
        return (
            *(PipelineOp("reduce", *stage) for stage in trained),
            *(PipelineOp("send_tied_gradient", *borrower, -1, *owner) for owner, borrower in returned),
            GLOBAL_NORM,
            *(PipelineOp("update", *stage) for stage in trained),
        )

    def forward_hops(self, stage: StageId, microbatch: int) -> tuple[PipelineOp, ...]:
        """The hops that follow a stage's forward."""
        return tuple(PipelineOp("hop", *stage, microbatch, *target) for target in self.stage_graph.targets[stage])

    def backward_hops(self, stage: StageId, microbatch: int) -> tuple[PipelineOp, ...]:
        """The hops that follow a stage's backward: one to every stage before it that runs a backward too."""
        sources = [source for source in self.stage_graph.sources[stage] if source in self.backward_stages]
        return tuple(PipelineOp("gradient_hop", *stage, microbatch, *source) for source in sources)

    def awaited(self, stage: StageId, microbatch: int) -> tuple[int, ...]:
        """The microbatches of which a stage must have run a pass before what it made of one of them can be used.

        They are all of them where one program runs the pass.
        """
        return tuple(range(self.microbatches)) if stage in self.stage_graph.compiled else (microbatch,)

    @functools.cached_property
    def dependencies(self) -> Mapping[PipelineOp, tuple[PipelineOp, ...]]:
        """Every op of the pass, and the ops that must run before it."""
        dependencies: dict[PipelineOp, tuple[PipelineOp, ...]] = {}
        for op in self.prologue:
            ends = (PipelineOp("gather", *op.stage_id), PipelineOp("gather", *op.target_id))
            dependencies[op] = ends if op.kind == "send_tied_weight" else ()
        for stage in self.stage_graph.stages:
            dependencies |= self._stage_dependencies(stage)
        microbatches = range(self.microbatches)
        reductions = tuple(op for op in self.epilogue if op.kind in ("reduce", "send_tied_gradient"))
        for op in self.epilogue:
            if op.kind == "reduce":
                last = self.last_pass(op.stage_id)
                dependencies[op] = tuple(PipelineOp(last, *op.stage_id, number) for number in microbatches)
            elif op.kind == "send_tied_gradient":
                dependencies[op] = (PipelineOp("reduce", *op.stage_id), PipelineOp("reduce", *op.target_id))
            elif op.kind == "global_norm":
                stages = self.stage_graph.stages
                losses = tuple(PipelineOp("forward", *stage, number) for stage in stages for number in microbatches)
                dependencies[op] = (*reductions, *losses)
            else:
                dependencies[op] = (GLOBAL_NORM,)
        return dependencies

    def _stage_dependencies(self, stage: StageId) -> dict[PipelineOp, tuple[PipelineOp, ...]]:
        """Dependencies of the forwards and backwards of a stage, and of the hops that follow them."""
        graph, dependencies = self.stage_graph, {}
        borrowed = (op for op in self.prologue if op.kind == "send_tied_weight" and op.target_id == stage)
        weights = (PipelineOp("gather", *stage), *borrowed)
        for number in range(self.microbatches):
            forward = PipelineOp("forward", *stage, number)
            inputs = tuple(PipelineOp("hop", *source, number, *stage) for source in graph.sources[stage])
            dependencies[forward] = (*weights, *inputs)
            forwards = tuple(PipelineOp("forward", *stage, awaited) for awaited in self.awaited(stage, number))
            dependencies |= dict.fromkeys(self.forward_hops(stage, number), forwards)
            if stage in self.backward_stages:
                backward = PipelineOp("backward", *stage, number)
                gradients = tuple(
                    PipelineOp("gradient_hop", *target, number, *stage) for target in graph.targets[stage]
                )
                dependencies[backward] = (*forwards, *gradients)
                backwards = tuple(PipelineOp("backward", *stage, awaited) for awaited in self.awaited(stage, number))
                dependencies |= dict.fromkeys(self.backward_hops(stage, number), backwards)
            if stage in self.split_stages:
                dependencies[PipelineOp("wgrad", *stage, number)] = (PipelineOp("backward", *stage, number),)
        return dependencies

    def passes_of(self, stage: StageId) -> tuple[OpKind, ...]:
        """The kinds of `COMPUTE_KINDS` that a stage runs, in order."""
        runs = (True, stage in self.backward_stages, stage in self.split_stages)
        return tuple(kind for kind, is_run in zip(COMPUTE_KINDS, runs, strict=True) if is_run)

    def last_pass(self, stage: StageId) -> OpKind:
        """The last op of a stage on a microbatch."""
        return self.passes_of(stage)[-1]

    def hops_after(self, op: PipelineOp) -> tuple[PipelineOp, ...]:
        """The hops after an op of `COMPUTE_KINDS`; a stage that one program runs sends all after its last op."""
        numbers = self.awaited(op.stage_id, op.microbatch)
        if op.kind == "wgrad" or op.microbatch != numbers[-1]:
            return ()
        hops = self.forward_hops if op.kind == "forward" else self.backward_hops
        return tuple(hop for number in numbers for hop in hops(op.stage_id, number))

    def devices_of(self, op: PipelineOp) -> frozenset[int]:
        """The devices that run an op; a transfer runs on the devices of both its stages."""
        return self._devices(self._place(op))

    def _place(self, op: PipelineOp) -> "_Place":
        """Returns the place of an op, which decides its devices."""
        if op.microbatch < 0:
            return op.stage_id, -1, op.target_id, -1
        graph = self.stage_graph
        return (
            op.stage_id,
            graph.pipeline_replica_of_microbatch(op.unit, op.microbatch),
            op.target_id,
            graph.pipeline_replica_of_microbatch(op.target_unit, op.microbatch),
        )

    @functools.cached_property
    def _devices_of_places(self) -> dict["_Place", frozenset[int]]:
        return {}

    def _devices(self, place: "_Place") -> frozenset[int]:
        """The devices of a place; made once for each, because they may be thousands."""
        if place not in self._devices_of_places:
            stage, pipeline_replica, target, target_replica = place
            is_norm = stage == GLOBAL_NORM.stage_id
            devices = self.stage_graph.all_devices if is_norm else self._stage_devices(stage, pipeline_replica)
            if target != GLOBAL_NORM.target_id:
                devices |= self._stage_devices(target, target_replica)
            self._devices_of_places[place] = devices
        return self._devices_of_places[place]

    def _stage_devices(self, stage: StageId, pipeline_replica: int) -> frozenset[int]:
        """The devices of a pipeline replica of a stage, or of all pipeline replicas if it is negative."""
        graph = self.stage_graph
        return (
            graph.devices[stage]
            if pipeline_replica < 0
            else graph.rank_devices[graph.ranks_of[stage][pipeline_replica]]
        )


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A total order of ops. Every process follows it for the ops that run on its devices.

    Attributes:
        op_graph: The dependencies and the devices of the ops.
        ops: The ops in order; one op is one program, unless it is bundled.
        bundled: Forwards and backwards that run in one program, a bundle, with the op before them in the order, which
            is on the same devices, so that one computes while the other waits for collectives. The op before is a
            forward, a backward, a gather or a reduction of another unit, and not bundled itself.
    """

    op_graph: OpGraph
    ops: tuple[PipelineOp, ...]
    bundled: frozenset[PipelineOp] = frozenset()

    @functools.cached_property
    def by_program(self) -> tuple[tuple[PipelineOp, ...], ...]:
        """The ops in order: each alone, or the two of a bundle together."""
        programs: list[tuple[PipelineOp, ...]] = []
        for op in self.ops:
            if op in self.bundled:
                programs[-1] = (*programs[-1], op)
            else:
                programs.append((op,))
        return tuple(programs)

    def restricted_to(self, devices: Iterable[int]) -> "Schedule":
        """The ops that run on at least one of these devices, in the same order."""
        local, graph = frozenset(devices), self.op_graph
        places = [graph._place(op) for op in self.ops]
        runs_here = {place: not local.isdisjoint(graph._devices(place)) for place in set(places)}
        ops = tuple(op for op, place in zip(self.ops, places, strict=True) if runs_here[place])
        return Schedule(graph, ops, self.bundled.intersection(ops))
