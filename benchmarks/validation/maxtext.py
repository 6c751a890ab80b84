"""MaxText's Llama 2 70B on 64 H100s (NGC recipe 25.01.1): fully sharded, which is simulated without its collectives."""

import dataclasses
import functools

from benchmarks.validation.published import PublishedRun
from benchmarks.validation.setting import Setting, simulated_step
from configs.backbone import BackboneConfig
from configs.clusters import CLUSTERS, Link
from sharding.costs.analytic import AnalyticCostModel

_LLAMA_2_70B = BackboneConfig(width=8192, depth=80, heads=64, kv_heads=8, ffn=28672, vocabulary=32000)


def runs() -> tuple[PublishedRun, ...]:
    """128 sequences of 4,096 positions, two on each device; the recipe names no policy, full recomputation is taken."""
    hidden = dataclasses.replace(CLUSTERS["h100"], intra_node=Link(1e18, 0.0), inter_node=Link(1e18, 0.0))
    setting = Setting(
        model=_LLAMA_2_70B,
        costs=AnalyticCostModel(hidden),
        adapt=lambda layer: layer,
        length=4096,
        microbatch=2,
        dp=64,
        recompute="full",
    )
    return (
        PublishedRun(
            name="MaxText Llama 2 70B, 64 H100s, collectives taken to be hidden",
            source="NGC, MaxText Llama2 70B 25.01.1 (DGXC Benchmarking)",
            width=8192,
            seconds=7.908,
            simulate=functools.partial(simulated_step, setting),
        ),
    )
