"""The best partition and recomputation by trying all."""

import itertools
from collections.abc import Iterator

import numpy as np

from sharding.planners.stages.layer_chain import LayerChain
from sharding.planners.stages.recomputation import HeldLayers


def all_partitions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to divide so many layers among stages that own at least one each."""
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        yield tuple(np.diff([0, *cuts, layers]).tolist())


def bytes_needed(chain: LayerChain, stages: list[HeldLayers], policies: tuple[int, ...]) -> float:
    """What a rank with these virtual stages holds; the largest workspace of any counts in each."""
    choice, total, workspace = iter(policies), 0.0, 0.0
    for first, last, in_flight in stages:
        for layer in range(first, last):
            policy = next(choice)
            total += chain.static_bytes[layer] + chain.held_bytes[layer, policy, in_flight - 1]
            workspace = max(workspace, chain.workspace[layer, policy])
    return total + len(stages) * workspace


def seconds_of(chain: LayerChain, stages: list[HeldLayers], policies: tuple[int, ...]) -> float:
    """Forward and backward of a microbatch on a rank."""
    layers = [layer for first, last, _ in stages for layer in range(first, last)]
    gathers = sum(chain.gather_seconds[first : last - 1].sum() for first, last, _ in stages)
    return float(gathers + sum(chain.seconds[layer, policy] for layer, policy in zip(layers, policies, strict=True)))


def least_seconds(chain: LayerChain, stages: list[HeldLayers], memory: float) -> float:
    """The fewest seconds of all recomputations that fit; infinite if none does."""
    count = sum(last - first for first, last, _ in stages)
    fitting = (
        seconds_of(chain, stages, policies)
        for policies in itertools.product(range(len(chain.policies)), repeat=count)
        if bytes_needed(chain, stages, policies) <= memory
    )
    return min(fitting, default=np.inf)
