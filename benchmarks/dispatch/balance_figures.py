"""How level the phases of a step are under each way of balancing, how much of them is padding, and what fits memory."""

from typing import Any

from benchmarks.dispatch.arrangement import (
    ALL_PADDED,
    BACKBONE_ONLY,
    NONE_PADDED,
    ORCHMLLM,
    UNBALANCED,
    Balancing,
    arrange,
    replica_loads,
)
from benchmarks.dispatch.samples import StepSamples
from benchmarks.dispatch.steps import CLUSTER, simulate_balanced
from benchmarks.rows import paper_row
from configs.workloads import SyntheticData
from sharding.specs.layers.layer import LoadColumn

WAYS = {"not balanced": UNBALANCED, "backbone alone (before)": BACKBONE_ONLY, "every phase (after)": ORCHMLLM}
PADDED_WAYS = {**WAYS, "every phase (after)": ALL_PADDED}
FITTED_WAYS = {**WAYS, "every phase, clips packed": NONE_PADDED}


def phase_rows(name: str, samples: StepSamples) -> list[dict[str, Any]]:
    """The fullest replica over the mean of every phase, and the share of padding of each if it is padded."""
    rows = []
    for label, balancing in WAYS.items():
        arrangement = arrange(samples, balancing, CLUSTER.devices_per_node)
        for module in samples.loads:
            tokens = replica_loads(samples, module, arrangement, module in balancing.padded)[:, LoadColumn.TOKENS]
            rows.append(
                paper_row(f"{name}, {module}, {label}: fullest replica over the mean", tokens.max() / tokens.mean())
            )
    for label, balancing in PADDED_WAYS.items():
        arrangement = arrange(samples, balancing, CLUSTER.devices_per_node)
        for module in samples.loads:
            padded, needed = (
                replica_loads(samples, module, arrangement, is_padded)[:, LoadColumn.TOKENS].sum()
                for is_padded in (True, False)
            )
            rows.append(paper_row(f"{name}, {module} padded, {label}: share of padding", 1 - needed / padded))
    return rows


def largest_mini_batch_rows(name: str, samples: StepSamples, data: SyntheticData) -> list[dict[str, Any]]:
    """The largest mini-batch that fits with full recomputation, under each way of balancing."""
    return [
        paper_row(f"{name}, {label}: largest mini-batch that fits", largest_mini_batch(samples, data, balancing))
        for label, balancing in FITTED_WAYS.items()
    ]


def largest_mini_batch(samples: StepSamples, data: SyntheticData, balancing: Balancing) -> int:
    """The most samples a replica that fit, by bisection, as more hardly ever take less memory; at most all of them."""
    fits, does_not = 0, samples.mini_batch + 1
    while does_not - fits > 1:
        middle = (fits + does_not) // 2
        some = samples.first(middle)
        arrangement = arrange(some, balancing, CLUSTER.devices_per_node)
        step = simulate_balanced(some, data, balancing, arrangement, choices=("full",))
        fits, does_not = (middle, does_not) if step.memory <= 1 else (fits, middle)
    return fits
