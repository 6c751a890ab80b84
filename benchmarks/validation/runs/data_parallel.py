"""Runs without tensor or pipeline ranks: FlashAttention-2's GPTs, InternLM-7B, MPT in llm-foundry."""

import dataclasses
import functools

from benchmarks.validation.runs.megatron import gpt
from benchmarks.validation.settings.frameworks import (
    A100,
    flash_attention_training,
    internlm,
    with_first_flash_attention,
)
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.setting import Setting, language_graph, sequence_load, simulated_step, with_kernels
from configs.modules.backbone import BackboneConfig
from sharding.costs.analytic import AnalyticCostModel
from sharding.specs.layers.layer import RecomputePolicy

_FLASH_2 = AnalyticCostModel(A100)
_FLASH_1 = AnalyticCostModel(with_first_flash_attention(A100))


def _parameters(model: BackboneConfig) -> int:
    """Elements of a GPT's matrices, with its embedding once."""
    return 12 * model.depth * model.width**2 + model.vocabulary * model.width


# (name, width, depth, heads, positions, sequences of a microbatch, TFLOP/s of each device)
_FLASH_2_RUNS = (
    ("1.3B", 2048, 24, 16, 2048, 8, 196),
    ("1.3B", 2048, 24, 16, 8192, 4, 220),
    ("2.7B", 2560, 32, 20, 2048, 4, 205),
    ("2.7B", 2560, 32, 20, 8192, 1, 225),
)


def flash_attention_runs() -> tuple[PublishedRun, ...]:
    """FlashAttention-2 (arXiv 2307.08691, table 1): TFLOP/s of eight A100s by 6 N s + 12 l d s^2."""
    published = []
    for name, width, depth, heads, length, microbatch, rate in _FLASH_2_RUNS:
        model = gpt(width, depth, heads, vocabulary=50264)
        setting = Setting(
            graph=with_kernels(language_graph(model), functools.partial(flash_attention_training, model=model)),
            costs=_FLASH_2,
            loads=(sequence_load(length),),
            microbatch=microbatch,
            microbatches=2**20 // length // (8 * microbatch),
            dp=8,
        )
        flops = 6 * _parameters(model) * length + 12 * depth * width * length**2
        published.append(
            PublishedRun(
                name=f"GPT-{name} with FlashAttention-2, {length} positions",
                family="pipeline",
                source="arXiv 2307.08691, table 1; microbatch: Dao-AILab/flash-attention, training/configs",
                width=width,
                seconds=setting.samples / 8 * flops / (rate * 1e12),
                setting=setting,
            )
        )
    return tuple(published)


_INTERNLM_7B = BackboneConfig(
    width=4096,
    depth=32,
    heads=32,
    kv_heads=32,
    ffn=11008,
    vocabulary=103168,
    biases=("query", "key", "value", "output"),
)
_INTERNLM_SOURCE = "InternLM/InternLM, doc/en/train_performance.md"


def _one_microbatch(setting: Setting) -> float:
    fewer = dataclasses.replace(setting, microbatches=setting.microbatches - 2)
    return (simulated_step(setting) - simulated_step(fewer)) / 2


def internlm_runs() -> tuple[PublishedRun, ...]:
    """InternLM-7B, microbatches of two sequences, ZeRO-1 over eight devices, nothing recomputed.

    The seconds of one microbatch are what four take more than two, on 512 devices: no optimizer, no reduction.
    """
    step = Setting(
        graph=with_kernels(language_graph(_INTERNLM_7B), functools.partial(internlm, model=_INTERNLM_7B)),
        costs=_FLASH_1,
        loads=(sequence_load(2048),),
        microbatch=2,
        microbatches=4,
        dp=8,
    )
    tokens = 2 * 2048
    return (
        PublishedRun(
            name="InternLM-7B, a step of four microbatches",
            family="pipeline",
            source=_INTERNLM_SOURCE,
            width=4096,
            seconds=4 * tokens / 4078,
            setting=step,
        ),
        PublishedRun(
            name="InternLM-7B, one microbatch",
            family="pipeline",
            source=_INTERNLM_SOURCE,
            width=4096,
            seconds=(4 * tokens / 3900 - 2 * tokens / 3084) / 2,
            setting=step,
            measure=_one_microbatch,
        ),
    )


# (name, width, depth, heads, positions, sequences of a microbatch, microbatches, recomputation, tokens/s of a device)
_MPT_RUNS: tuple[tuple[str, int, int, int, int, int, int, RecomputePolicy, int], ...] = (
    ("1B", 2048, 24, 16, 2048, 14, 4, "none", 20513),
    ("3B", 2560, 32, 20, 2048, 10, 2, "none", 10811),
    ("7B", 4096, 32, 32, 2048, 6, 2, "none", 4641),
    ("7B", 4096, 32, 32, 1024, 64, 2, "full", 4357),
    ("13B", 5120, 40, 40, 1024, 40, 3, "full", 2330),
    ("30B", 7168, 48, 56, 1024, 6, 21, "full", 946),
)


def mpt_runs() -> tuple[PublishedRun, ...]:
    """MPT on eight A100s of one node, fully sharded."""
    published = []
    for name, width, depth, heads, length, microbatch, microbatches, recompute, rate in _MPT_RUNS:
        model = gpt(width, depth, heads, vocabulary=50368)
        setting = Setting(
            graph=language_graph(model),
            costs=_FLASH_1,
            loads=(sequence_load(length),),
            microbatch=microbatch,
            microbatches=microbatches,
            dp=8,
            fsdp=8,
            recompute=recompute,
        )
        published.append(
            PublishedRun(
                name=f"MPT-{name}, {length} positions, recomputation {recompute}",
                family="fully_sharded",
                source="mosaicml/llm-foundry, scripts/train/benchmarking/README.md",
                width=width,
                seconds=setting.samples / 8 * length / rate,
                setting=setting,
            )
        )
    return tuple(published)
