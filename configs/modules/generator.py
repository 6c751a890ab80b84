"""Generators of images: the options of every kind, of kinds that denoise, and of latent diffusion by a U-Net.

Generators of the project and a user's own (`examples/new_generator.py`) are subclasses of `GeneratorConfig`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from configs.common.checks import require_loss, require_one_of, require_positive, require_types
from configs.common.errors import UserError
from configs.common.short_repr import short_repr

PREDICTIONS = ("velocity", "epsilon")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """A generator of images, conditioned on hidden states of the backbone, with the output projector before it.

    A kind of generator is a subclass. Its Flax module, specs and sampling are registered by its class
    (`mmjax.api.generators.register_generator`).

    Attributes:
        name: Module name; batches and plans refer to it.
        image_size: Size of the generated image in pixels: a side, or (height, width).
        channels: Colour channels of a pixel.
        conditions: Backbone positions q whose hidden states condition one image.
        condition_width: Width to which the output projector maps them.
        condition_dropout: Share of training images whose conditions are set to zero, for guidance (arXiv 2207.12598).
        loss: Computes the loss of every image from `mmjax.models.modalities.losses.DenoisingPredictions`
            (docs/how_to/extending.md); None for the kind's own.
    """

    name: str = "generator"
    image_size: int | tuple[int, int] = 32
    channels: int = 3
    conditions: int = 4
    condition_width: int = 64
    condition_dropout: float = 0.0
    loss: Callable[[Any], Any] | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_loss(self, "loss")
        require_types(self)
        require_positive(self, "channels", "conditions", "condition_width")
        kind = type(self).__name__
        if not 0 <= self.condition_dropout < 1:
            raise ValueError(f"{kind}.condition_dropout is {self.condition_dropout}; give 0 or more, below 1")
        if any(side < 1 for side in self.image_sides):
            raise ValueError(f"{kind}.image_size is {self.image_size}; sides must be above 0")

    @property
    def image_sides(self) -> tuple[int, int]:
        """Height and width of the image in pixels."""
        return self.image_size if isinstance(self.image_size, tuple) else (self.image_size, self.image_size)

    def with_layers(self, count: int) -> "GeneratorConfig":
        """A copy with so many layers; a kind whose layers cannot be divided among stages stays as it is."""
        del count
        return self


def unregistered_generator(config: GeneratorConfig) -> UserError:
    """The error for a generator of a kind that nothing is registered for."""
    name = type(config).__name__
    return UserError(
        f"{name} is no known kind of generator; call mmjax.register_generator({name}, ...) where it is defined"
    )


@dataclasses.dataclass(frozen=True)
class CosineSchedule:
    """Continuous time, with cosine signal and sine noise; the network predicts velocities (arXiv 2202.00512)."""


@dataclasses.dataclass(frozen=True)
class ScaledLinearSchedule:
    """Integer time steps whose betas have evenly spaced square roots (arXiv 2112.10752).

    Attributes:
        timesteps: Number of steps from an image to noise.
        beta_start: Variance that the first step adds.
        beta_end: Variance that the last step adds.
        prediction: Prediction of the network: `velocity` (arXiv 2202.00512) or `epsilon`, the noise (arXiv 2006.11239).
    """

    timesteps: int = 1000
    beta_start: float = 0.00085
    beta_end: float = 0.012
    prediction: str = "velocity"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "timesteps")
        if not 0 < self.beta_start <= self.beta_end < 1:
            raise ValueError(
                f"ScaledLinearSchedule: beta_start = {self.beta_start} and beta_end = {self.beta_end} must be "
                "between 0 and 1, in this order"
            )
        require_one_of(self, "prediction", PREDICTIONS)


@dataclasses.dataclass(frozen=True)
class RectifiedFlowSchedule:
    """Straight lines from images to noise, along which the network predicts noise - image (arXiv 2403.03206).

    A time t between 0 and 1 is the sigmoid of a normal variable, shifted to shift * t / (1 + (shift - 1) * t).

    Attributes:
        logit_mean: Mean of the normal variable; above 0 there is more noise in training.
        logit_std: Standard deviation of the normal variable; 0 for times that are uniform instead.
        shift: Moves the times of training and sampling towards noise if above 1, as large images need: the square root
            of the number of pixels divided by the number for which 1 is right. Stable Diffusion 3 has 3 for images of
            1024 pixels a side.
    """

    logit_mean: float = 0.0
    logit_std: float = 1.0
    shift: float = 1.0

    def __post_init__(self) -> None:
        require_types(self)
        if self.logit_std < 0:
            raise ValueError(f"RectifiedFlowSchedule.logit_std is {self.logit_std}; give 0 or more")
        if self.shift <= 0:
            raise ValueError(f"RectifiedFlowSchedule.shift is {self.shift}; it must be above 0")


NoiseSchedule = CosineSchedule | ScaledLinearSchedule | RectifiedFlowSchedule


@dataclasses.dataclass(frozen=True)
class AutoencoderConfig:
    """The variational autoencoder of latent diffusion (arXiv 2112.10752), `AutoencoderKL` in diffusers.

    Attributes:
        latent_channels: Channels of a latent.
        widths: Channels of each resolution, finest first; each resolution halves the one before.
        blocks: Residual blocks per resolution of the encoder; the decoder has one more.
        groups: Groups of every GroupNorm.
        scaling_factor: Factor that gives latents about unit variance; the generator denoises scaled latents.
        shift: Subtracted from latents before they are scaled (Stable Diffusion 3, Flux.1).
        quantise: Whether a 1 x 1 convolution ends the encoder and another begins the decoder (Stable Diffusion 1, 2).
    """

    latent_channels: int = 4
    widths: tuple[int, ...] = (128, 256, 512, 512)
    blocks: int = 2
    groups: int = 32
    scaling_factor: float = 0.18215
    shift: float = 0.0
    quantise: bool = True

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "latent_channels", "blocks", "groups")
        if not self.widths:
            raise ValueError("AutoencoderConfig.widths is empty; give at least one resolution")
        for width in self.widths:
            if width < 1 or width % self.groups:
                raise ValueError(f"AutoencoderConfig.groups = {self.groups} does not divide the width {width}")
        if self.scaling_factor <= 0:
            raise ValueError(f"AutoencoderConfig.scaling_factor is {self.scaling_factor}; it must be above 0")

    @property
    def downsampling_factor(self) -> int:
        """Number of pixels along each side that one latent stands for."""
        return 2 ** (len(self.widths) - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenoisingConfig(GeneratorConfig):
    """A generator that denoises pixels, or the latents of an autoencoder.

    Sizes are a side, or (height, width): frames and mel bands where the image is a spectrogram.

    Attributes:
        patch: Side of the squares of pixels or latents that are folded into channels.
        schedule: The noise schedule.
        autoencoder: Encodes images to the latents that are denoised; None for pixels.
    """

    patch: int = 2
    schedule: NoiseSchedule = CosineSchedule()
    autoencoder: AutoencoderConfig | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "patch")

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the denoised array: latents, or pixels without an autoencoder."""
        height, width = self.image_sides
        if self.autoencoder is None:
            return height, width, self.channels
        reduction = self.autoencoder.downsampling_factor
        return height // reduction, width // reduction, self.autoencoder.latent_channels


SECOND_ATTENTIONS = ("conditions", "map")
POOLED = ("added", "concatenated", "none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UNetConfig(DenoisingConfig):
    """A conditional U-Net.

    Attributes:
        widths: Channels of each resolution, finest first; each resolution halves the one before.
        blocks: Residual blocks per resolution and direction.
        attention_levels: Resolutions, 0 the finest, where a transformer block follows every residual block; the middle
            of the U-Net always has one.
        head_width: Width of one attention head, for all resolutions or for each.
        groups: Groups of every GroupNorm.
        second_attention: Keys of the second attention of a transformer block: the `conditions`, or again the
            feature `map` (arXiv 2301.12503).
        linear_projection: Whether the projections into and out of a transformer block are matmuls (Stable Diffusion 2)
            or equivalent 1 x 1 convolutions (Stable Diffusion 1.x, AudioLDM); the shapes of published weights differ.
        pooled: How the mean of the conditions joins the time embedding: `added` to it, `concatenated`
            (arXiv 2301.12503), or `none`.
    """

    widths: tuple[int, ...] = (32, 64)
    blocks: int = 1
    attention_levels: tuple[int, ...] = ()
    head_width: int | tuple[int, ...] = 16
    groups: int = 8
    second_attention: str = "conditions"
    linear_projection: bool = True
    pooled: str = "added"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "blocks", "groups")
        require_one_of(self, "second_attention", SECOND_ATTENTIONS)
        require_one_of(self, "pooled", POOLED)
        self._check_size()
        for width in self.widths:
            if width % self.groups:
                raise ValueError(f"UNetConfig.groups = {self.groups} does not divide the width {width}")
        self._check_heads()

    def _check_size(self) -> None:
        coarsest = self.patch * 2 ** (len(self.widths) - 1)
        reason = f"which patch = {self.patch} and {len(self.widths)} widths need"
        if self.autoencoder:
            coarsest *= self.autoencoder.downsampling_factor
            reason = f"{reason}, and the autoencoder's {len(self.autoencoder.widths)}"
        if any(side < 1 or side % coarsest for side in self.image_sides):
            raise ValueError(f"UNetConfig.image_size = {self.image_size} is no multiple of {coarsest}, {reason}")

    def _check_heads(self) -> None:
        if isinstance(self.head_width, tuple) and len(self.head_width) != len(self.widths):
            raise ValueError(f"UNetConfig.head_width has {len(self.head_width)} entries for {len(self.widths)} widths")
        for level in self.all_attention_levels:
            if not 0 <= level < len(self.widths):
                raise ValueError(f"UNetConfig.attention_levels names resolution {level}; there are {len(self.widths)}")
            width, head = self.widths[level], self.head_widths[level]
            if head < 1 or width % head:
                raise ValueError(f"UNetConfig.head_width = {head} does not divide the width {width}")

    @property
    def all_attention_levels(self) -> tuple[int, ...]:
        """Resolutions with attention: `attention_levels`, and the coarsest, which the middle has."""
        return tuple(sorted({*self.attention_levels, len(self.widths) - 1}))

    @property
    def head_widths(self) -> tuple[int, ...]:
        """Width of a head at each resolution."""
        return self.head_width if isinstance(self.head_width, tuple) else (self.head_width,) * len(self.widths)

    def heads(self, level: int) -> int:
        """Attention heads at a resolution."""
        return self.widths[level] // self.head_widths[level]

    @property
    def embedding_width(self) -> int:
        """Width of the time embedding, with the pooled conditions where they are concatenated."""
        return 4 * self.widths[0] * (2 if self.pooled == "concatenated" else 1)
