"""VeOmni: fully sharded language models on 128 devices, TorchTitan's beside it, and vision-language models.

A sequence is divided over ranks (DeepSpeed-Ulysses), and weights over all devices, those ranks included. Our fully
sharded units divide weights over replicas alone, so such a run is simulated as a replica for each rank that computes
its share of a sequence's tokens and of attention's pairs; what ranks exchange around attention, about 1% of a step, is
not counted.
"""

from typing import NamedTuple

from benchmarks.validation.runs.experts import QWEN3_30B
from benchmarks.validation.runs.qwen_models import QWEN_2_7B, QWEN_2_32B, QWEN_2_72B, QWEN_2_VL_TOWER
from benchmarks.validation.settings.counted_flops import counted_flops
from benchmarks.validation.settings.frameworks import with_second_flash_attention
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.published_band import AssumedSetting, PublishedBand
from benchmarks.validation.settings.setting import Setting, language_graph, sequence_load, share_of
from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS, ClusterConfig
from configs.modules.backbone import BackboneConfig
from sharding.costs.analytic import AnalyticCostModel
from sharding.specs.modules import module_graph

_SOURCE = "VeOmni, arXiv 2508.02317, tables 1 to 4 (August 2025)"
_DEVICES = 128
# The paper does not name the devices; its MFU divides by 989 TFLOP/s, the peak of H100 and H800. In the 3.1 s that a
# microbatch of 72B takes on 8,192 positions, each device gathers 290 GB of weights and scatters 290 GB of gradients:
# 187 GB/s, almost all that an H800's NVLink has. Its configurations name FlashAttention-2.
_H100 = with_second_flash_attention(CLUSTERS["h100"])


class _Table(NamedTuple):
    """A model, with tokens per second of a device by thousands of positions (1,024) and ranks of a sequence."""

    name: str
    model: BackboneConfig
    framework: str
    throughput: dict[tuple[int, int], float]
    ep: int = 1


_TABLES = (
    _Table(
        "Qwen2 7B", QWEN_2_7B, "VeOmni",
        {
            (8, 1): 6940, (16, 1): 6583, (32, 1): 5315, (64, 1): 3725, (128, 1): 2258,
            (8, 4): 3830, (16, 4): 4889, (32, 4): 4629, (64, 4): 3452, (128, 4): 2187,
        },
    ),
    _Table(
        "Qwen2.5 32B", QWEN_2_32B, "VeOmni",
        {
            (8, 4): 1140, (16, 4): 1316, (32, 4): 1240, (64, 4): 957, (128, 4): 632,
            (8, 8): 668, (16, 8): 1074, (32, 8): 1115, (64, 8): 903, (128, 8): 613,
        },
    ),
    _Table(
        "Qwen2 72B", QWEN_2_72B, "VeOmni",
        {
            (8, 4): 565, (16, 4): 624, (32, 4): 592, (64, 4): 468,
            (8, 8): 330, (16, 8): 532, (32, 8): 533, (64, 8): 441, (128, 8): 303,
        },
    ),
    # Text of real samples is routed, so that the fullest expert rank has more tokens than the mean one.
    _Table(
        "Qwen3-30B-A3B", QWEN3_30B, "VeOmni",
        {
            (8, 1): 2776, (16, 1): 2853, (32, 1): 2417,
            (8, 4): 1216, (16, 4): 1897, (32, 4): 2064, (64, 4): 1716, (128, 4): 1075,
        },
        ep=8,
    ),
    # How TorchTitan divides a sequence is not said.
    _Table("Qwen2 7B", QWEN_2_7B, "TorchTitan beside VeOmni", {(8, 1): 6639, (16, 1): 6082, (32, 1): 4878}),
)  # fmt: skip


def runs() -> tuple[PublishedRun, ...]:
    """One sequence a microbatch, 128 sequences a step, all recomputed."""
    return tuple(
        _run(table, 1024 * thousands, ranks, tokens_per_second)
        for table in _TABLES
        for (thousands, ranks), tokens_per_second in table.throughput.items()
    )


def _run(table: _Table, length: int, ranks: int, tokens_per_second: float) -> PublishedRun:
    divided = f" over {ranks} ranks" if ranks > 1 else ""
    return PublishedRun(
        name=f"{table.framework}, {table.name}, {length} positions{divided}",
        family="experts" if table.ep > 1 else "fully_sharded",
        source=_SOURCE,
        width=table.model.width,
        seconds=length / tokens_per_second,
        setting=Setting(
            graph=language_graph(table.model),
            costs=AnalyticCostModel(_H100),
            loads=(share_of(sequence_load(length), ranks),),
            microbatches=ranks,
            dp=_DEVICES,
            fsdp=_DEVICES,
            ep=table.ep,
            recompute="full",
        ),
    )


# (model, tower, devices, positions, MFU): the longest sequences of figures 4 and 5.
_FIGURES = (
    ("Qwen2-VL 7B", QWEN_2_7B, 8, 192, 4, 0.615),
    ("Qwen2-VL 72B", QWEN_2_72B, 128, 96, 8, 0.5482),
)


def bands() -> tuple[PublishedBand, ...]:
    """Vision-language models whose tower is frozen. Which attention kernel is not said; all must be recomputed to fit.

    At these lengths the tower takes less than 2% of a step whatever the share of pictures; a quarter is assumed.
    """
    return tuple(
        PublishedBand(
            name=f"VeOmni, {name}, {1024 * thousands} positions on {devices} devices",
            source="VeOmni, arXiv 2508.02317, section 4.2 (August 2025)",
            least=mfu,
            most=mfu,
            assumed=tuple(
                AssumedSetting(
                    kernels,
                    _figure_setting(model, cluster, devices, 1024 * thousands, ranks),
                    devices / ranks * counted_flops(model, (1024 * thousands,)),
                )
                for kernels, cluster in (("FlashAttention-2", _H100), ("FlashAttention-3", CLUSTERS["h100"]))
            ),
        )
        for name, model, devices, thousands, ranks, mfu in _FIGURES
    )


def _figure_setting(model: BackboneConfig, cluster: ClusterConfig, devices: int, length: int, ranks: int) -> Setting:
    pictures, patches = length / 4 / 1024, 4096
    loads = ((pictures * patches, pictures * patches**2, pictures, 0.0), sequence_load(length))
    return Setting(
        graph=module_graph(ModelConfig((QWEN_2_VL_TOWER,), model, (), "bfloat16")),
        costs=AnalyticCostModel(cluster),
        loads=tuple(share_of(load, ranks) for load in loads),
        dp=devices,
        fsdp=devices,
        recompute="full",
        trains=("vision_projector", "backbone"),
    )
