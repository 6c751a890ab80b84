"""Activation recomputation of a stage's layers as text: `full` for all of them, or `3 full, 5 none` in layer order.

`UnitPlan.recompute` holds such texts.
"""

import itertools
import re
from collections.abc import Sequence
from typing import cast

from sharding.specs.layers.layer import RECOMPUTE_POLICIES, RecomputePolicy

_RUN = re.compile(r"(?P<count>[1-9][0-9]{0,8}) (?P<policy>[a-z]+)")


def read_recompute(text: str, layers: int) -> list[tuple[RecomputePolicy, int]]:
    """The policies of a stage's layers: of consecutive ones, the policy and how many there are.

    Args:
        text: A policy for all layers, or counts and policies of consecutive layers: `3 full, 5 none`.
        layers: How many layers the stage owns.

    Raises:
        ValueError: The text is neither, or its counts do not add up to the layers; says what must be changed.
    """
    if text in RECOMPUTE_POLICIES:
        return [(text, layers)]
    runs = [_RUN.fullmatch(run) for run in text.split(", ")]
    if not all(run and run["policy"] in RECOMPUTE_POLICIES for run in runs):
        example = ", ".join(f"{count} {policy}" for count, policy in zip((3, 5), ("full", "none"), strict=True))
        raise ValueError(
            f"{text!r}; choose from {', '.join(RECOMPUTE_POLICIES)}, or give counts of layers, such as {example!r}"
        )
    read: list[tuple[RecomputePolicy, int]] = [
        (cast("RecomputePolicy", run["policy"]), int(run["count"])) for run in runs if run
    ]
    total = sum(count for _, count in read)
    if total != layers:
        raise ValueError(f"{text!r} is for {total} layers, but the stage owns {layers}")
    return read


def layer_policies(text: str, layers: int) -> tuple[RecomputePolicy, ...]:
    """Returns the policy of each of a stage's layers; takes the arguments of `read_recompute` and raises its error."""
    return tuple(policy for policy, count in read_recompute(text, layers) for _ in range(count))


def policy_runs(policies: Sequence[RecomputePolicy]) -> list[tuple[RecomputePolicy, int]]:
    """Consecutive layers of one policy: the policy, and how many there are."""
    starts = [layer for layer in range(len(policies)) if not layer or policies[layer] != policies[layer - 1]]
    return [(policies[start], end - start) for start, end in itertools.pairwise((*starts, len(policies)))]


def recompute_text(policies: Sequence[RecomputePolicy]) -> str:
    """The text from which `layer_policies` reads these policies; the shortest there is."""
    runs = policy_runs(policies)
    return runs[0][0] if len(runs) == 1 else ", ".join(f"{count} {policy}" for policy, count in runs)
