"""The loads that rows of a global batch bring to each module: drawn from a description of data, or measured.

Planners and simulations draw the rows of a step from these statistics.
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from configs.architectures import AudioConfig, BackboneConfig, EncoderConfig, ModelConfig, VisionConfig
from configs.common.errors import UserError
from configs.workloads import Lognormal, SampleKind, SyntheticData
from sharding.specs.layers.layer import LoadColumn, Loads, Number
from sharding.specs.layers.local_attention import local_attention

POSITIONS_PER_SECOND = 50  # of Whisper's encoder: 100 mel frames, halved
MAX_MISSES = 16  # samples that a packer tries before it closes a row
DELIMITERS = 2  # special tokens around every modality's subsequence

Load = Float[np.ndarray, " 4"]


@dataclasses.dataclass(frozen=True, eq=False)
class RowLoadStatistics:
    """Loads of representative rows.

    Attributes:
        loads: By module, [n, 4] with the columns of `LoadColumn`.
        step_rows: Rows of a step, where the rows are whole steps in their order; 0 for rows of no steps.
    """

    loads: Mapping[str, Float[np.ndarray, "n 4"]]
    step_rows: int = 0

    def __post_init__(self) -> None:
        if len({len(loads) for loads in self.loads.values()}) != 1:
            raise ValueError("RowLoadStatistics: every module needs as many rows; one without load has rows of zeros")
        if self.step_rows and self.rows % self.step_rows:
            raise ValueError(f"RowLoadStatistics: {self.rows} rows are no whole steps of {self.step_rows}")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.loads.values())))

    def mean_load(self, module: str) -> Load:
        """The mean load of a row."""
        return self.loads[module].mean(axis=0)

    def sample_batch(self, rows: int, seed: int = 0) -> dict[str, Loads]:
        """Loads of a global batch's rows: one of the steps, if they have so many rows, by its number.

        Otherwise each row of the statistics comes as often as any other, in random order.
        """
        return {module: self.sample_module(module, rows, seed) for module in self.loads}

    def sample_module(self, module: str, rows: int, seed: int = 0) -> Loads:
        """One module's loads of `sample_batch`."""
        if self.step_rows == rows:
            first = seed % (self.rows // rows) * rows
            return self.loads[module][first : first + rows]
        return self.loads[module][_random_order(self.rows, rows, seed)]


# Planners draw the same rows for every module, and again for many plans.
@functools.lru_cache(maxsize=32)
def _random_order(count: int, rows: int, seed: int) -> Int[np.ndarray, " rows"]:
    """Numbers below `count`, each as often as any other, in random order."""
    random = np.random.default_rng(seed)
    order = np.concatenate([random.permutation(count) for _ in range(-(-rows // count))])[:rows]
    order.flags.writeable = False
    return order


# Planning and simulating draw the same rows again and again, for a second each time.
@functools.lru_cache(maxsize=16)
def draw_row_loads(data: SyntheticData, model: ModelConfig, rows: int, seed: int = 0) -> RowLoadStatistics:
    """Draws rows of samples from a description of data; the arrays are read-only.

    Raises:
        UserError: The description says nothing of what an encoder reads.
    """
    return _draw_loads(data, model, rows, seed, _fill_row)


def draw_sample_loads(data: SyntheticData, model: ModelConfig, samples: int, seed: int = 0) -> RowLoadStatistics:
    """Draws samples from a description of data, each as a row of its own, whatever its length.

    Raises:
        UserError: The description says nothing of what an encoder reads.
    """
    return _draw_loads(data, model, samples, seed, _draw_sample)


def draw_fitting_sample_loads(
    data: SyntheticData, model: ModelConfig, samples: int, seed: int = 0
) -> RowLoadStatistics:
    """Draws samples as `draw_sample_loads`; one that is longer than a row is truncated to it."""
    return _draw_loads(data, model, samples, seed, _draw_fitting_sample)


def joined_sample_loads(
    samples: RowLoadStatistics,
    members: Int[np.ndarray, " m"],
    starts: Int[np.ndarray, " g"],
    data: SyntheticData,
    model: ModelConfig,
) -> dict[str, Loads]:
    """Loads of rows that are filled with samples.

    Args:
        samples: The loads of each sample.
        members: Numbers of the samples of all rows, row by row.
        starts: Where each row begins in `members`; no row is empty.
        data: The description that the samples were drawn from.
        model: The model that reads them.
    """
    rows = {name: np.add.reduceat(loads[members], starts, axis=0) for name, loads in samples.loads.items()}
    if data.one_document:
        backbone = rows[model.backbone.name]
        tokens = backbone[:, LoadColumn.TOKENS]
        backbone[:, LoadColumn.SQUARED_LENGTHS] = tokens**2
        backbone[:, LoadColumn.LOCAL_PAIRS] = [_local_pairs(model.backbone, length) for length in tokens.tolist()]
    return rows


_RowLoad = list[float]
"""The columns of a load; a list, because a row is filled with tens of samples, each with a load for every module."""


def _draw_loads(
    data: SyntheticData,
    model: ModelConfig,
    rows: int,
    seed: int,
    draw: Callable[[SyntheticData, ModelConfig, np.random.Generator], dict[str, _RowLoad]],
) -> RowLoadStatistics:
    described = {"patches", "frames"} | {items.field for kind, _ in data.kinds for items in kind.items}
    for encoder in model.encoders:
        if encoder.field not in described:
            raise UserError(
                f"{encoder.name} reads {encoder.field}, which the described data does not have; add "
                f"DescribedItems({encoder.field!r}, ...) to SampleKind.items"
            )
    random = np.random.default_rng(seed)
    drawn = [draw(data, model, random) for _ in range(rows)]
    loads = {name: np.array([row[name] for row in drawn], float) for name in drawn[0]}
    for array in loads.values():
        array.flags.writeable = False
    return RowLoadStatistics(loads)


def _fill_row(data: SyntheticData, model: ModelConfig, random: np.random.Generator) -> dict[str, _RowLoad]:
    """Fills one row as a packer with a buffer does.

    Samples are taken in random order; samples that do not fit are left for other rows, until MAX_MISSES have not
    fitted. A sample longer than a row is truncated to it.
    """
    loads = _no_loads(model)
    backbone, misses = model.backbone.name, 0
    while misses < MAX_MISSES:
        sample = _draw_sample(data, model, random)
        room = data.row_tokens - loads[backbone][LoadColumn.TOKENS]
        length = sample[backbone][LoadColumn.TOKENS]
        if length <= room:
            for name, load in sample.items():
                loads[name] = _add(loads[name], load)
        elif length > data.row_tokens and not loads[backbone][LoadColumn.TOKENS]:
            return _truncated(sample, data, model)
        else:
            misses += 1
    if data.one_document:
        tokens = loads[backbone][LoadColumn.TOKENS]
        loads[backbone][LoadColumn.SQUARED_LENGTHS] = tokens**2
        loads[backbone][LoadColumn.LOCAL_PAIRS] = _local_pairs(model.backbone, tokens)
    return loads


def _draw_fitting_sample(data: SyntheticData, model: ModelConfig, random: np.random.Generator) -> dict[str, _RowLoad]:
    sample = _draw_sample(data, model, random)
    is_longer = sample[model.backbone.name][LoadColumn.TOKENS] > data.row_tokens
    return _truncated(sample, data, model) if is_longer else sample


def _truncated(sample: dict[str, _RowLoad], data: SyntheticData, model: ModelConfig) -> dict[str, _RowLoad]:
    """The loads of a sample that is longer than a row, of which a whole row remains."""
    length = float(data.row_tokens)
    return sample | {model.backbone.name: [length, length**2, 1.0, _local_pairs(model.backbone, length)]}


def _no_loads(model: ModelConfig) -> dict[str, _RowLoad]:
    modules = (*model.encoders, model.backbone, *model.generators)
    return {module.name: [0.0] * len(LoadColumn) for module in modules}


def _add(load: _RowLoad, other: _RowLoad) -> _RowLoad:
    return [left + right for left, right in zip(load, other, strict=True)]


def _draw_sample(data: SyntheticData, model: ModelConfig, random: np.random.Generator) -> dict[str, _RowLoad]:
    """The load of one random sample on every module."""
    kind = data.kinds[_choose(tuple(share for _, share in data.kinds), random)][0]
    loads = _no_loads(model)
    images = _choose(kind.image_counts, random)
    clips = _choose(kind.clip_counts, random)
    sides = [_draw(kind.image_side, random) for _ in range(images)]
    seconds = [_draw(kind.clip_seconds, random) for _ in range(clips)]
    length = round(_draw(kind.text_tokens, random))
    others = {
        items.field: [_draw(items.positions, random) for _ in range(_choose(items.counts, random))]
        for items in kind.items
    }
    drawn = DrawnItems(sides, seconds, others)
    for encoder in model.encoders:
        items = encoder_items(encoder, kind, drawn)
        squared_lengths = sum(item.attended**2 for item in items)
        pairs = math.fsum(_local_pairs(encoder, item.attended) for item in items)
        load = [float(sum(item.positions for item in items)), float(squared_lengths), float(len(items)), pairs]
        loads[encoder.name] = _add(loads[encoder.name], load)
        length += sum(item.tokens for item in items) + DELIMITERS * len(items)
    generated = int(random.binomial(images, kind.generated_share))
    for generator in model.generators:
        loads[generator.name][LoadColumn.ITEMS] += generated
        length += generator.conditions * generated
    sample_loads = [float(length), float(length**2), 1.0, _local_pairs(model.backbone, length)]
    loads[model.backbone.name] = _add(loads[model.backbone.name], sample_loads)
    return loads


def _local_pairs(config: EncoderConfig | BackboneConfig, length: Number) -> float:
    """Pairs of an item of so many positions in a local layer; 0 for a module without one. Images are square."""
    local = local_attention(config)
    return float(local.pairs(float(length))) if local else 0.0


def _choose(shares: tuple[float, ...], random: np.random.Generator) -> int:
    """One of several by their shares: the number that `Generator.choice` draws, without its checks of every call."""
    return bisect.bisect_right(_cumulative(shares), random.random())


@functools.cache
def _cumulative(shares: tuple[float, ...]) -> tuple[float, ...]:
    total = np.cumsum(np.array(shares) / np.sum(shares))
    return tuple((total / total[-1]).tolist())


def _draw(size: Lognormal, random: np.random.Generator) -> float:
    value = size.median * math.exp(size.sigma * random.standard_normal())
    return min(max(value, size.minimum), size.maximum)


class DrawnItems(NamedTuple):
    """The items drawn for a sample.

    Attributes:
        sides: Side of every image in pixels.
        seconds: Length of every audio clip.
        others: By field, the positions of every other item.
    """

    sides: Sequence[float]
    seconds: Sequence[float]
    others: Mapping[str, Sequence[float]]


class ItemSize(NamedTuple):
    """The positions of one item in an encoder, and its tokens in the backbone.

    Attributes:
        positions: Positions of the encoder's row.
        attended: Positions that attend to each other.
        tokens: Backbone tokens.
    """

    positions: int
    attended: int
    tokens: int


@functools.singledispatch
def encoder_items(encoder: EncoderConfig, kind: SampleKind, drawn: DrawnItems) -> list[ItemSize]:
    """The items that an encoder reads of a sample of a kind; by default the items drawn for its field."""
    lengths = (int(length) // encoder.positions_per_token for length in drawn.others.get(encoder.field, ()))
    return [_item_size(max(1, tokens), encoder) for tokens in lengths]


@encoder_items.register
def _images(encoder: VisionConfig, kind: SampleKind, drawn: DrawnItems) -> list[ItemSize]:
    """Every image, or every tile where images are tiled, behind the cells of its class token and registers."""
    cell_side = encoder.patch * encoder.merge
    tokens = [max(1, int(side) // cell_side) ** 2 for side in drawn.sides]
    if kind.tile_side:
        tile_tokens = max(1, kind.tile_side // cell_side) ** 2
        tile_counts = [min(kind.max_tiles, max(1, round((side / kind.tile_side) ** 2))) for side in drawn.sides]
        tokens = [tile_tokens for count in tile_counts for _ in range(count + (count > 1))]
    images = [_item_size(count, encoder) for count in tokens]
    prefix = encoder.prefix_slots * encoder.positions_per_token
    return [
        ItemSize(image.positions + prefix, image.attended + encoder.prefix_tokens, image.tokens) for image in images
    ]


@encoder_items.register
def _clips(encoder: AudioConfig, kind: SampleKind, drawn: DrawnItems) -> list[ItemSize]:
    lengths = (int(length * POSITIONS_PER_SECOND) // encoder.merge for length in drawn.seconds)
    return [_item_size(max(1, tokens), encoder) for tokens in lengths]


def _item_size(tokens: int, encoder: EncoderConfig) -> ItemSize:
    """An item all of whose positions become tokens."""
    positions = tokens * encoder.positions_per_token
    return ItemSize(positions, positions, tokens)
