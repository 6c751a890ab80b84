"""Windows: how many samples are grouped at a time, so that rows left open at the end of a window matter little.

The step planner reads the stream of samples up to the end that the rule gives.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

WINDOW_STEPS = 4
"""Steps whose content a window has at least: at most one of them waits for the next window, and one is left over."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class WindowRule:
    """Where a window of the stream ends: it follows from the sizes of its samples, not from epochs.

    Attributes:
        limits: Capacity of a row in every quantity in use; the last is the number of samples (`row_limits`).
        rows: Rows of a step.
        least: Samples that a window has at least, unless the stream ends.
    """

    limits: Float[np.ndarray, " k"]
    rows: int
    least: int

    @property
    def most(self) -> int:
        """Samples that a window has at most: only unusable ones can keep so many from being full."""
        return max(self.least, int(WINDOW_STEPS * self.rows * self.limits[-1]))

    def is_full(self, samples: int, content: Float[np.ndarray, " k"] | Int[np.ndarray, " k"]) -> bool:
        """Whether a window ends.

        Args:
            samples: Number of samples of the stream in the window.
            content: Sums of the sizes of its samples, including samples that were carried into it.
        """
        if samples < self.least:
            return False
        full = WINDOW_STEPS * self.rows * self.limits
        return bool(samples >= full[-1] or (content >= full).any())
