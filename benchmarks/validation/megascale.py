"""MegaScale's 175B (arXiv 2402.15627, table 2): parallel blocks, fused attention, overlapped collectives, on A100s."""

import dataclasses
import functools

from benchmarks.validation.frameworks import A100
from benchmarks.validation.megatron import gpt
from benchmarks.validation.published import PublishedRun
from benchmarks.validation.setting import Setting, simulated_step
from sharding.costs.analytic import AnalyticCostModel

_RUNS = ((256, 768, 32.0), (512, 768, 16.5), (768, 768, 11.5), (1024, 768, 8.9))
"""(devices, sequences of a step, seconds)."""


def runs() -> tuple[PublishedRun, ...]:
    """Strong scaling with 768 sequences."""
    model = dataclasses.replace(gpt(12288, 96, 128, vocabulary=64000), parallel_block=True)
    runs = []
    for devices, sequences, seconds in _RUNS:
        dp = devices // 64
        setting = Setting(
            model=model,
            costs=AnalyticCostModel(A100),
            adapt=lambda layer: layer,
            microbatches=sequences // dp,
            tp=8,
            pp=8,
            chunks=6,
            dp=dp,
            collectives="ring",
        )
        runs.append(
            PublishedRun(
                name=f"MegaScale 175B, {devices} devices",
                source="arXiv 2402.15627, table 2",
                width=model.width,
                seconds=seconds,
                simulate=functools.partial(simulated_step, setting),
            )
        )
    return tuple(runs)
