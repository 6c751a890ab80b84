"""A published measurement, and the simulated seconds at its setting."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A measurement.

    Attributes:
        name: The run.
        source: Where it is published.
        width: Model width.
        seconds: Measured seconds of a step, or of a layer.
        simulate: Seconds by the analytic costs at the run's setting.
    """

    name: str
    source: str
    width: int
    seconds: float
    simulate: Callable[[], float]
