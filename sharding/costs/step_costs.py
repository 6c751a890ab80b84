"""What every op of one step takes, in seconds and bytes: all that the simulator knows of a model and a cluster."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from sharding.plans.stage_graph import StageEdge, StageId


@dataclasses.dataclass(frozen=True, eq=False)
class StageCosts:
    """One stage of a plan; i counts its data-parallel instances, m the microbatches of the step.

    Attributes:
        forward, backward: Seconds of a pass over a microbatch, waiting for ranks of the unit included; backward with
            what is computed again, and zero where there is none.
        forward_tensor, backward_tensor: The share of it in which the device waits for tensor, sequence or expert ranks.
        flops: Useful FLOPs of forward and backward together, of all of an instance: real tokens alone, nothing twice.
        held: Bytes on each device from a microbatch's forward to its backward.
        gather: Seconds until the compute weights are there, as far as nothing hides them.
        reduce: Seconds of the gradients' reduction over the instances, as far as nothing hides them.
        update: Seconds of the optimizer.
        static: Bytes on each device all the time: weights, gradients, optimizer state.
    """

    forward: Float[np.ndarray, "m i"]
    backward: Float[np.ndarray, "m i"]
    forward_communication: Float[np.ndarray, "m i"]
    backward_communication: Float[np.ndarray, "m i"]
    flops: Float[np.ndarray, "m i"]
    saved_bytes: Float[np.ndarray, "m i"]
    gather: float = 0.0
    reduce: float = 0.0
    update: float = 0.0
    static_bytes: float = 0.0

    def __post_init__(self) -> None:
        shapes = {getattr(self, name).shape for name in _PER_MICROBATCH}
        if len(shapes) != 1:
            raise ValueError(f"StageCosts: the shapes {sorted(shapes)} differ; give [microbatches, instances] for all")
        for name in (*_PER_MICROBATCH, "gather", "reduce", "update", "static_bytes"):
            if not np.all(np.isfinite(getattr(self, name))) or np.any(np.asarray(getattr(self, name)) < 0):
                raise ValueError(f"StageCosts.{name} has a negative or infinite entry")


_PER_MICROBATCH = ("forward", "backward", "forward_communication", "backward_communication", "flops", "saved_bytes")


@dataclasses.dataclass(frozen=True, eq=False)
class StepCosts:
    """Every stage's costs, and the seconds of every hop.

    Attributes:
        stages: By stage.
        hops: For every edge of the stage graph, seconds until a microbatch's activations are whole at each instance
            of the target.
        hops_back: For every edge on which gradients return, the same for the source's instances.
        peak_flops: Of one device.
        tokens: Backbone tokens of the step, without padding.
        norm: Seconds for which all devices wait to agree on the norm of the gradients.
    """

    stages: Mapping[StageId, StageCosts]
    hops: Mapping[StageEdge, Float[np.ndarray, "m _"]]
    hops_back: Mapping[StageEdge, Float[np.ndarray, "m _"]]
    peak_flops: float
    tokens: float = 0.0
    norm: float = 0.0

    @property
    def flops(self) -> float:
        """Useful FLOPs of the step."""
        return float(sum(stage.flops.sum() for stage in self.stages.values()))
