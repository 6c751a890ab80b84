"""The loads that rows of a global batch bring to each module: drawn from a description, or measured."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from configs.architectures import AudioConfig, ModelConfig, VisionConfig
from configs.workloads import Lognormal, SampleKind, SyntheticData

POSITIONS_PER_SECOND = 50  # of Whisper's encoder: 100 mel frames, halved
MAX_MISSES = 16  # samples that a packer tries before it closes a row
DELIMITERS = 2  # special tokens around every modality's subsequence

Load = Float[np.ndarray, " 3"]


@dataclasses.dataclass(frozen=True, eq=False)
class RowLoadStatistics:
    """Loads of some rows that stand for all.

    Attributes:
        loads: By module, [n, 3]: tokens, squares, items (`layer_spec`).
    """

    loads: Mapping[str, Float[np.ndarray, "n 3"]]

    def __post_init__(self) -> None:
        if len({len(loads) for loads in self.loads.values()}) != 1:
            raise ValueError("DataStatistics: every module needs as many rows; one without load has rows of zeros")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.loads.values())))

    def mean_load(self, module: str) -> Load:
        """The mean load of a row."""
        return self.loads[module].mean(axis=0)

    def sample_batch(self, rows: int, seed: int = 0) -> dict[str, Float[np.ndarray, "n 3"]]:
        """Rows of a global batch: each of the statistics' rows as often as any other, in random order."""
        random = np.random.default_rng(seed)
        order = np.concatenate([random.permutation(self.rows) for _ in range(-(-rows // self.rows))])[:rows]
        return {module: loads[order] for module, loads in self.loads.items()}


def draw_row_loads(data: SyntheticData, model: ModelConfig, rows: int, seed: int = 0) -> RowLoadStatistics:
    """Draws rows as they are described."""
    random = np.random.default_rng(seed)
    shares = np.array([share for _, share in data.kinds])
    filled = [_row(data, shares / shares.sum(), model, random) for _ in range(rows)]
    return RowLoadStatistics({name: np.stack([row[name] for row in filled]) for name in filled[0]})


def _row(
    data: SyntheticData, shares: Float[np.ndarray, " k"], model: ModelConfig, random: np.random.Generator
) -> dict[str, Load]:
    """One row: samples in random order, those that no longer fit left for other rows, until several in a row don't.

    So a packer with a buffer fills rows. A sample longer than a whole row is cut to it.
    """
    loads = _blank(model)
    backbone, misses = model.backbone.name, 0
    while misses < MAX_MISSES:
        kind = data.kinds[random.choice(len(shares), p=shares)][0]
        sample = _sample(kind, model, random)
        length, room = sample[backbone][0], data.row_tokens - loads[backbone][0]
        if length <= room:
            for name, load in sample.items():
                loads[name] += load
        elif length > data.row_tokens and not loads[backbone][0]:
            sample[backbone] = np.array([room, room**2, 1.0])
            return sample
        else:
            misses += 1
    if data.one_document:
        loads[backbone][1] = loads[backbone][0] ** 2
    return loads


def _blank(model: ModelConfig) -> dict[str, Load]:
    modules = (*model.encoders, model.backbone, *model.generators)
    return {module.name: np.zeros(3) for module in modules}


def _sample(kind: SampleKind, model: ModelConfig, random: np.random.Generator) -> dict[str, Load]:
    loads = _blank(model)
    images = random.choice(len(kind.image_counts), p=np.array(kind.image_counts))
    clips = random.choice(len(kind.clip_counts), p=np.array(kind.clip_counts))
    sides = [_draw(kind.image_side, random) for _ in range(images)]
    seconds = [_draw(kind.clip_seconds, random) for _ in range(clips)]
    length = round(_draw(kind.text_tokens, random))
    for encoder in model.encoders:
        items = _SEGMENTS[type(encoder)](encoder, kind, sides, seconds)
        front = _class_cell(encoder)
        squares = sum((item + bool(front)) ** 2 for item in items)
        loads[encoder.name] += (sum(items) + front * len(items), squares, len(items))
        length += sum(item // encoder.positions_per_token for item in items) + DELIMITERS * len(items)
    drawn = random.binomial(images, kind.generated_share)
    for generator in model.generators:
        loads[generator.name] += (0, 0, drawn)
        length += generator.conditions * drawn
    loads[model.backbone.name] += (length, length**2, 1)
    return loads


def _class_cell(encoder: VisionConfig | AudioConfig) -> int:
    """Places of a row that the class token of an image takes: a cell, so that cells stay whole."""
    return encoder.positions_per_token if isinstance(encoder, VisionConfig) and encoder.class_token else 0


def _draw(size: Lognormal, random: np.random.Generator) -> float:
    return float(np.clip(size.median * math.exp(size.sigma * random.standard_normal()), size.minimum, size.maximum))


def _patches(encoder: VisionConfig, kind: SampleKind, sides: list[float], seconds: list[float]) -> list[int]:
    """Patches of every image or tile that the encoder attends over."""
    cell = encoder.patch * encoder.merge
    if not kind.tile_side:
        return [max(1, int(side) // cell) ** 2 * encoder.positions_per_token for side in sides]
    each = max(1, kind.tile_side // cell) ** 2 * encoder.positions_per_token
    counts = [min(kind.max_tiles, max(1, round((side / kind.tile_side) ** 2))) for side in sides]
    return [each for count in counts for _ in range(count + (count > 1))]


def _positions(encoder: AudioConfig, kind: SampleKind, sides: list[float], seconds: list[float]) -> list[int]:
    """Encoder positions of every clip."""
    return [max(1, int(length * POSITIONS_PER_SECOND) // encoder.merge) * encoder.merge for length in seconds]


_SEGMENTS = {VisionConfig: _patches, AudioConfig: _positions}
