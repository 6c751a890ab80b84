"""When a part ran, on every instance of its stage."""

import dataclasses

import numpy as np
from jaxtyping import Float

from sharding.schedules.ops import PipelineOp


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Span:
    """One part, simulated or measured.

    Attributes:
        part: What ran.
        start, end: Seconds from the start of the step, for every instance of the part's stage; of a hop or a share,
            of its target, from when the producer was done until all is there; of `norm`, a single entry.
        tensor: Seconds between them that the devices waited for collectives of an instance or of expert ranks.
    """

    op: PipelineOp
    start: Float[np.ndarray, " i"]
    end: Float[np.ndarray, " i"]
    communication: Float[np.ndarray, " i"]

    @property
    def seconds(self) -> Float[np.ndarray, " i"]:
        """How long it took."""
        return self.end - self.start
