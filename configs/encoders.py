"""Encoders: what every kind has, and the kinds that mmjax has itself, for images and for audio."""

import dataclasses
from typing import ClassVar, Self

from configs.checks import require_one_of, require_positive
from configs.errors import UserError
from configs.projectors import MLPProjectorConfig, ProjectorConfig
from configs.transformer import TransformerConfig

_VISION_POSITIONS = ("sine", "learned")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """An encoder: blocks over packed items of any length, followed by its projector.

    A kind of encoder is a subclass. What is built from it at each level is registered by its class
    (`mmjax.api.encoders.register_encoder`).

    Attributes:
        field: Name of what it reads: of the array in a batch, and of that array's capacity in a row. Encoders of one
            field read the same items.
        final_norm: Whether a norm follows the last block.
        projector: The projector between the encoder and the backbone.
    """

    field: ClassVar[str]
    final_norm: bool = True
    projector: ProjectorConfig = MLPProjectorConfig()

    def with_depth(self, depth: int) -> Self:
        """The encoder with another number of layers."""
        return dataclasses.replace(self, depth=depth)

    @property
    def tapped_layers(self) -> tuple[int, ...]:
        """Layers whose outputs reach the backbone too (`mmjax.models.modalities.deepstack`); most kinds have none."""
        return ()

    @property
    def tap_projector(self) -> ProjectorConfig:
        """The projector of each tapped layer's outputs."""
        return self.projector

    @property
    def positions_per_token(self) -> int:
        """Number of neighbouring positions that become one backbone token."""
        raise NotImplementedError(f"{type(self).__name__} must define the property positions_per_token")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionConfig(EncoderConfig):
    """A vision transformer over packed patches of images of any size, followed by its projector.

    Attributes:
        patch: Side of a patch in pixels.
        channels: Colour channels of a pixel.
        merge: Side of the pixel shuffle: merge² neighbouring patches become one backbone token.
        pixel_mean: Mean per channel, of pixels in [-1, 1]; pixels are normalised by mean and standard deviation.
        pixel_std: Standard deviation per channel.
        patch_bias: Whether the projection of pixels has a bias.
        class_token: Whether a learned token precedes the patches of every image. It becomes no backbone token; with
            learned positions it has a position of its own.
        positions: Position embedding: `sine`, fixed, or `learned`, a table interpolated for images of another size.
        grid: Side of the learned table in patches.
        rope_base: Base of rotary positions in two dimensions inside attention (EVA-02); 0 for none.
        rope_grid: Side in patches to which the rotary positions of every image are rescaled (EVA-02, which treats
            images of any size like those it was first trained on); 0 for no rescaling.
        post_norm: Whether the norms of a block follow attention and feed-forward layer, over what these add, instead
            of preceding them (EVA-02-CLIP-E, arXiv 2303.15389).
        input_norm: Whether a norm precedes the first block (CLIP).
        deepstack_layers: Layers, in order from 0, whose outputs are added to those of the backbone's first blocks, one
            each, through a projector of their own (DeepStack, arXiv 2406.04334; Qwen3-VL).
        deepstack_projector: That projector; None for one like `projector`.
        unused_blocks: Blocks of the published encoder after the last one used here: LLaVA takes the output of CLIP's
            last block but one. They are in published checkpoints, but not in the model.
    """

    field: ClassVar[str] = "patches"
    name: str = "vision"
    patch: int = 8
    channels: int = 3
    merge: int = 2
    pixel_mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    pixel_std: tuple[float, ...] = (1.0, 1.0, 1.0)
    patch_bias: bool = True
    class_token: bool = False
    positions: str = "sine"
    grid: int = 16
    rope_base: float = 0.0
    rope_grid: int = 0
    post_norm: bool = False
    input_norm: bool = False
    deepstack_layers: tuple[int, ...] = ()
    deepstack_projector: ProjectorConfig | None = None
    unused_blocks: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "patch", "channels", "merge", "grid")
        require_one_of(self, "positions", _VISION_POSITIONS)
        for name in ("unused_blocks", "rope_grid"):
            if getattr(self, name) < 0:
                raise ValueError(f"VisionConfig.{name} is {getattr(self, name)}; it must be at least 0")
        for name in ("pixel_mean", "pixel_std"):
            values = getattr(self, name)
            if len(values) != self.channels:
                raise ValueError(f"VisionConfig.{name} has {len(values)} values for {self.channels} channels")
        layers = self.deepstack_layers
        if list(layers) != sorted(layers) or any(not 0 <= layer < self.depth for layer in layers):
            raise ValueError(
                f"VisionConfig.deepstack_layers = {layers}; they must be in order and lie between 0 and "
                f"{self.depth - 1}, the last layer"
            )
        if self.parallel_block and self.post_norm:
            raise ValueError("VisionConfig: parallel layers read one normed input, post_norm norms none; choose one")
        if self.positions == "sine" and self.width % 4:
            raise ValueError(f"VisionConfig.width = {self.width}; 2-D sine positions need a multiple of 4")
        if self.rope_base and self.head_width % 4:
            raise ValueError(f"VisionConfig: head width {self.head_width}; 2-D rotary positions need a multiple of 4")

    def with_depth(self, depth: int) -> Self:
        """The encoder with another number of layers, of which others are tapped in about the same places."""
        layers = tuple(layer * depth // self.depth for layer in self.deepstack_layers)
        return dataclasses.replace(self, depth=depth, deepstack_layers=layers)

    @property
    def tapped_layers(self) -> tuple[int, ...]:
        """`deepstack_layers`."""
        return self.deepstack_layers

    @property
    def tap_projector(self) -> ProjectorConfig:
        """The projector of each tapped layer's outputs."""
        return self.deepstack_projector or self.projector

    @property
    def patch_width(self) -> int:
        """Elements of a flattened patch."""
        return self.patch * self.patch * self.channels

    @property
    def positions_per_token(self) -> int:
        """Number of neighbouring patches that become one backbone token."""
        return self.merge**2


@dataclasses.dataclass(frozen=True, kw_only=True)
class AudioConfig(EncoderConfig):
    """Whisper's encoder (arXiv 2212.04356) over packed clips of any length, followed by its projector.

    Attributes:
        mels: Mel bands of a frame. Two frames become one position of the encoder.
        merge: Number of neighbouring positions that become one backbone token.
    """

    field: ClassVar[str] = "frames"
    name: str = "audio"
    mels: int = 80
    merge: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "mels", "merge")
        if self.width % 4:
            raise ValueError(f"AudioConfig.width = {self.width}; sine positions need a multiple of 4")

    @property
    def positions_per_token(self) -> int:
        """Number of neighbouring positions that become one backbone token."""
        return self.merge


def unregistered_encoder(config: EncoderConfig) -> UserError:
    """The error for an encoder of a kind that nothing is registered for."""
    name = type(config).__name__
    return UserError(
        f"{name} is no known kind of encoder; call mmjax.register_encoder({name}, ...) where it is defined"
    )
