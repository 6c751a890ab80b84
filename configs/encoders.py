"""Encoders: what every kind has, and the kinds that mmjax has itself, for images and for audio."""

import dataclasses
from typing import ClassVar

from configs.checks import require_one_of, require_positive
from configs.errors import UserError
from configs.projectors import MLPProjectorConfig, ProjectorConfig
from configs.transformer import TransformerConfig
from configs.vision_rope import VisionRope

_VISION_POSITIONS = ("none", "sine", "learned")
_INTERPOLATIONS = ("bicubic", "bicubic_antialiased", "bilinear_antialiased")


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
        registers: Learned tokens without positions before the patches of every image, behind the class token
            (arXiv 2309.16588). They become no backbone tokens.
        positions: Position embedding: `none`, `sine`, fixed, or `learned`, a table interpolated for images of another
            size.
        grid: Side of the learned table in patches.
        interpolation: How the table is interpolated: `bicubic` as in PyTorch, between four cells along each side;
            `bicubic_antialiased` or `bilinear_antialiased`, whose filter covers a patch where that is larger than a
            cell (DINOv2 with registers, arXiv 2309.16588; SigLIP 2, arXiv 2502.14786).
        rope: Rotary positions inside attention; None for none.
        post_norm: Whether the norms of a block follow attention and feed-forward layer, over what these add, instead
            of preceding them (EVA-02-CLIP-E, arXiv 2303.15389).
        input_norm: Whether a norm precedes the first block (CLIP).
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
    registers: int = 0
    positions: str = "sine"
    grid: int = 16
    interpolation: str = "bicubic"
    rope: VisionRope | None = None
    post_norm: bool = False
    input_norm: bool = False
    unused_blocks: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "patch", "channels", "merge", "grid")
        require_one_of(self, "positions", _VISION_POSITIONS)
        require_one_of(self, "interpolation", _INTERPOLATIONS)
        for name in ("registers", "unused_blocks"):
            if getattr(self, name) < 0:
                raise ValueError(f"VisionConfig.{name} is {getattr(self, name)}; it must be at least 0")
        for name in ("pixel_mean", "pixel_std"):
            values = getattr(self, name)
            if len(values) != self.channels:
                raise ValueError(f"VisionConfig.{name} has {len(values)} values for {self.channels} channels")
        if self.parallel_block and self.post_norm:
            raise ValueError("VisionConfig: parallel layers read one normed input, post_norm norms none; choose one")
        if self.positions == "sine" and self.width % 4:
            raise ValueError(f"VisionConfig.width = {self.width}; 2-D sine positions need a multiple of 4")
        if self.rope and self.head_width % 4:
            raise ValueError(f"VisionConfig: head width {self.head_width}; 2-D rotary positions need a multiple of 4")

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches of an image: the class token and registers."""
        return self.class_token + self.registers

    @property
    def prefix_cells(self) -> int:
        """Cells of merge x merge positions that these tokens take in a row, none of which is a backbone token."""
        return -(-self.prefix_tokens // self.positions_per_token)

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
