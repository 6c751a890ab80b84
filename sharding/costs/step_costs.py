"""Seconds and bytes of every op of one step: all that the simulator knows of a model and a cluster.

`plan_costs` makes these records.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.plans.resolved.stage_graph import StageEdge, StageId
from sharding.schedules.ops import OpKind
from sharding.specs.layers.recomputed_kernels import RecomputedFlops


@dataclasses.dataclass(frozen=True, eq=False)
class WgradCosts:
    """Costs of the gradients of weights where they are an op of their own; arrays as in `StageCosts`.

    Attributes:
        seconds: Its share of the backward's seconds.
        saved_bytes: Bytes on each device from the backward to the wgrad, besides the bytes saved since the forward.
    """

    seconds: Float[np.ndarray, "m i"]
    saved_bytes: Float[np.ndarray, "m h"]


class StaticBytes(NamedTuple):
    """Bytes on each device of a stage at all times, by kind.

    Attributes:
        weights: Weights in compute precision.
        gradients: Gradients in float32, and the gradients of a microbatch in compute precision.
        optimizer: Master weights and the optimizer's state, unless they lie in the host's memory.
        gathered: Whole weights and gradients of the layers that are gathered at a time, of fully sharded units.
        workspace: Bytes that one layer needs while it runs: what it recomputes, and the buffers of its experts' tokens;
            or while it is updated, if its optimizer state is loaded from the host's memory.
        exchanged: Bytes that a stage exchanges with others where rows of a microbatch lie elsewhere.
        reserved: Room for activations that is held throughout: what a microbatch of the largest capacity has beyond the
            microbatches of this step, and what layers around the stack of a unit that is one program save.
    """

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    gathered: float = 0.0
    workspace: float = 0.0
    exchanged: float = 0.0
    reserved: float = 0.0


class ShardedPasses(NamedTuple):
    """Seconds of a fully sharded stage's collectives in the passes of a microbatch, and of the computation beside them.

    All are means over microbatches and replicas.

    Attributes:
        gather: Gathers of weights in the forward.
        gather_again: Gathers of weights in the backward.
        scatter: Reductions of gradients in the backward, which scatter them.
        forward: Computation of the forward.
        backward: Computation of the backward.
        exposed_forward: Seconds of `gather` that the forward's computation does not hide.
        exposed_backward: Seconds of `gather_again` and `scatter` that the backward's computation does not hide.
    """

    gather: float = 0.0
    gather_again: float = 0.0
    scatter: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    exposed_forward: float = 0.0
    exposed_backward: float = 0.0

    @property
    def collectives(self) -> float:
        """Seconds of all gathers and reductions."""
        return self.gather + self.gather_again + self.scatter

    @property
    def exposed(self) -> float:
        """Seconds of collectives that no computation hides."""
        return self.exposed_forward + self.exposed_backward

    @property
    def hidden_share(self) -> float | None:
        """Share of the collectives that computation hides; None without any."""
        return 1 - self.exposed / self.collectives if self.collectives else None

    def plus(self, *others: "ShardedPasses") -> "ShardedPasses":
        """Returns the sum with other passes, field by field."""
        return ShardedPasses(*map(sum, zip(self, *others, strict=True)))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StageCosts:
    """Costs of one stage of a plan; arrays are [microbatches m, data-parallel replicas i].

    Where a unit has several pipeline replicas, i counts the replicas of one of them, whichever takes the microbatch.

    Bytes may be given for equal consecutive groups of each replica's devices, [m, i * parts]: modules of unlike
    tensor-parallel sizes have several replicas of their own in each replica of the stage.

    Attributes:
        forward: Seconds of the forward of a microbatch, waiting for other ranks of the unit included.
        backward: Seconds of its backward, recomputation and wgrad included; 0 without a backward.
        forward_communication: Seconds of `forward` in which the device waits for tensor, context-parallel or expert
            ranks.
        backward_communication: The seconds of `backward` in the same collectives.
        flops: Useful FLOPs of forward and backward over all devices of a replica: no padding, no recomputation.
        saved_bytes: Bytes on each device from a microbatch's forward to its backward, or its wgrad.
        offloaded_bytes: Bytes in each device's host memory from its forward to its backward.
        gather: Seconds in which the replicas of all pipeline replicas gather the compute weights.
        reduce: Seconds of the gradients' reduction over the replicas of all pipeline replicas.
        update: Seconds of the optimizer.
        static: Bytes on each device at all times.
        host_bytes: Bytes of master weights and optimizer state in each device's host memory at all times.
        wgrad: Costs of the gradients of weights where they are an op of their own; else None.
        sharded: Collectives of its weights in every pass, whose exposed seconds `forward` and `backward` include; None
            where replicas have whole weights.
    """

    forward: Float[np.ndarray, "m i"]
    backward: Float[np.ndarray, "m i"]
    forward_communication: Float[np.ndarray, "m i"]
    backward_communication: Float[np.ndarray, "m i"]
    flops: Float[np.ndarray, "m i"]
    saved_bytes: Float[np.ndarray, "m h"]
    offloaded_bytes: Float[np.ndarray, "m h"]
    gather: float = 0.0
    reduce: float = 0.0
    update: float = 0.0
    static: StaticBytes = StaticBytes()
    host_bytes: float = 0.0
    wgrad: WgradCosts | None = None
    sharded: ShardedPasses | None = None

    def __post_init__(self) -> None:
        shapes = {getattr(self, name).shape for name in PER_MICROBATCH if name not in HELD}
        if len(shapes) != 1:
            raise ValueError(f"StageCosts: the shapes {sorted(shapes)} differ; give [microbatches, replicas] for all")
        held, (microbatches, replicas) = {getattr(self, name).shape for name in HELD}, self.forward.shape
        if len(held) != 1 or self.saved_bytes.shape != (microbatches, replicas * self.parts):
            raise ValueError(
                f"StageCosts: the shapes {sorted(held)} of {' and '.join(HELD)} must be one, "
                f"[{microbatches}, {replicas} or a multiple]"
            )
        if self.wgrad is not None:
            shapes = (self.wgrad.seconds.shape, self.wgrad.saved_bytes.shape)
            if shapes != (self.forward.shape, self.saved_bytes.shape):
                raise ValueError(f"StageCosts.wgrad: the shapes {shapes} are not the shapes of forward and saved_bytes")
            if np.any(self.wgrad.seconds < 0) or np.any(self.wgrad.seconds > self.backward * (1 + 1e-9)):
                raise ValueError("StageCosts.wgrad: its seconds are negative, or more than the seconds of the backward")
        for name in (*PER_MICROBATCH, "gather", "reduce", "update", "static", "host_bytes"):
            figures = np.asarray(getattr(self, name))
            if figures.size and not (figures.min() >= 0 and figures.max() < np.inf):  # NaN is neither
                raise ValueError(f"StageCosts.{name} has a negative or infinite entry")

    def of_pass(self, kind: OpKind) -> Float[np.ndarray, "m i"]:
        """Seconds of an op of `COMPUTE_KINDS`."""
        if kind == "forward":
            return self.forward
        if self.wgrad is None:
            return self.backward
        return self.wgrad.seconds if kind == "wgrad" else np.maximum(self.backward - self.wgrad.seconds, 0.0)

    @property
    def static_bytes(self) -> float:
        """The sum of `static`."""
        return sum(self.static)

    @property
    def parts(self) -> int:
        """Number of groups of each replica's devices whose bytes differ."""
        return self.saved_bytes.shape[1] // max(1, self.forward.shape[1])


PER_MICROBATCH = (
    "forward",
    "backward",
    "forward_communication",
    "backward_communication",
    "flops",
    "saved_bytes",
    "offloaded_bytes",
)
"""Fields of `StageCosts` that are arrays by microbatch and replica."""

HELD = ("saved_bytes", "offloaded_bytes")
"""Fields of bytes, which may be given for groups of each replica's devices."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StepCosts:
    """Costs of every stage, and the seconds of every hop.

    Attributes:
        stages: Costs of every stage.
        hops: For every edge of the stage graph, seconds until a microbatch's activations are complete on each replica
            of the target.
        gradient_hops: For every edge on which gradients return, seconds until they are complete on each replica of the
            source.
        peak_flops: Peak FLOP/s of one device: in FP8 where the model has matmuls in it, else in bfloat16.
        tokens: Backbone tokens of the step, without padding.
        global_norm: Seconds that all devices wait for the norm of the gradients.
        masked_flops: FLOPs of causal attention's squares that the stages' `flops` leave out.
        recomputed: Forward FLOPs that the step computes a second time.
        uses_fp8: Whether the model has matmuls with FP8 operands.
    """

    stages: Mapping[StageId, StageCosts]
    hops: Mapping[StageEdge, Float[np.ndarray, "m _"]]
    gradient_hops: Mapping[StageEdge, Float[np.ndarray, "m _"]]
    peak_flops: float
    tokens: float = 0.0
    global_norm: float = 0.0
    masked_flops: float = 0.0
    recomputed: RecomputedFlops = RecomputedFlops()
    uses_fp8: bool = False

    @property
    def flops(self) -> float:
        """Useful FLOPs of the step."""
        return float(sum(stage.flops.sum() for stage in self.stages.values()))


class StageWork(NamedTuple):
    """Lower bounds of the seconds of one stage's ops in a step.

    Attributes:
        forward: Seconds of all its forwards on each replica of every pipeline replica, by pipeline replica.
        backward: Seconds of all its backwards, likewise.
        computing: Seconds of both without waiting for tensor, context-parallel or expert ranks, as far as a bound goes.
        slowest: Seconds of each microbatch's forward and backward on the replica that takes longest for them.
        least_forward: Seconds that no forward of a microbatch takes less than.
        least_backward: Seconds that no backward of a microbatch takes less than.
        gather: As in `StageCosts`.
        reduce: As in `StageCosts`.
        update: As in `StageCosts`.
    """

    forward: Float[np.ndarray, " i"]
    backward: Float[np.ndarray, " i"]
    computing: Float[np.ndarray, " i"]
    slowest: Float[np.ndarray, " m"]
    least_forward: float
    least_backward: float
    gather: float
    reduce: float
    update: float

    @property
    def work(self) -> Float[np.ndarray, " i"]:
        """Seconds of all forwards and backwards on each replica."""
        return self.forward + self.backward


class StepWork(NamedTuple):
    """Lower bounds of the seconds of all stages' ops and of hops in a step.

    Attributes:
        stages: The work of every stage.
        hops: For every edge of the stage graph, least seconds of a hop of its activations.
        gradient_hops: For every edge, least seconds of a hop of its gradients, whether these return or not.
        global_norm: As in `StepCosts`.
    """

    stages: Mapping[StageId, StageWork]
    hops: Mapping[StageEdge, float]
    gradient_hops: Mapping[StageEdge, float]
    global_norm: float
