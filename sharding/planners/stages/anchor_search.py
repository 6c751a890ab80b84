"""OmniBal's search for a partition (arXiv 2407.20761, section 4.2): candidates around an anchor, ranked, timed.

Candidates move each boundary of the anchor by up to r layers. They are ranked by

    VAR + SUM = sum_i (F_i - mean F)^2 / (mean F)^2  +  sum_i hop_i / mean F

with the seconds F_i of stage i and the seconds hop_i of sending its output on. The paper adds a variance in seconds
squared to a number of elements; here both are shares of a mean stage, so that a candidate is not preferred or refused
by its units: traffic counts by what it takes on the links at hand, little where they are fast.

`ranked_candidates` is the paper's search, whose anchor balances forwards greedily and whose F are forwards;
`benchmarks.omnibal` compares it with the exact partition. `near_partitions` searches around the exact partition, with F
of forward and backward under the best recomputation, for the policy `balanced`.
"""

import itertools

import numpy as np
from jaxtyping import Float, Int

from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_stages import ChainStages, recomputed_stages
from sharding.planners.stages.layer_chain import LayerChain
from sharding.planners.stages.microbatches_held import microbatches_held
from sharding.planners.stages.partition_baselines import by_greedy_forward
from sharding.planners.stages.recomputation import HeldLayers, RecomputationSolver

MOST_CANDIDATES = 2_000_000
"""Candidates that are ranked at most; (2 r + 1) ** (stages - 1) of them are around an anchor."""

_NEAR_RADIUS = 2
_MOST_NEAR = 4_000  # candidates around an exact partition up to which all boundaries move, each alone


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
    if _box_size(radius, stages) > MOST_CANDIDATES:
        raise ValueError(
            f"radius {radius} around the {stages - 1} boundaries of {stages} stages gives "
            f"{_box_size(radius, stages):,} candidates; choose a radius with at most {MOST_CANDIDATES:,}"
        )
    bounds = _moved(anchor, _box(radius, stages))
    forward = np.diff(np.append(0.0, np.cumsum(chain.plain_forward))[bounds], axis=1)
    return [tuple(np.diff(bounds[number]).tolist()) for number in _ranked(chain, bounds, forward)[:best]]


def near_partitions(
    chain: LayerChain, layout: ChainLayout, anchor: tuple[int, ...], memory: float, best: int
) -> list[ChainStages]:
    """The best partitions around another one by VAR + SUM, best first, each with its best recomputation.

    The boundaries move by up to 2 layers, by up to 1 where there are too many of these candidates, and where these are
    too many too, one layer goes from one stage to another.

    Args:
        chain: The layers.
        layout: Gives pp and microbatches; it has no chunks.
        anchor: Layers of each stage of the other partition, which is left out.
        memory: Bytes of a device.
        best: How many partitions to return.
    """
    bounds = _moved(anchor, _near_moves(layout.pp))
    bounds = bounds[(np.diff(bounds, axis=1) != anchor).any(axis=1)]
    held = microbatches_held(layout.pp, 1, layout.microbatches).tolist()
    solver = RecomputationSolver(chain, memory)
    seconds = np.empty((len(bounds), layout.pp))
    for stage, most in enumerate(held):
        ends, places = np.unique(bounds[:, stage : stage + 2], axis=0, return_inverse=True)
        least = [solver.least_seconds(HeldLayers(first, last, most)) for first, last in ends.tolist()]
        seconds[:, stage] = np.array(least)[places.ravel()]
    fits = np.isfinite(seconds).all(axis=1)
    bounds, seconds = bounds[fits], seconds[fits]
    ranked = [tuple(np.diff(bounds[number]).tolist()) for number in _ranked(chain, bounds, seconds)[:best]]
    return [stages for counts in ranked if (stages := recomputed_stages(chain, layout, counts, memory))]


def _near_moves(stages: int) -> Int[np.ndarray, "c s-1"]:
    for radius in range(_NEAR_RADIUS, 0, -1):
        if _box_size(radius, stages) <= _MOST_NEAR:
            return _box(radius, stages)
    # A layer goes from one stage to another if all boundaries between the two move.
    places = np.arange(stages - 1)
    moves = [(first <= places) & (places < last) for first, last in itertools.combinations(range(stages), 2)]
    return np.concatenate([np.array(moves, int), -np.array(moves, int)])


def _box_size(radius: int, stages: int) -> int:
    return (2 * radius + 1) ** (stages - 1)


def _box(radius: int, stages: int) -> Int[np.ndarray, "c s-1"]:
    """All moves of the boundaries by up to a radius."""
    moves = itertools.product(range(-radius, radius + 1), repeat=stages - 1)
    return np.array(list(moves), int).reshape(-1, stages - 1)


def _moved(anchor: tuple[int, ...], moves: Int[np.ndarray, "c s-1"]) -> Int[np.ndarray, "c s+1"]:
    """First layers of the stages, and the end, of the partitions whose stages all have layers."""
    cuts = np.cumsum(anchor)[:-1] + moves
    ends = np.full((len(cuts), 1), sum(anchor))
    bounds = np.concatenate([np.zeros_like(ends), cuts, ends], axis=1)
    return bounds[(np.diff(bounds, axis=1) > 0).all(axis=1)]


def _ranked(
    chain: LayerChain, bounds: Int[np.ndarray, "c s+1"], seconds: Float[np.ndarray, "c s"]
) -> Int[np.ndarray, " c"]:
    """The order of partitions by VAR + SUM of the seconds of their stages."""
    mean = seconds.mean(axis=1)
    variance = ((seconds - mean[:, None]) ** 2).sum(axis=1) / mean**2
    hops = chain.hop_seconds[bounds[:, 1:-1] - 1].sum(axis=1)
    return np.argsort(variance + hops / mean, kind="stable")
