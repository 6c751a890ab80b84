"""Megatron-LM's runs of arXiv 2205.05198: one layer of 22B (table 4), and four models (table 5), on A100s."""

import dataclasses
import functools

import numpy as np

from benchmarks.validation.settings.frameworks import A100, AttentionRecomputed, megatron_2022
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.setting import Setting, language_graph, sequence_load, with_kernels
from configs.modules.backbone import BackboneConfig
from sharding.costs.cost_model import LayerParallelism
from sharding.plans.parallelism import CollectivesName
from sharding.specs.layers.layer import RecomputePolicy, make_loads

SOURCE = "arXiv 2205.05198"
_COSTS = AttentionRecomputed(A100)


def gpt(width: int, depth: int, heads: int, vocabulary: int = 51200) -> BackboneConfig:
    """A language model of GPT-3's blocks."""
    return BackboneConfig(
        width=width,
        depth=depth,
        heads=heads,
        kv_heads=heads,
        ffn=4 * width,
        gated=False,
        norm="layernorm",
        activation="gelu",
        biases=("query", "key", "value", "output", "mlp"),
        positions="learned",
        vocabulary=vocabulary,
        tie_embeddings=True,
    )


def _setting(
    model: BackboneConfig, pp: int, chunks: int, microbatch: int, microbatches: int, *, present: bool
) -> Setting:
    recompute: RecomputePolicy = "selective" if present else "full"
    adapt = functools.partial(megatron_2022, model=model, length=2048, segments=microbatch)
    return Setting(
        graph=with_kernels(language_graph(model), adapt),
        costs=_COSTS,
        loads=(sequence_load(2048),),
        microbatch=microbatch,
        microbatches=microbatches,
        tp=8,
        pp=pp,
        chunks=chunks,
        recompute=recompute,
        collectives="sequence_parallel" if present else "all_reduce",
    )


# (name, model, pipeline ranks, chunks, sequences of a microbatch, microbatches, seconds recomputing all, and with
# sequence parallelism and selective recomputation)
_TABLE_5 = (
    ("22B", gpt(6144, 48, 64), 1, 1, 4, 1, 1.42, 1.10),
    ("175B", gpt(12288, 96, 96), 8, 3, 1, 64, 18.13, 13.75),
    ("530B", gpt(20480, 105, 128), 35, 3, 1, 280, 49.05, 37.83),
    ("1T", gpt(25600, 128, 160), 64, 1, 1, 512, 94.42, 71.49),
)


def step_runs() -> tuple[PublishedRun, ...]:
    """Table 5: seconds of a step."""
    runs = []
    for name, model, pp, chunks, microbatch, microbatches, full, present in _TABLE_5:
        for label, seconds in (("full recomputation", full), ("selective, sequence parallel", present)):
            runs.append(
                PublishedRun(
                    name=f"Megatron-LM {name}, {label}",
                    family="pipeline",
                    source=f"{SOURCE}, table 5",
                    width=model.width,
                    seconds=seconds,
                    setting=_setting(model, pp, chunks, microbatch, microbatches, present=seconds == present),
                )
            )
    return tuple(runs)


# (label, collectives, recomputation, milliseconds of the forward, of the backward)
_TABLE_4: tuple[tuple[str, CollectivesName, RecomputePolicy, float, float], ...] = (
    ("no recomputation", "all_reduce", "none", 7.7, 11.9),
    ("sequence parallel", "sequence_parallel", "none", 7.2, 11.8),
    ("full recomputation", "all_reduce", "full", 7.7, 19.5),
    ("selective recomputation", "all_reduce", "selective", 7.7, 13.2),
    ("sequence parallel, selective", "sequence_parallel", "selective", 7.2, 13.1),
)


def _layer_seconds(setting: Setting) -> float:
    """Seconds of a layer of 22B for four sequences."""
    layer, costs = setting.graph.backbone.layer, setting.costs
    loads, ranks = make_loads(4 * 2048, 4 * 2048**2, 4), LayerParallelism(8, collectives=setting.collectives)
    forward = costs.forward(layer, loads, ranks).total
    return float(np.add(forward, costs.backward(layer, loads, ranks, ("dgrad", "wgrad"), setting.recompute).total))


def layer_runs() -> tuple[PublishedRun, ...]:
    """Table 4: forward and backward of one layer."""
    whole = _setting(_TABLE_5[0][1], 1, 1, 4, 1, present=True)
    return tuple(
        PublishedRun(
            name=f"a layer of Megatron-LM 22B, {label}",
            family="pipeline",
            source=f"{SOURCE}, table 4",
            width=6144,
            seconds=1e-3 * (forward + backward),
            setting=dataclasses.replace(whole, collectives=collectives, recompute=recompute),
            measure=_layer_seconds,
        )
        for label, collectives, recompute, forward, backward in _TABLE_4
    )
