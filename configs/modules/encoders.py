"""Encoders: the options of every kind, and the kinds that mmjax has itself, for images and for audio."""

import dataclasses
from typing import ClassVar, Self

from configs.attention.attention_windows import AttentionWindows
from configs.attention.vision_rope import VisionRope
from configs.common.checks import require_one_of, require_positive
from configs.common.errors import UserError
from configs.common.short_repr import short_repr
from configs.modules.projectors import MLPProjectorConfig, ProjectorConfig
from configs.modules.transformer import TransformerConfig

_VISION_POSITIONS = ("none", "sine", "learned")
_INTERPOLATIONS = ("bicubic", "bicubic_antialiased", "bilinear_antialiased", "bilinear_corners")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """An encoder: blocks over packed items of any length, followed by its projector.

    A kind of encoder is a subclass. Its Flax module, specs and sample format are registered by its class
    (`mmjax.api.encoders.register_encoder`).

    Attributes:
        field: Name of the array in a batch that it reads, and of that array's capacity in a row. Encoders of one field
            read the same items.
        final_norm: Whether a norm follows the last block.
        pool: Number of neighbouring positions that are averaged before the final norm (Qwen2-Audio, arXiv 2407.10759);
            the projector joins the averages of one backbone token.
        projector: The projector between the encoder and the backbone.
    """

    field: ClassVar[str]
    final_norm: bool = True
    pool: int = 1
    projector: ProjectorConfig = MLPProjectorConfig()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "pool")
        if self.qk_norm == "rotated":
            raise ValueError(f"{type(self).__name__}.qk_norm is 'rotated', which only backbones have")
        if self.pool == 1:
            return
        if self.positions_per_token % self.pool:
            raise ValueError(
                f"{type(self).__name__}.pool = {self.pool} does not divide the {self.positions_per_token} positions of "
                "a backbone token"
            )
        if not self.final_norm:
            raise ValueError(
                f"{type(self).__name__}.pool = {self.pool}, but there is no final norm that it would precede; set "
                "final_norm = True or pool = 1"
            )

    @property
    def projected_positions(self) -> int:
        """Number of neighbouring outputs of the encoder that the projector joins to one backbone token."""
        return self.positions_per_token // self.pool

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
        temporal_patch: Frames of a video clip in a patch (Qwen2-VL, arXiv 2409.12191, section 2.1). An image counts as
            that many equal frames.
        pixel_mean: Mean per channel, of pixels in [-1, 1]; pixels are normalised by mean and standard deviation.
        pixel_std: Standard deviation per channel.
        patch_bias: Whether the projection of pixels has a bias.
        class_token: Whether a learned token precedes the patches of every image. It becomes no backbone token; with
            learned positions it has a position of its own.
        registers: Learned tokens without positions before the patches of every image, behind the class token
            (arXiv 2309.16588). They become no backbone tokens.
        positions: Position embedding: `none`, `sine`, fixed, or `learned`, a table interpolated for images of another
            size.
        grid: Side of the learned table in patches.
        interpolation: How the table is interpolated: `bicubic` as in PyTorch, between four cells along each side;
            `bicubic_antialiased` or `bilinear_antialiased`, whose filter covers a patch where that is larger than a
            cell (DINOv2 with registers, arXiv 2309.16588; SigLIP 2, arXiv 2502.14786); `bilinear_corners`, between
            two cells along each side, with the corners of table and image in the same places (Qwen3-VL).
        rope: Rotary positions inside attention; None for none.
        windows: Windows within which the patches of most layers attend; None for attention within whole images.
        input_norm: Whether a norm precedes the first block (CLIP).
        deepstack_layers: Layers, in order from 0, whose outputs are added to the outputs of the backbone's first
            blocks, one each, through a projector of their own (DeepStack, arXiv 2406.04334; Qwen3-VL).
        deepstack_projector: Projector of each of these outputs; None for one like `projector`.
        unused_blocks: Blocks of the published encoder after the last one used here: LLaVA takes the output of CLIP's
            last block but one. They are in published checkpoints, but not in the model.
    """

    field: ClassVar[str] = "patches"
    name: str = "vision"
    patch: int = 8
    channels: int = 3
    merge: int = 2
    temporal_patch: int = 1
    pixel_mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    pixel_std: tuple[float, ...] = (1.0, 1.0, 1.0)
    patch_bias: bool = True
    class_token: bool = False
    registers: int = 0
    positions: str = "sine"
    grid: int = 16
    interpolation: str = "bicubic"
    rope: VisionRope | None = None
    windows: AttentionWindows | None = None
    input_norm: bool = False
    deepstack_layers: tuple[int, ...] = ()
    deepstack_projector: ProjectorConfig | None = None
    unused_blocks: int = 0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "patch", "channels", "merge", "temporal_patch", "grid")
        require_one_of(self, "positions", _VISION_POSITIONS)
        require_one_of(self, "interpolation", _INTERPOLATIONS)
        for name in ("registers", "unused_blocks"):
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
        if self.windows:
            self._check_windows(self.windows)
        if self.positions == "sine" and self.width % 4:
            raise ValueError(f"VisionConfig.width = {self.width}; 2-D sine positions need a multiple of 4")
        if self.rope and self.head_width % 4:
            raise ValueError(f"VisionConfig: head width {self.head_width}; 2-D rotary positions need a multiple of 4")

    def _check_windows(self, windows: AttentionWindows) -> None:
        if windows.side % self.merge:
            raise ValueError(f"AttentionWindows.side = {windows.side}; it must be a multiple of merge = {self.merge}")
        if any(layer >= self.depth for layer in windows.full_layers):
            raise ValueError(
                f"AttentionWindows.full_layers = {windows.full_layers}; the last of the {self.depth} layers is "
                f"{self.depth - 1}"
            )
        if self.prefix_tokens:
            raise ValueError(
                "VisionConfig: a class token and registers are in no window; have none of them, or windows = None"
            )

    def with_depth(self, depth: int) -> Self:
        """The encoder with another number of layers.

        Layers with full attention and tapped layers lie at about the same shares of the depth.
        """
        layers = tuple(layer * depth // self.depth for layer in self.deepstack_layers)
        windows = self.windows and self.windows.with_depth(self.depth, depth)
        return dataclasses.replace(self, depth=depth, deepstack_layers=layers, windows=windows)

    @property
    def kind_of_layers(self) -> tuple[int, ...]:
        """For every layer 1 where patches attend within windows, else 0."""
        return self.windows.kind_of_layers(self.depth) if self.windows else (0,) * self.depth

    @property
    def tapped_layers(self) -> tuple[int, ...]:
        """Layers whose outputs are added to the backbone's first blocks: `deepstack_layers`."""
        return self.deepstack_layers

    @property
    def tap_projector(self) -> ProjectorConfig:
        """The projector of each tapped layer's outputs."""
        return self.deepstack_projector or self.projector

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches of an image: the class token and registers."""
        return self.class_token + self.registers

    @property
    def prefix_slots(self) -> int:
        """Cells of merge x merge positions that these tokens take in a row, none of which is a backbone token."""
        return -(-self.prefix_tokens // self.positions_per_token)

    @property
    def patch_width(self) -> int:
        """Elements of a flattened patch, of all its frames."""
        return self.temporal_patch * self.patch * self.patch * self.channels

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
        chunk: Number of positions after which a clip is cut into chunks: convolutions, positions and attention begin
            anew with every chunk (Qwen2.5-Omni, arXiv 2503.20215); 0 for whole clips.
    """

    field: ClassVar[str] = "frames"
    name: str = "audio"
    mels: int = 80
    merge: int = 2
    chunk: int = 0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "mels", "merge")
        if self.chunk < 0:
            raise ValueError(f"AudioConfig.chunk is {self.chunk}; it must be at least 0")
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
