"""Time of partitioning a long chain with the recomputation of every layer, and the distance from the optimum."""

import time
from typing import Any

import numpy as np
from jaxtyping import Float

from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_stages import balanced_stages
from sharding.planners.stages.chunk_partition import least_slowest_rank
from sharding.planners.stages.layer_chain import LayerChain
from sharding.specs.layers.layer import RecomputePolicy

LAYERS, RANKS, CHUNKS, MICROBATCHES = 200, 16, 4, 64
GOAL_SECONDS = 1.0
MEMORY = 80e9


def measure_partition() -> list[dict[str, Any]]:
    """The partition of 200 layers into 16 stages of 4 chunks: its time, and how near to the optimum it is."""
    layout = ChainLayout(modules=("vision", "backbone"), pp=RANKS, dp=1, chunks=CHUNKS, microbatches=MICROBATCHES)
    chain = two_modules(in_flight=3 * CHUNKS * RANKS)
    start = time.process_time()
    stages = balanced_stages(chain, layout, MEMORY)
    seconds = time.process_time() - start
    if stages is None:
        raise ValueError(f"a chain of {LAYERS} layers does not fit {RANKS} devices of {MEMORY / 1e9:g} GB")
    name = f"partition of {LAYERS} layers, {RANKS} stages x {CHUNKS} chunks"
    bound = float(stages.rank_seconds(chain, RANKS).max()) / least_slowest_rank(chain, layout, MEMORY)
    return [
        _row(f"{name}: processor seconds", seconds, GOAL_SECONDS),
        _row(f"{name}: slowest stage over a lower bound of it", bound),
    ]


def _row(name: str, value: float, goal: float | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "goal": goal, "met": None if goal is None else value <= goal, "paper": None}


def two_modules(in_flight: int) -> LayerChain:
    """A chain of narrow layers and then wide ones, which hold more than the memory without recomputation."""
    policies: tuple[RecomputePolicy, ...] = ("none", "selective", "full")
    is_wide = np.arange(LAYERS) >= LAYERS // 3
    forward = np.where(is_wide, 3e-3, 1e-3)

    def by_policy(none: float, selective: float, full: float) -> Float[np.ndarray, "n k"]:
        return np.where(is_wide, 2.0, 1.0)[:, None] * np.array([none, selective, full])

    return LayerChain(
        policies=policies,
        modules=("vision",) * (LAYERS // 3) + ("backbone",) * (LAYERS - LAYERS // 3),
        kinds=is_wide.astype(int),
        layers=np.ones(LAYERS, int),
        forward=np.repeat(forward[:, None], len(policies), axis=1),
        backward=forward[:, None] * np.array([2.0, 2.2, 3.0]),
        held_bytes=by_policy(1e8, 6e7, 1e7)[:, :, None] * np.arange(1, in_flight + 1),
        workspace=by_policy(0.0, 1e8, 1e8),
        static_bytes=np.full(LAYERS, 1e9),
        parameters=np.full(LAYERS, 2e8),
        handed_on=np.full(LAYERS, 1e7),
        hop_seconds=np.full(LAYERS, 1e-4),
        gather_seconds=np.zeros(LAYERS),
    )
