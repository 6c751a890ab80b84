"""The sizes of `benchmarks.gpu`: model, data and shapes, in full, and tiny and medium for a dry run on any machine."""

import dataclasses

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.modules.projectors import MLPProjectorConfig
from configs.workloads import Lognormal


@dataclasses.dataclass(frozen=True)
class AttentionHeads:
    """Query heads, key heads and width of a head."""

    query: int
    key: int
    width: int


@dataclasses.dataclass(frozen=True)
class ExpertMatmul:
    """(token, expert) pairs, size of a sum, columns, and experts."""

    rows: int
    inner: int
    outer: int
    groups: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkSizes:
    """All sizes of a run.

    Attributes:
        model: One vision encoder and a backbone that transformers can hold as LLaVA.
        side: Side of a picture in pixels.
        text: Text tokens of a sample.
        pictures: Probabilities of no picture and of one.
        tokens, rows: Tokens of a packed row, and rows of a step.
        microbatches: Microbatches of a step, with memory to spare and without; both divide the rows.
        batches: Steps that differ; they are used in turn.
        steps: Steps that are timed.
        attention: Heads, and lengths of the segments of a row by name of the mix.
        matmuls: By name, rows of all ranks together, contracted size, columns of a rank.
        experts: Matmuls of experts by name.
        loss: Positions, width and vocabulary of a language loss.
        shapes: Rows, contracted size and columns of matmuls whose efficiency is measured.
        head_widths: Widths of heads at which the efficiency of attention is measured, increasing.
        attention_length: Positions of its sequence.
        ranks: Virtual ranks of the collective matmuls.
        rounds, inner: How often a kernel is timed, and calls each time.
    """

    model: ModelConfig
    side: int
    text: Lognormal
    pictures: tuple[float, float]
    tokens: int
    rows: int
    microbatches: tuple[int, int]
    batches: int
    steps: int
    attention: tuple[AttentionHeads, tuple[tuple[str, tuple[int, ...]], ...]]
    matmuls: tuple[tuple[str, tuple[int, int, int]], ...]
    experts: tuple[tuple[str, ExpertMatmul], ...]
    loss: tuple[int, int, int]
    shapes: tuple[tuple[int, int, int], ...]
    head_widths: tuple[int, ...]
    attention_length: int
    ranks: int
    rounds: int
    inner: int


# CLIP ViT-L/14 at 336 x 336 (arXiv 2103.00020) without its last block, which LLaVA does not read, and a backbone of
# the shape of Qwen2-1.5B (arXiv 2407.10671, table 1; its config.json), with LLaVA-1.5's projector (arXiv 2310.03744).
MODEL = ModelConfig(
    encoders=(
        VisionConfig(
            width=1024,
            depth=23,
            heads=16,
            ffn=4096,
            activation="quick_gelu",
            norm_epsilon=1e-5,
            patch=14,
            merge=1,
            pixel_mean=(-0.03709068, -0.084345, -0.18357858),
            pixel_std=(0.53725908, 0.52260516, 0.55155422),
            patch_bias=False,
            class_token=True,
            positions="learned",
            grid=24,
            input_norm=True,
            final_norm=False,
            projector=MLPProjectorConfig(activation="gelu"),
        ),
    ),
    backbone=BackboneConfig(
        vocabulary=151936,
        width=1536,
        depth=28,
        heads=12,
        kv_heads=2,
        ffn=8960,
        norm_epsilon=1e-6,
        rope_base=1e6,
        biases=("query", "key", "value"),
        tie_embeddings=True,
    ),
    generators=(),
    dtype="bfloat16",
)

FULL = BenchmarkSizes(
    model=MODEL,
    side=336,
    # Text and shares of pictures as in configs/data/llava_like.gin; one picture of 336 pixels each, as in LLaVA-1.5.
    text=Lognormal(200.0, 0.8, minimum=16.0, maximum=2048.0),
    pictures=(0.06, 0.94),
    tokens=4096,
    rows=8,
    microbatches=(4, 8),
    batches=2,
    steps=10,
    attention=(
        AttentionHeads(12, 2, 128),
        (
            ("llava-like", (776, 640, 1210, 705, 590, 175)),
            ("16 x 256", (256,) * 16),
            ("one of 4096", (4096,)),
            ("8 x 2048", (2048,) * 8),
        ),
    ),
    # Llama 3 8B's matmuls (arXiv 2407.21783, table 3) on one of four tensor ranks, 8192 tokens.
    matmuls=(
        ("query, key and value", (8192, 4096, 1536)),
        ("gate and up", (8192, 4096, 7168)),
        ("down", (8192, 3584, 4096)),
    ),
    # Qwen3-30B-A3B (arXiv 2505.09388): 128 experts of 2048 x 768, top 8; 8192 tokens, on one and on eight expert ranks.
    experts=(
        ("128 experts", ExpertMatmul(65536, 2048, 768, 128)),
        ("16 of 128 experts", ExpertMatmul(65536, 2048, 768, 16)),
    ),
    loss=(8192, 4096, 151936),  # Qwen3-8B
    # Square, then the four of a layer of Llama 3 8B on 8192 tokens, and one of few rows.
    shapes=(
        (8192, 8192, 8192),
        (8192, 4096, 6144),
        (8192, 4096, 28672),
        (8192, 14336, 4096),
        (8192, 4096, 4096),
        (1024, 4096, 4096),
    ),
    head_widths=(64, 128, 256),
    attention_length=16384,  # of the published rates of FlashAttention-3
    ranks=4,
    rounds=7,
    inner=10,
)

TINY = dataclasses.replace(
    FULL,
    model=dataclasses.replace(
        MODEL,
        encoders=(dataclasses.replace(MODEL.encoders[0], width=32, depth=2, heads=2, ffn=48, patch=4, grid=4),),
        backbone=dataclasses.replace(MODEL.backbone, vocabulary=96, width=32, depth=2, heads=4, kv_heads=2, ffn=48),
        dtype="float32",
    ),
    side=16,
    text=Lognormal(12.0, 0.5, minimum=4.0, maximum=40.0),
    tokens=96,
    rows=4,
    microbatches=(2, 4),
    steps=2,
    attention=(AttentionHeads(4, 2, 16), (("mixed", (20, 9, 30)),)),
    matmuls=(("one", (128, 64, 128)),),
    experts=(("few", ExpertMatmul(64, 16, 32, 4)),),
    loss=(64, 32, 96),
    shapes=((64, 32, 64),),
    head_widths=(16, 32),
    attention_length=128,
    ranks=2,
    rounds=2,
    inner=1,
)

MEDIUM = dataclasses.replace(
    TINY,
    model=dataclasses.replace(
        MODEL,
        encoders=(dataclasses.replace(MODEL.encoders[0], width=384, depth=6, heads=6, ffn=1536, patch=16, grid=8),),
        backbone=dataclasses.replace(
            MODEL.backbone, vocabulary=8192, width=512, depth=8, heads=8, kv_heads=4, ffn=1536
        ),
        dtype="float32",
    ),
    side=128,
    text=Lognormal(60.0, 0.8, minimum=8.0, maximum=400.0),
    tokens=512,
    rows=2,
    microbatches=(1, 2),
    steps=4,
)
"""40 M parameters: on a CPU its step takes seconds, most of them in matmuls."""

DRY_RUN_SIZES = {"tiny": TINY, "medium": MEDIUM}
