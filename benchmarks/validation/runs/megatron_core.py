"""Megatron-Core's weak scaling on H100s (2024): GPTs of 2 to 462 billion parameters."""

from benchmarks.validation.settings.frameworks import ReductionsOverlapped
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.setting import Setting, language_graph, sequence_load
from configs.clusters import CLUSTERS
from configs.modules.backbone import BackboneConfig

_SOURCE = "NVIDIA/Megatron-LM, images/model_table.png (July 2024)"
_LENGTH, _VOCABULARY, _REPLICAS = 4096, 131072, 48

# (parameters, heads, width, layers, tensor ranks, pipeline ranks, chunks, sequences of a step, TFLOP/s of a device)
_RUNS = (
    ("1.7B", 16, 2048, 24, 1, 1, 1, 192, 408.8),
    ("7.1B", 32, 4096, 30, 2, 1, 1, 192, 465.9),
    ("16B", 48, 6144, 32, 4, 1, 1, 192, 489.1),
    ("30B", 56, 7168, 48, 8, 1, 1, 192, 459.6),
    ("70B", 64, 8192, 84, 8, 2, 6, 384, 419.7),
    ("121B", 80, 10240, 92, 8, 4, 23, 768, 420.5),
    ("177B", 96, 12288, 96, 8, 6, 8, 1152, 432.8),
    ("314B", 128, 16384, 96, 8, 8, 12, 1536, 474.4),
    ("462B", 144, 18432, 112, 8, 16, 7, 3072, 459.9),
)


def runs() -> tuple[PublishedRun, ...]:
    """Microbatches of one sequence with pipelines and of four without, and the chunks, are assumed."""
    published = []
    for name, heads, width, depth, tp, pp, chunks, sequences, rate in _RUNS:
        model = BackboneConfig(
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
            vocabulary=_VOCABULARY,
        )
        # Megatron-LM's count of 2024, with whole squares of attention: 72 B s L h^2 (1 + s / 6h + V / 12Lh)
        flops = 72 * sequences * _LENGTH * depth * width**2
        flops *= 1 + _LENGTH / (6 * width) + _VOCABULARY / (12 * depth * width)
        microbatch = 1 if pp > 1 else sequences // _REPLICAS
        published.append(
            PublishedRun(
                name=f"Megatron-Core {name}, {_REPLICAS * tp * pp} H100s",
                family="pipeline",
                source=_SOURCE,
                width=width,
                seconds=flops / (_REPLICAS * tp * pp * rate * 1e12),
                setting=Setting(
                    graph=language_graph(model),
                    costs=ReductionsOverlapped(CLUSTERS["h100"]),
                    loads=(sequence_load(_LENGTH),),
                    microbatch=microbatch,
                    microbatches=sequences // (_REPLICAS * microbatch),
                    tp=tp,
                    pp=pp,
                    chunks=chunks if sequences // _REPLICAS // microbatch % pp == 0 else 1,
                    dp=_REPLICAS,
                    collectives="ring" if tp > 1 else "all_reduce",
                ),
            )
        )
    return tuple(published)
