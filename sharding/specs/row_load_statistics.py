"""The loads that rows of a global batch bring to each module: drawn from a description of data, or measured."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from configs.architectures import AudioConfig, ModelConfig, VisionConfig
from configs.workloads import Lognormal, SampleKind, SyntheticData
from sharding.specs.layer import LoadColumn, Loads, make_loads

POSITIONS_PER_SECOND = 50  # of Whisper's encoder: 100 mel frames, halved
MAX_MISSES = 16  # samples that a packer tries before it closes a row
DELIMITERS = 2  # special tokens around every modality's subsequence

Load = Float[np.ndarray, " 3"]


@dataclasses.dataclass(frozen=True, eq=False)
class RowLoadStatistics:
    """Loads of representative rows.

    Attributes:
        loads: By module, [n, 3] with the columns of `LoadColumn`.
    """

    loads: Mapping[str, Float[np.ndarray, "n 3"]]

    def __post_init__(self) -> None:
        if len({len(loads) for loads in self.loads.values()}) != 1:
            raise ValueError("RowLoadStatistics: every module needs as many rows; one without load has rows of zeros")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.loads.values())))

    def mean_load(self, module: str) -> Load:
        """The mean load of a row."""
        return self.loads[module].mean(axis=0)

    def sample_batch(self, rows: int, seed: int = 0) -> dict[str, Loads]:
        """Loads of a global batch's rows: each row of the statistics as often as any other, in random order."""
        random = np.random.default_rng(seed)
        order = np.concatenate([random.permutation(self.rows) for _ in range(-(-rows // self.rows))])[:rows]
        return {module: loads[order] for module, loads in self.loads.items()}


def draw_row_loads(data: SyntheticData, model: ModelConfig, rows: int, seed: int = 0) -> RowLoadStatistics:
    """Draws rows of samples from a description of data."""
    random = np.random.default_rng(seed)
    shares = np.array([share for _, share in data.kinds])
    drawn = [_fill_row(data, shares / shares.sum(), model, random) for _ in range(rows)]
    return RowLoadStatistics({name: np.stack([row[name] for row in drawn]) for name in drawn[0]})


def _fill_row(
    data: SyntheticData, shares: Float[np.ndarray, " k"], model: ModelConfig, random: np.random.Generator
) -> dict[str, Load]:
    """Fills one row as a packer with a buffer does.

    Samples are taken in random order; those that do not fit are left for other rows, until MAX_MISSES have not fitted.
    A sample longer than a row is truncated to it.
    """
    loads = _no_loads(model)
    backbone, misses = model.backbone.name, 0
    while misses < MAX_MISSES:
        kind = data.kinds[random.choice(len(shares), p=shares)][0]
        sample = _sample_loads(kind, model, random)
        room = data.row_tokens - loads[backbone][LoadColumn.TOKENS]
        length = sample[backbone][LoadColumn.TOKENS]
        if length <= room:
            for name, load in sample.items():
                loads[name] += load
        elif length > data.row_tokens and not loads[backbone][LoadColumn.TOKENS]:
            sample[backbone] = make_loads(room, room**2, 1.0)
            return sample
        else:
            misses += 1
    if data.one_document:
        loads[backbone][LoadColumn.SQUARED_LENGTHS] = loads[backbone][LoadColumn.TOKENS] ** 2
    return loads


def _no_loads(model: ModelConfig) -> dict[str, Load]:
    modules = (*model.encoders, model.backbone, *model.generators)
    return {module.name: np.zeros(len(LoadColumn)) for module in modules}


def _sample_loads(kind: SampleKind, model: ModelConfig, random: np.random.Generator) -> dict[str, Load]:
    """The load of one random sample on every module."""
    loads = _no_loads(model)
    images = random.choice(len(kind.image_counts), p=np.array(kind.image_counts))
    clips = random.choice(len(kind.clip_counts), p=np.array(kind.clip_counts))
    sides = [_draw(kind.image_side, random) for _ in range(images)]
    seconds = [_draw(kind.clip_seconds, random) for _ in range(clips)]
    length = round(_draw(kind.text_tokens, random))
    for encoder in model.encoders:
        items = _ITEM_LENGTHS[type(encoder)](encoder, kind, sides, seconds)
        class_positions = _class_token_positions(encoder)
        squared_lengths = sum((item + bool(class_positions)) ** 2 for item in items)
        tokens = sum(items) + class_positions * len(items)
        loads[encoder.name] += make_loads(tokens, squared_lengths, len(items))
        length += sum(item // encoder.positions_per_token for item in items) + DELIMITERS * len(items)
    generated = random.binomial(images, kind.generated_share)
    for generator in model.generators:
        loads[generator.name] += make_loads(items=generated)
        length += generator.conditions * generated
    loads[model.backbone.name] += make_loads(length, length**2, 1)
    return loads


def _class_token_positions(encoder: VisionConfig | AudioConfig) -> int:
    """Positions of a row that an image's class token takes: as many as a backbone token, so that tokens stay whole."""
    return encoder.positions_per_token if isinstance(encoder, VisionConfig) and encoder.class_token else 0


def _draw(size: Lognormal, random: np.random.Generator) -> float:
    value = size.median * math.exp(size.sigma * random.standard_normal())
    return float(np.clip(value, size.minimum, size.maximum))


def _image_patches(encoder: VisionConfig, kind: SampleKind, sides: list[float], seconds: list[float]) -> list[int]:
    """Patches of every image, or of every tile where images are tiled."""
    cell_side = encoder.patch * encoder.merge
    if not kind.tile_side:
        return [max(1, int(side) // cell_side) ** 2 * encoder.positions_per_token for side in sides]
    tile_patches = max(1, kind.tile_side // cell_side) ** 2 * encoder.positions_per_token
    tile_counts = [min(kind.max_tiles, max(1, round((side / kind.tile_side) ** 2))) for side in sides]
    return [tile_patches for count in tile_counts for _ in range(count + (count > 1))]


def _clip_positions(encoder: AudioConfig, kind: SampleKind, sides: list[float], seconds: list[float]) -> list[int]:
    """Encoder positions of every clip."""
    return [max(1, int(length * POSITIONS_PER_SECOND) // encoder.merge) * encoder.merge for length in seconds]


_ITEM_LENGTHS = {VisionConfig: _image_patches, AudioConfig: _clip_positions}
