"""Partitions of a chain that see only some costs of its stages, as published systems make them, to compare with."""

from collections.abc import Callable, Mapping

import numpy as np

from sharding.planners.stages.exact_partition import partition_by
from sharding.planners.stages.layer_chain import LayerChain

PartitionMethod = Callable[[LayerChain, int], tuple[int, ...] | None]
"""How many layers each of so many virtual stages owns; None for more stages than layers."""


def by_layers(chain: LayerChain, stages: int) -> tuple[int, ...] | None:
    """Each stage owns equally many layers, the first stages one more."""
    least, rest = divmod(len(chain.forward), stages)
    return tuple(least + (stage < rest) for stage in range(stages)) if least else None


def by_parameters(chain: LayerChain, stages: int) -> tuple[int, ...] | None:
    """The partition whose stage with the most parameters has as few as possible."""
    return partition_by(chain.parameters, stages)


def by_profile(chain: LayerChain, stages: int) -> tuple[int, ...] | None:
    """The partition whose longest forward of a stage is as short as possible."""
    return partition_by(chain.plain_forward, stages)


def by_virtual_stages(chain: LayerChain, stages: int) -> tuple[int, ...] | None:
    """The partition whose slowest virtual stage, forward and backward without recomputation, is as fast as possible.

    "Megatron-LM balanced" of arXiv 2408.03505, appendix B.
    """
    return partition_by(chain.seconds.min(axis=1), stages)


def by_greedy_forward(chain: LayerChain, stages: int) -> tuple[int, ...] | None:
    """Puts each boundary where the forwards before it come nearest to their share: OmniBal's anchor (section 4.2)."""
    layers = len(chain.forward)
    if stages > layers:
        return None
    before = np.append(0.0, np.cumsum(chain.plain_forward))
    cuts = [0]
    for stage in range(1, stages):
        allowed = np.arange(cuts[-1] + 1, layers - (stages - stage) + 1)
        distance = np.abs(before[allowed] - before[-1] * stage / stages)
        cuts.append(int(allowed[distance.argmin()]))
    return tuple(np.diff([*cuts, layers]).tolist())


PARTITION_METHODS: Mapping[str, PartitionMethod] = {
    "layers": by_layers,
    "parameters": by_parameters,
    "profile": by_profile,
    "virtual stages": by_virtual_stages,
}
"""The baselines by name."""
