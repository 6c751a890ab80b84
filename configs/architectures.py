"""Architectures as frozen dataclasses: the one description from which Flax modules and planner specs are both built."""

import dataclasses

DTYPES = {"float32": 4, "bfloat16": 2}  # bytes of a number


def _require_positive(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value < 1:
            raise ValueError(f"{type(config).__name__}.{name} is {value}; it must be at least 1")


def _require_divides(config: object, divisor: str, name: str) -> None:
    small, large = getattr(config, divisor), getattr(config, name)
    if large % small:
        raise ValueError(f"{type(config).__name__}.{divisor} = {small} does not divide {name} = {large}")


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """A vision transformer over packed patches of images of any size, and the projector behind it.

    Attributes:
        name: Module name; batches and plans refer to it.
        width, depth, heads, ffn: Model width d, layers l, heads h, feed-forward width f.
        patch: Side of a patch in pixels.
        channels: Colour channels of a pixel.
        merge: Side of the pixel shuffle: merge² neighbouring patches become one backbone token.
        pixel_mean, pixel_deviation: Per channel, of pixels in [-1, 1]; they are normalised by them.
    """

    name: str = "vision"
    width: int = 128
    depth: int = 2
    heads: int = 4
    ffn: int = 256
    patch: int = 8
    channels: int = 3
    merge: int = 2
    pixel_mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    pixel_deviation: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        _require_positive(self, "width", "depth", "heads", "ffn", "patch", "channels", "merge")
        for name in ("pixel_mean", "pixel_deviation"):
            values = getattr(self, name)
            if len(values) != self.channels:
                raise ValueError(f"VisionConfig.{name} has {len(values)} values for {self.channels} channels")
        _require_divides(self, "heads", "width")
        if self.width % 4:
            raise ValueError(f"VisionConfig.width = {self.width}; 2-D sine positions need a multiple of 4")

    @property
    def patch_width(self) -> int:
        """Numbers in a flattened patch."""
        return self.patch * self.patch * self.channels

    @property
    def merged(self) -> int:
        """Neighbouring patches that become one backbone token."""
        return self.merge**2


@dataclasses.dataclass(frozen=True)
class AudioConfig:
    """Whisper's encoder (arXiv 2212.04356) over packed clips of any length, and the projector behind it.

    Attributes:
        name: Module name; batches and plans refer to it.
        width, depth, heads, ffn: Model width d, layers l, heads h, feed-forward width f.
        mels: Mel bands of a frame. Two frames become one position of the encoder.
        merge: Neighbouring positions that become one backbone token.
    """

    name: str = "audio"
    width: int = 128
    depth: int = 2
    heads: int = 4
    ffn: int = 256
    mels: int = 80
    merge: int = 2

    def __post_init__(self) -> None:
        _require_positive(self, "width", "depth", "heads", "ffn", "mels", "merge")
        _require_divides(self, "heads", "width")
        if self.width % 4:
            raise ValueError(f"AudioConfig.width = {self.width}; sine positions need a multiple of 4")

    @property
    def merged(self) -> int:
        """Neighbouring positions that become one backbone token."""
        return self.merge


@dataclasses.dataclass(frozen=True)
class BackboneConfig:
    """A decoder-only language model: RMSNorm, RoPE, grouped-query attention, SwiGLU (Llama, arXiv 2302.13971) or GELU.

    Attributes:
        name: Module name; batches and plans refer to it.
        vocabulary: Rows v of the embedding; at least the tokenizer's size.
        width, depth, heads, kv_heads, ffn: Model width d, layers l, heads h, key-value heads k, feed-forward width f.
        rope_base: Base of the rotary frequencies.
        gated: Whether the feed-forward layer is SwiGLU; else it is two matmuls with biases around a GELU, as in GPT-3.
        tie_embeddings: Whether the output head is the input embedding.
        norm_epsilon: Added to the mean square in RMSNorm.
    """

    name: str = "backbone"
    vocabulary: int = 64
    width: int = 128
    depth: int = 4
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 256
    rope_base: float = 10000.0
    gated: bool = True
    tie_embeddings: bool = False
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        _require_positive(self, "vocabulary", "width", "depth", "heads", "kv_heads", "ffn")
        _require_divides(self, "heads", "width")
        _require_divides(self, "kv_heads", "heads")
        if self.head_width % 2:
            raise ValueError(f"BackboneConfig: head width {self.head_width} is odd; rotary positions need pairs")

    @property
    def head_width(self) -> int:
        """Width e of one attention head."""
        return self.width // self.heads


@dataclasses.dataclass(frozen=True)
class GeneratorConfig:
    """A conditional U-Net that predicts the velocity of a cosine diffusion, and the output projector before it.

    Attributes:
        name: Module name; batches and plans refer to it.
        image_size: Side z of the generated image in pixels.
        channels: Colour channels of a pixel.
        patch: Side of the pixels folded into channels before the first convolution.
        widths: Channels of each resolution, finest first; each resolution halves the one before.
        blocks: Residual blocks per resolution and direction.
        attentions: Resolutions, 0 the finest, where a transformer block follows every residual block; the middle of
            the U-Net always has one.
        head_width: Width of one attention head.
        groups: Groups of every GroupNorm.
        conditions: Backbone positions q whose hidden states condition one image.
        condition_width: Width the output projector maps them to.
    """

    name: str = "generator"
    image_size: int = 32
    channels: int = 3
    patch: int = 2
    widths: tuple[int, ...] = (32, 64)
    blocks: int = 1
    attentions: tuple[int, ...] = ()
    head_width: int = 16
    groups: int = 8
    conditions: int = 4
    condition_width: int = 64

    def __post_init__(self) -> None:
        _require_positive(self, "image_size", "channels", "patch", "blocks", "head_width", "groups")
        _require_positive(self, "conditions", "condition_width")
        coarsest = self.patch * 2 ** (len(self.widths) - 1)
        if self.image_size % coarsest:
            raise ValueError(
                f"GeneratorConfig.image_size = {self.image_size} is no multiple of {coarsest}, "
                f"which patch = {self.patch} and {len(self.widths)} widths need"
            )
        for width in self.widths:
            if width % self.groups:
                raise ValueError(f"GeneratorConfig.groups = {self.groups} does not divide the width {width}")
        for level in self.attended:
            if not 0 <= level < len(self.widths):
                raise ValueError(f"GeneratorConfig.attentions names resolution {level}; there are {len(self.widths)}")
            if self.widths[level] % self.head_width:
                raise ValueError(
                    f"GeneratorConfig.head_width = {self.head_width} does not divide the width {self.widths[level]}"
                )

    @property
    def attended(self) -> tuple[int, ...]:
        """Resolutions with attention somewhere: `attentions` and the coarsest, where the middle is."""
        return tuple(sorted({*self.attentions, len(self.widths) - 1}))


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Encoders that feed one backbone that feeds generators.

    Attributes:
        encoders: Each projects into the backbone's width.
        backbone: The language model.
        generators: Each reads the backbone's last hidden states at its condition positions.
        dtype: Precision of the compute, `float32` or `bfloat16`; master weights are float32.
    """

    encoders: tuple[VisionConfig | AudioConfig, ...] = (VisionConfig(),)
    backbone: BackboneConfig = BackboneConfig()
    generators: tuple[GeneratorConfig, ...] = (GeneratorConfig(),)
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"ModelConfig.dtype is {self.dtype!r}; choose one of {', '.join(DTYPES)}")
        names = [module.name for module in (*self.encoders, self.backbone, *self.generators)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"ModelConfig: module names must differ, but {', '.join(repeated)} stands more than once")

    @property
    def element_bytes(self) -> int:
        """Bytes of a number in compute precision."""
        return DTYPES[self.dtype]
