"""MegaScale's 175B (arXiv 2402.15627, table 2): parallel blocks, fused attention, overlapped collectives, on A100s."""

import dataclasses

from benchmarks.validation.runs.megatron import gpt
from benchmarks.validation.settings.frameworks import A100, ReductionsOverlapped
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.setting import Setting, language_graph, sequence_load

_RUNS = ((256, 768, 32.0), (512, 768, 16.5), (768, 768, 11.5), (1024, 768, 8.9))
"""(devices, sequences of a step, seconds)."""


def runs() -> tuple[PublishedRun, ...]:
    """Strong scaling with 768 sequences."""
    model = dataclasses.replace(gpt(12288, 96, 128, vocabulary=64000), parallel_block=True)
    published = []
    for devices, sequences, seconds in _RUNS:
        dp = devices // 64
        setting = Setting(
            graph=language_graph(model),
            costs=ReductionsOverlapped(A100),
            loads=(sequence_load(2048),),
            microbatches=sequences // dp,
            tp=8,
            pp=8,
            chunks=6,
            dp=dp,
            collectives="ring",
        )
        published.append(
            PublishedRun(
                name=f"MegaScale 175B, {devices} devices",
                family="pipeline",
                source="arXiv 2402.15627, table 2",
                width=model.width,
                seconds=seconds,
                setting=setting,
            )
        )
    return tuple(published)
