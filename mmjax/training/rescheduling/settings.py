"""Settings of rescheduling. This file does not import jax, so configurations can import it.

`TrainConfig.rescheduling` holds them; the rescheduler reads them.
"""

import dataclasses
import math

from configs.common.checks import require_types
from configs.common.errors import UserError


@dataclasses.dataclass(frozen=True)
class Rescheduling:
    """Settings of computing the order of a run's ops anew from their measured seconds.

    Attributes:
        interval: Steps from one step whose ops are timed to the next.
        tolerance: The share of the predicted seconds of a step's forwards and backwards by which the measured seconds
            may differ before the order is computed anew.
    """

    interval: int = 500
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        require_types(self)
        if self.interval < 1:
            raise UserError(f"Rescheduling.interval is {self.interval}; it must be at least 1 step")
        if not 0 <= self.tolerance < math.inf:
            raise UserError(
                f"Rescheduling.tolerance is {self.tolerance}; it must be a share of a step, such as 0.1, and at least 0"
            )
