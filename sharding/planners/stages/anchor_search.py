"""OmniBal's search for a partition (arXiv 2407.20761, section 4.2): candidates around a greedy anchor, ranked, timed.

The anchor balances forwards greedily. Candidates move each of its boundaries by up to r layers. They are ranked by

    VAR + SUM = sum_i (F_i - mean F)^2 / (mean F)^2  +  sum_i hop_i / mean F

with the forward seconds F_i of stage i and the seconds hop_i of sending its output on. The paper adds a variance in
seconds squared to a number of elements; here both are shares of a mean stage's forward, so that a candidate is not
preferred or refused by its units: traffic counts by what it takes on the links at hand, little where they are fast.
`benchmarks.omnibal` compares the search with the exact partition.
"""

import itertools

import numpy as np
from jaxtyping import Float, Int

from sharding.planners.stages.layer_chain import LayerChain
from sharding.planners.stages.partition_baselines import by_greedy_forward

MOST_CANDIDATES = 2_000_000
"""Candidates that are ranked at most; (2 r + 1) ** (stages - 1) of them are around an anchor."""


def ranked_candidates(chain: LayerChain, stages: int, radius: int, best: int) -> list[tuple[int, ...]]:
    """The layers of each stage of the best candidates by VAR + SUM, best first; none for more stages than layers.

    Args:
        chain: The layers.
        stages: Number of stages.
        radius: By how many layers each boundary is moved at most.
        best: How many candidates to return.

    Raises:
        ValueError: There are more than MOST_CANDIDATES.
    """
    anchor = by_greedy_forward(chain, stages)
    if anchor is None:
        return []
    if (2 * radius + 1) ** (stages - 1) > MOST_CANDIDATES:
        raise ValueError(
            f"radius {radius} around the {stages - 1} boundaries of {stages} stages gives "
            f"{(2 * radius + 1) ** (stages - 1):,} candidates; choose a radius with at most {MOST_CANDIDATES:,}"
        )
    moves = itertools.product(range(-radius, radius + 1), repeat=stages - 1)
    cuts = np.cumsum(anchor)[:-1] + np.array(list(moves), int).reshape(-1, stages - 1)
    ends = np.full((len(cuts), 1), len(chain.forward))
    bounds = np.concatenate([np.zeros_like(ends), cuts, ends], axis=1)
    bounds = bounds[(np.diff(bounds, axis=1) > 0).all(axis=1)]
    order = np.argsort(_var_plus_sum(chain, bounds), kind="stable")[:best]
    return [tuple(np.diff(bounds[number]).tolist()) for number in order]


def _var_plus_sum(chain: LayerChain, bounds: Int[np.ndarray, "c s"]) -> Float[np.ndarray, " c"]:
    forward = np.diff(np.append(0.0, np.cumsum(chain.plain_forward))[bounds], axis=1)
    mean = forward.mean(axis=1)
    variance = ((forward - mean[:, None]) ** 2).sum(axis=1) / mean**2
    return variance + chain.hop_seconds[bounds[:, 1:-1] - 1].sum(axis=1) / mean
