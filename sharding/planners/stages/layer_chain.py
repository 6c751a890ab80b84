"""The layers of a chain of modules as arrays, from which `balanced` chooses a partition into pipeline stages."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from sharding.specs.layers.layer import RecomputePolicy


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LayerChain:
    """The n layers of a chain of modules on one device; seconds are means over microbatches and replicas of the unit.

    What precedes a module's stack belongs to its first layer, what follows it to its last. A stage boundary may be
    after any layer; a module that is not divisible is one layer here.

    Attributes:
        policies: The k recomputation policies that a layer may have.
        modules: The module of each layer.
        kinds: Layers of one number are equal in everything below.
        layers: How many layers a plan counts for each: 1, or all layers of a module that is not divisible.
        forward: Seconds of a microbatch's forward under each policy; policies that save on the host may wait for it.
        backward: Seconds of its backward, recomputation included, under each policy.
        held_bytes: Bytes saved for the backwards of f + 1 microbatches in flight, at index f: the most of any so many
            consecutive microbatches on any replica.
        workspace: Bytes that recomputing the layer takes under each policy, once in a stage.
        static_bytes: Bytes of weights, gradients and optimizer state.
        parameters: Elements of all its parameters.
        handed_on: Elements of its output of a mean microbatch, over all replicas.
        hop_seconds: Seconds of sending its output to the next stage.
        gather_seconds: Seconds of gathering the rows of its output, and of its gradient, for the next layer, which
            stages take that own both: more than 0 between modules of unlike tensor-parallel sizes; 0 of the last layer.
    """

    policies: tuple[RecomputePolicy, ...]
    modules: tuple[str, ...]
    kinds: Int[np.ndarray, " n"]
    layers: Int[np.ndarray, " n"]
    forward: Float[np.ndarray, "n k"]
    backward: Float[np.ndarray, "n k"]
    held_bytes: Float[np.ndarray, "n k f"]
    workspace: Float[np.ndarray, "n k"]
    static_bytes: Float[np.ndarray, " n"]
    parameters: Float[np.ndarray, " n"]
    handed_on: Float[np.ndarray, " n"]
    hop_seconds: Float[np.ndarray, " n"]
    gather_seconds: Float[np.ndarray, " n"]

    @property
    def seconds(self) -> Float[np.ndarray, "n k"]:
        """Forward and backward of each layer under each policy."""
        return self.forward + self.backward

    @property
    def plain_forward(self) -> Float[np.ndarray, " n"]:
        """Forward of each layer under its fastest policy, as without recomputation or transfers to the host."""
        return self.forward.min(axis=1)

    def stage_gathers(self, counts: Sequence[int]) -> Float[np.ndarray, " s"]:
        """`gather_seconds` within each of the stages of so many layers."""
        return stage_sums(self.gather_seconds, counts) - self.gather_seconds[np.cumsum(counts) - 1]

    def stage_layers(self, counts: Sequence[int]) -> tuple[int, ...]:
        """`UnitPlan.layers` of stages with so many of these layers."""
        return tuple(int(part.sum()) for part in np.split(self.layers, np.cumsum(counts)[:-1]))

    def bytes_held(self, in_flight: int) -> Float[np.ndarray, "n k"]:
        """`held_bytes` of so many microbatches; of more than the table has, its last entry times their ratio."""
        most = self.held_bytes.shape[2]
        if in_flight <= most:
            return self.held_bytes[:, :, in_flight - 1]
        return self.held_bytes[:, :, -1] * (in_flight / most)


def stage_sums(values: Float[np.ndarray, " n"], counts: Sequence[int]) -> Float[np.ndarray, " s"]:
    """Sums over the layers of each stage."""
    return np.add.reduceat(values, np.cumsum([0, *counts[:-1]]))


def rank_sums(stages: Float[np.ndarray, " s"], pp: int) -> Float[np.ndarray, " p"]:
    """Sums over the virtual stages of each pipeline rank; virtual stage v is on rank v % pp."""
    return stages.reshape(-1, pp).sum(axis=0)


def spread(seconds: Float[np.ndarray, " p"]) -> float:
    """Seconds of the slowest over the mean: 1 where all are equal."""
    return float(seconds.max() / seconds.mean())
