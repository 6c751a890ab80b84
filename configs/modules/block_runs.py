"""Runs of equal blocks of a backbone, with or without experts.

Each run is a stack of the Flax model and of the planners' specs.
"""

import itertools
from typing import NamedTuple

from configs.modules.experts import ExpertsConfig


class BackboneBlockRun(NamedTuple):
    """Equal blocks that follow each other: a stack.

    Attributes:
        name: Name of the run: `blocks` where its blocks are like the backbone's last one, else `dense`; followed by a
            number where there are several.
        first: Number of its first block among all blocks.
        count: Number of its blocks.
        has_experts: Whether they have experts in place of a feed-forward layer.
    """

    name: str
    first: int
    count: int
    has_experts: bool


def block_runs(experts: ExpertsConfig | None, depth: int, before: int = 0) -> tuple[BackboneBlockRun, ...]:
    """The runs of equal blocks behind the first ones.

    Args:
        experts: The experts of some blocks; None where no block has some.
        depth: Number of blocks.
        before: Number of the first blocks that are in no run.
    """
    runs: list[BackboneBlockRun] = []
    for has_experts, layers in itertools.groupby(range(before, depth), lambda layer: has_experts_at(experts, layer)):
        first, *others = layers
        kind = "blocks" if has_experts or experts is None else "dense"
        number = sum(run.has_experts == has_experts for run in runs)
        runs.append(BackboneBlockRun(f"{kind}_{number}" if number else kind, first, 1 + len(others), has_experts))
    return tuple(runs)


def has_experts_at(experts: ExpertsConfig | None, layer: int) -> bool:
    """Whether the block of a number has experts."""
    return experts is not None and layer >= experts.dense_layers and (layer + 1) % experts.interval == 0
