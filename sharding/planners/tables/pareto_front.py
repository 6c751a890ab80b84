"""Candidates that no other one beats in devices, seconds and memory.

`backbone_search.py` combines these fronts.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

_BLOCK = 128  # candidates that are compared with all others at once


class ParetoFront(NamedTuple):
    """Candidates of one module, or combinations of candidates of several.

    Attributes:
        devices: Number of devices of each.
        stage: Seconds of the slowest stage, clipped below by the seconds of a stage in perfect balance.
        fill: Seconds of the pipeline fill.
        max_downstream_stages: How many stages the memory allows downstream of a module; of combinations, of the
            backbone.
        downstream_stages: How many stages a generator puts downstream of the backbone; of combinations, how many the
            modules that feed the backbone have downstream.
        choices: The choice of each module: (candidate, number in its `ReplicaShares`).
    """

    devices: Int[np.ndarray, " n"]
    stage: Float[np.ndarray, " n"]
    fill: Float[np.ndarray, " n"]
    max_downstream_stages: Float[np.ndarray, " n"]
    downstream_stages: Float[np.ndarray, " n"]
    choices: Int[np.ndarray, "n i 2"]

    def select(self, indices: np.ndarray) -> "ParetoFront":
        """Returns some of the candidates, by index or mask."""
        return ParetoFront(*(array[indices] for array in self))

    def pareto_optimal(self) -> "ParetoFront":
        """Returns the candidates that no other one equals or beats in every respect."""
        order = np.lexsort([self.downstream_stages, -self.max_downstream_stages, self.fill, self.stage, self.devices])
        front = self.select(order)
        columns = np.stack([front.stage, front.fill, -front.max_downstream_stages, front.downstream_stages])
        kept = np.empty(0, int)
        for start in range(0, len(front.devices), _BLOCK):  # in this order, what dominates comes first
            block = np.arange(start, min(start + _BLOCK, len(front.devices)))
            block = block[~_dominated(columns[:, block], columns[:, kept]).any(axis=1)]
            earlier = np.tri(len(block), k=-1, dtype=bool)
            within = _dominated(columns[:, block], columns[:, block]) & earlier
            kept = np.concatenate([kept, block[~within.any(axis=1)]])
        return front.select(kept)


def _dominated(points: Float[np.ndarray, "4 n"], others: Float[np.ndarray, "4 e"]) -> Bool[np.ndarray, "n e"]:
    """Whether another point is at most as large in every column."""
    dominated = others[0] <= points[0][:, None]
    for point, other in zip(points[1:], others[1:], strict=True):
        dominated &= other <= point[:, None]
    return np.asarray(dominated)
