"""MaxText's Llama 2 70B on 64 H100s (NGC recipe 25.01.1): fully sharded."""

import functools

from benchmarks.validation.published import PublishedRun
from benchmarks.validation.setting import Setting, simulated_step
from configs.clusters import CLUSTERS
from configs.modules.backbone import BackboneConfig
from sharding.costs.analytic import AnalyticCostModel

_LLAMA_2_70B = BackboneConfig(width=8192, depth=80, heads=64, kv_heads=8, ffn=28672, vocabulary=32000)


def runs() -> tuple[PublishedRun, ...]:
    """128 sequences of 4,096 positions, two on each device; the recipe names no policy, full recomputation is taken."""
    setting = Setting(
        model=_LLAMA_2_70B,
        costs=AnalyticCostModel(CLUSTERS["h100"]),
        adapt=lambda layer: layer,
        length=4096,
        microbatch=2,
        dp=64,
        fsdp=64,
        recompute="full",
    )
    return (
        PublishedRun(
            name="MaxText Llama 2 70B, 64 H100s",
            source="NGC, MaxText Llama2 70B 25.01.1 (DGXC Benchmarking)",
            width=8192,
            seconds=7.908,
            simulate=functools.partial(simulated_step, setting),
        ),
    )
