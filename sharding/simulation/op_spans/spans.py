"""When an op ran, on every replica of its stage; the record that simulations and measurements share."""

import dataclasses

import numpy as np
from jaxtyping import Float

from sharding.schedules.ops import PipelineOp


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Span:
    """One op, simulated or measured.

    Attributes:
        op: The op.
        start: Seconds from the start of the step, for every replica of the op's stage, or of a transfer's target:
            of the pipeline replica that takes its microbatch, of all pipeline replicas if it runs once per step. Of a
            transfer, when the array was ready to be sent. Of `global_norm`, a single entry.
        end: Seconds at which it ended, likewise; of a transfer, when all of the array has arrived.
        communication: Seconds between them in which the devices waited for tensor, context-parallel or expert ranks,
            and computed nothing meanwhile; in a bundle also for slower replicas of it.
        beside: Of an op in a bundle (`Schedule.bundled`), both of whose spans have its start and end: the seconds
            between them that are the other op's. None for an op that runs alone.
    """

    op: PipelineOp
    start: Float[np.ndarray, " i"]
    end: Float[np.ndarray, " i"]
    communication: Float[np.ndarray, " i"]
    beside: Float[np.ndarray, " i"] | None = None

    @property
    def seconds(self) -> Float[np.ndarray, " i"]:
        """Seconds that the op took, or the bundle that it is in."""
        return self.end - self.start

    @property
    def own_seconds(self) -> Float[np.ndarray, " i"]:
        """Seconds that the op took without the seconds of the other op of its bundle."""
        return self.seconds if self.beside is None else self.seconds - self.beside

    @property
    def compute_seconds(self) -> Float[np.ndarray, " i"]:
        """Seconds of the op without waiting for other ranks."""
        return self.own_seconds - self.communication
