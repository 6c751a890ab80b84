"""lmms-engine's MFU of Qwen2.5, Qwen2.5-VL and Qwen3-VL on 32 A800s, which is published as bands.

Its MFU counts nothing of the vision tower (`counted_flops`). Every device packs one row of at most so many positions,
weights are fully sharded, and all is recomputed (`gradient_checkpointing` of its examples). The data are named by a
maintainer in issue 100 (December 2025): MiroMind-M1 and OpenThoughts for text, OpenMMReasoner for pictures, LongVT for
video, at a frame a second and at most 512 frames. Their lengths are not published; three mixtures of each are assumed.
"""

from typing import NamedTuple

from benchmarks.validation.runs.qwen_models import QWEN_2_5_VL_TOWER, QWEN_2_7B, QWEN_3_8B, QWEN_3_VL_TOWER
from benchmarks.validation.settings.counted_flops import counted_flops
from benchmarks.validation.settings.published_band import AssumedSetting, PublishedBand
from benchmarks.validation.settings.setting import Load, Setting, language_graph, share_of
from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from configs.modules.backbone import BackboneConfig
from configs.modules.encoders import VisionConfig
from sharding.costs.analytic import AnalyticCostModel
from sharding.specs.layers.local_attention import local_attention
from sharding.specs.modules import ModuleGraph, module_graph

_SOURCE = "EvolvingLMMs-Lab/lmms-engine, docs/reference/mfu.md (October 2025)"
_DEVICES = 32


class _Samples(NamedTuple):
    """The samples of a row, all alike.

    Attributes:
        count: Samples of the row.
        text: Text tokens of each.
        images: Pictures of each, or pairs of frames, each of which attends to itself in the vision tower.
        image_tokens: Tokens that the language model gets of a picture.
    """

    count: int
    text: int
    images: int = 0
    image_tokens: int = 0

    @property
    def length(self) -> int:
        """Tokens of a sample."""
        return self.text + self.images * self.image_tokens

    @property
    def assumption(self) -> str:
        """The samples in words."""
        pictures = f" and {self.images} x {self.image_tokens} of pictures" if self.images else ""
        return f"{self.count} samples of {self.text} tokens of text{pictures}"


class _Row(NamedTuple):
    """A published band, and rows that fit it.

    `ranks` divide the backbone's tokens (DeepSpeed-Ulysses); each of them computes the vision tower of all pictures
    (`qwen3_vl_ops.py`).
    """

    name: str
    tower: VisionConfig | None
    backbone: BackboneConfig
    least: float
    most: float
    rows: tuple[_Samples, ...]
    ranks: int = 1


_TEXT = (_Samples(10, 8192), _Samples(20, 4096), _Samples(5, 16384))
_PICTURES = (_Samples(20, 2048, 1, 1024), _Samples(20, 2816, 1, 256), _Samples(20, 1024, 1, 2048))
_ROWS = (
    _Row("Qwen2.5 7B, text, 81920 positions", None, QWEN_2_7B, 0.50, 0.55, _TEXT),
    _Row("Qwen2.5-VL 7B, pictures, 61440 positions", QWEN_2_5_VL_TOWER, QWEN_2_7B, 0.30, 0.40, _PICTURES),
    _Row("Qwen3-VL 8B, pictures, 61440 positions", QWEN_3_VL_TOWER, QWEN_3_8B, 0.30, 0.40, _PICTURES),
    # A frame has at most 50,176 pixels in the examples: 64 tokens of Qwen2.5-VL, 49 of Qwen3-VL, for each pair.
    _Row(
        "Qwen2.5-VL 7B, video, 51200 positions", QWEN_2_5_VL_TOWER, QWEN_2_7B, 0.25, 0.35,
        (_Samples(3, 682, 256, 64), _Samples(6, 341, 128, 64), _Samples(12, 2218, 32, 64)),
    ),
    _Row(
        "Qwen3-VL 8B, video, 51200 positions over 2 ranks", QWEN_3_VL_TOWER, QWEN_3_8B, 0.20, 0.25,
        (_Samples(4, 256, 256, 49), _Samples(8, 128, 128, 49), _Samples(12, 2698, 32, 49)), 2,
    ),
)  # fmt: skip


def bands() -> tuple[PublishedBand, ...]:
    """The five rows of its table."""
    return tuple(
        PublishedBand(
            name=f"lmms-engine, {row.name}",
            source=_SOURCE,
            least=row.least,
            most=row.most,
            assumed=tuple(_assumed(row, samples) for samples in row.rows),
        )
        for row in _ROWS
    )


def _assumed(row: _Row, samples: _Samples) -> AssumedSetting:
    backbone = share_of(_backbone_load(samples), row.ranks)
    setting = Setting(
        graph=_graph(row),
        costs=AnalyticCostModel(CLUSTERS["a800"]),
        loads=(backbone,) if row.tower is None else (_tower_load(row.tower, samples), backbone),
        dp=_DEVICES,
        fsdp=_DEVICES,
        recompute="full",
    )
    rows = _DEVICES / row.ranks
    return AssumedSetting(
        samples.assumption, setting, rows * counted_flops(row.backbone, (samples.length,) * samples.count)
    )


def _graph(row: _Row) -> ModuleGraph:
    if row.tower is None:
        return language_graph(row.backbone)
    return module_graph(ModelConfig((row.tower,), row.backbone, (), "bfloat16"))


def _backbone_load(samples: _Samples) -> Load:
    return samples.count * samples.length, samples.count * samples.length**2, samples.count, 0.0


def _tower_load(tower: VisionConfig, samples: _Samples) -> Load:
    pictures = samples.count * samples.images
    patches = samples.image_tokens * tower.positions_per_token
    local = local_attention(tower)
    pairs = 0.0 if local is None else float(local.pairs(patches))
    return pictures * patches, pictures * patches**2, pictures, pictures * pairs
