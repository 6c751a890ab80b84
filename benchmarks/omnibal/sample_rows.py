"""Rows of InternVL-like samples: drawn at random and padded, or grouped by ISF and packed.

The load of a row counts what is computed for it, padding included.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from configs.architectures import ModelConfig, VisionConfig
from configs.workloads import Lognormal, SampleKind
from data.packing.grouping.algorithms import IterativeSamplingAndFiltering
from sharding.costs.batch_costs import LoadsByModule
from sharding.specs.layers.layer import Loads, make_loads

TOKENS, MARGIN, ROUNDS = 4096.0, 128.0, 10
"""Q, how far Q' is below it, and T of OmniBal (arXiv 2407.20761, section 5.1), in tokens of the backbone."""

SampleSizes = Float[np.ndarray, "n 2"]
"""Tiles and backbone tokens of every sample."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Loads of rows, in the order in which microbatches take them.

    Attributes:
        loads: By module, the loads of every row.
        samples: Mean number of samples of a row.
        padding: Share of the backbone's positions that hold no token.
    """

    loads: LoadsByModule
    samples: float
    padding: float

    def first(self, count: int) -> LoadsByModule:
        """Returns the loads of the first rows."""
        return {module: loads[:count] for module, loads in self.loads.items()}


@dataclasses.dataclass(frozen=True)
class SampleSource:
    """Samples of tiled images and text, for one model.

    Attributes:
        kind: Describes them.
        model: The model, which has one vision encoder.
        row_tokens: Q in tokens of the backbone.
    """

    kind: SampleKind
    model: ModelConfig
    row_tokens: float = TOKENS

    @property
    def encoder(self) -> VisionConfig:
        """The vision encoder."""
        (encoder,) = self.model.encoders
        assert isinstance(encoder, VisionConfig)
        return encoder

    def draw(self, count: int, random: np.random.Generator) -> SampleSizes:
        """Sizes of samples; longer ones than a row are left out."""
        kind, encoder = self.kind, self.encoder
        images = random.choice(len(kind.image_counts), count, p=kind.image_counts)
        sides = _draw(kind.image_side, (count, len(kind.image_counts) - 1), random)
        tiles = np.clip(np.round((sides / kind.tile_side) ** 2), 1, kind.max_tiles)
        tiles += tiles > 1  # the thumbnail
        tiles = np.where(np.arange(sides.shape[1]) < images[:, None], tiles, 0).sum(axis=1)
        tile_tokens = (kind.tile_side // (encoder.patch * encoder.merge)) ** 2
        tokens = np.round(_draw(kind.text_tokens, (count,), random)) + tile_tokens * tiles
        sizes = np.stack([tiles, tokens], axis=1)
        return sizes[tokens <= self.row_tokens]

    def padded_at_random(self, sizes: SampleSizes, samples: int, random: np.random.Generator) -> Rows:
        """The rows of `padded`, whose groups are samples in random order."""
        count = len(sizes) // samples
        return self.padded(sizes, random.permutation(len(sizes))[: count * samples].reshape(count, samples))

    def padded(self, sizes: SampleSizes, members: Int[np.ndarray, "g n"]) -> Rows:
        """A sample a row; the rows of every group of samples are padded to the longest of them, their tiles not."""
        tiles, tokens = np.moveaxis(sizes[members], 2, 0)  # [g, n] each
        longest = np.broadcast_to(tokens.max(axis=1, keepdims=True), tokens.shape).ravel()
        loads = self._loads(tiles.ravel(), make_loads(longest, longest**2, 1))
        return Rows(loads, 1.0, float(1 - tokens.sum() / longest.sum()))

    def grouped(self, sizes: SampleSizes, random: np.random.Generator, static_shapes: bool) -> Rows:
        """Groups of ISF in random order, each packed into a row.

        Args:
            sizes: Sizes of the samples.
            random: Source of random numbers.
            static_shapes: Whether all of a row's capacity is computed, as mmjax does; the paper's rows have the size of
                their group.
        """
        capacity = self.capacity(sizes)
        fitting = sizes[(sizes <= capacity).all(axis=1)]
        threshold = (capacity[0], self.row_tokens - MARGIN)
        groups = IterativeSamplingAndFiltering(threshold=threshold, rounds=ROUNDS)(fitting, np.array(capacity), random)
        order = random.permutation(len(groups))
        tiles, tokens = groups.sums(fitting)[order].T
        squared, filled = groups.sums(fitting**2)[order, 1], float(tokens.mean())
        if static_shapes:
            tiles, tokens = (np.full(len(groups), limit) for limit in capacity)
        loads = self._loads(tiles, make_loads(tokens, squared, 1))
        return Rows(loads, len(groups.members) / len(groups), 1 - filled / float(tokens.mean()))

    def capacity(self, sizes: SampleSizes) -> tuple[float, float]:
        """Q in tiles and tokens: as many tiles as so many tokens have on average (section 5.1)."""
        return float(np.round(self.row_tokens * sizes[:, 0].sum() / sizes[:, 1].sum())), self.row_tokens

    def _loads(self, tiles: Float[np.ndarray, " g"], backbone: Loads) -> LoadsByModule:
        attended = (self.kind.tile_side // self.encoder.patch) ** 2 + self.encoder.prefix_tokens
        return {
            self.encoder.name: make_loads(tiles * attended, tiles * attended**2, tiles),
            self.model.backbone.name: backbone,
        }


def _draw(size: Lognormal, shape: tuple[int, ...], random: np.random.Generator) -> Float[np.ndarray, "..."]:
    values = size.median * np.exp(size.sigma * random.standard_normal(shape))
    return np.clip(values, size.minimum, size.maximum)
