"""Diffusion transformers: DiT, the two streams of Stable Diffusion 3, and the double and single streams of Flux.1.

The Flax blocks, the planners' specs and the import of published weights are all made from `DiTConfig`.
"""

import dataclasses
from typing import Literal

from configs.common.checks import require_divides, require_one_of, require_positive
from configs.common.short_repr import short_repr
from configs.modules.generator import DenoisingConfig, NoiseSchedule, RectifiedFlowSchedule

Stream = Literal["plain", "double", "single"]
POSITIONS = ("sinusoidal", "rotary")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiTBlockRun:
    """Equal blocks that follow each other.

    Attributes:
        name: Name of the run.
        stream: How conditions and patches pass through a block: with the same weights (`plain`, and `single`, whose
            attention and feed-forward layer are parallel), or each with weights of their own (`double`).
        count: Number of blocks.
        has_image_attention: Whether patches also attend to each other alone, beside the joint attention.
        updates_conditions: Whether the block has an output for the conditions.
    """

    name: str
    stream: Stream
    count: int
    has_image_attention: bool = False
    updates_conditions: bool = True

    __repr__ = short_repr


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiTConfig(DenoisingConfig):
    """A transformer over patches and conditions, modulated by the time (arXiv 2212.09748).

    Blocks with two streams come first (arXiv 2403.03206), then blocks with a single stream whose attention and
    feed-forward layer are parallel (Flux.1), then plain blocks. A pipeline may cut between any two blocks.

    Attributes:
        width: Width of the activations.
        heads: Attention heads.
        ffn: Hidden width of the feed-forward layers.
        double_layers: Blocks with weights of their own for conditions and patches, which attend to each other.
        image_attention_layers: How many of these, from the first, have a second attention among patches alone (Stable
            Diffusion 3.5).
        single_layers: Blocks with the same weights for conditions and patches, and a parallel feed-forward layer.
        plain_layers: Blocks with the same weights for conditions and patches, attention first (arXiv 2212.09748).
        qk_norm: Whether queries and keys of every head pass an RMSNorm.
        positions: `sinusoidal` embeddings added to patches, or `rotary` ones of (condition, row, column).
        rotary_axes: Channels of a head that rotate by each of these three.
        position_grid: Patches along a side of the square in whose middle the image's positions lie; 0 for positions
            that start at the image's corner (Stable Diffusion 3 has 192).
        position_base: Patches along a side of the image to whose positions the whole square's are scaled; 0 to leave
            them unscaled.
        pooled_width: Channels of the mean of the conditions that join the time, the first ones; 0 for none, None for
            all.
        distilled_guidance: Guidance scale that a model which is trained to need no second prediction is told (Flux.1
            dev); None for a model without an embedding of it.
    """

    width: int = 64
    heads: int = 4
    ffn: int = 256
    double_layers: int = 0
    image_attention_layers: int = 0
    single_layers: int = 0
    plain_layers: int = 4
    qk_norm: bool = False
    positions: str = "sinusoidal"
    rotary_axes: tuple[int, int, int] = (0, 0, 0)
    position_grid: int = 0
    position_base: int = 0
    pooled_width: int | None = None
    distilled_guidance: float | None = None
    schedule: NoiseSchedule = RectifiedFlowSchedule()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "width", "heads", "ffn")
        require_divides(self, "heads", "width")
        require_one_of(self, "positions", POSITIONS)
        self._check_size()
        self._check_layers()
        self._check_positions()
        if not 0 <= self.pooled <= self.condition_width:
            raise ValueError(
                f"DiTConfig.pooled_width is {self.pooled_width}; give 0 to condition_width = {self.condition_width}"
            )

    def _check_size(self) -> None:
        multiple = self.patch * (self.autoencoder.downsampling_factor if self.autoencoder else 1)
        if any(side % multiple for side in self.image_sides):
            raise ValueError(
                f"DiTConfig.image_size = {self.image_size} is no multiple of {multiple}, which patch = {self.patch} "
                "and the autoencoder need"
            )

    def _check_layers(self) -> None:
        for name in ("double_layers", "single_layers", "plain_layers", "image_attention_layers"):
            if getattr(self, name) < 0:
                raise ValueError(f"DiTConfig.{name} is {getattr(self, name)}; it must be at least 0")
        if not self.layer_count:
            raise ValueError("DiTConfig has no layers; set double_layers, single_layers or plain_layers")
        if self.image_attention_layers > self.double_layers:
            raise ValueError(
                f"DiTConfig.image_attention_layers = {self.image_attention_layers} exceeds double_layers = "
                f"{self.double_layers}"
            )

    def _check_positions(self) -> None:
        if self.positions == "sinusoidal" and self.width % 4:
            raise ValueError(f"DiTConfig.width = {self.width} is no multiple of 4, which sinusoidal positions need")
        if self.positions == "rotary" and (
            sum(self.rotary_axes) != self.head_width or any(axis < 0 or axis % 2 for axis in self.rotary_axes)
        ):
            raise ValueError(
                f"DiTConfig.rotary_axes = {self.rotary_axes} must be even and sum to the {self.head_width} channels "
                "of a head"
            )
        if self.position_grid and max(self.patch_grid) > self.position_grid:
            raise ValueError(
                f"DiTConfig.position_grid = {self.position_grid} is less than the {max(self.patch_grid)} patches of "
                "an image's side"
            )

    @property
    def head_width(self) -> int:
        """Channels of a head."""
        return self.width // self.heads

    @property
    def pooled(self) -> int:
        """Channels of the mean of the conditions that join the time."""
        return self.condition_width if self.pooled_width is None else self.pooled_width

    @property
    def patch_grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width, _ = self.latent_shape
        return height // self.patch, width // self.patch

    @property
    def patches(self) -> int:
        """Patches of an image."""
        rows, columns = self.patch_grid
        return rows * columns

    @property
    def patch_channels(self) -> int:
        """Channels of a flattened patch of latents or pixels."""
        return self.latent_shape[-1] * self.patch**2

    @property
    def carried_positions(self) -> int:
        """Positions in which an image's latents pass through the blocks unchanged, for the loss; 0 without latents."""
        return -(-self.patches * self.patch_channels // self.width) if self.autoencoder else 0

    @property
    def positions_per_image(self) -> int:
        """Positions of an image between blocks: the embedding of its time, conditions, patches, carried latents."""
        return 1 + self.conditions + self.patches + self.carried_positions

    @property
    def layer_count(self) -> int:
        """Number of blocks."""
        return self.double_layers + self.single_layers + self.plain_layers

    def with_layers(self, count: int) -> "DiTConfig":
        """A copy with so many blocks, of each kind at least one, and otherwise in about the same proportion."""
        kinds = [name for name in ("double_layers", "single_layers", "plain_layers") if getattr(self, name)][:count]
        counts = dict.fromkeys(kinds, 1)
        for _ in range(count - len(kinds)):
            fullest = max(kinds, key=lambda name: getattr(self, name) / counts[name])
            counts[fullest] += 1
        counts = {"double_layers": 0, "single_layers": 0, "plain_layers": 0} | counts
        image_attention = min(self.image_attention_layers, counts["double_layers"])
        return dataclasses.replace(self, **counts, image_attention_layers=image_attention)

    @property
    def block_runs(self) -> tuple[DiTBlockRun, ...]:
        """Runs of equal blocks, in order. A last block with two streams has no output for the conditions."""
        last = int(bool(self.double_layers) and not self.single_layers and not self.plain_layers)
        inner = self.double_layers - last
        with_image = min(self.image_attention_layers, inner)
        runs = (
            DiTBlockRun(name="double_image", stream="double", count=with_image, has_image_attention=True),
            DiTBlockRun(name="double", stream="double", count=inner - with_image),
            DiTBlockRun(
                name="double_last",
                stream="double",
                count=last,
                has_image_attention=self.image_attention_layers == self.double_layers,
                updates_conditions=False,
            ),
            DiTBlockRun(name="single", stream="single", count=self.single_layers),
            DiTBlockRun(name="plain", stream="plain", count=self.plain_layers),
        )
        return tuple(run for run in runs if run.count)
