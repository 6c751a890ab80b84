"""Autoencoders between pixels and the latents that a generator denoises."""

import dataclasses

from configs.checks import require_positive


@dataclasses.dataclass(frozen=True)
class AutoencoderConfig:
    """The variational autoencoder of latent diffusion (arXiv 2112.10752), `AutoencoderKL` in diffusers.

    Attributes:
        latent_channels: Channels of a latent.
        widths: Channels of each resolution, finest first; each resolution halves the one before.
        blocks: Residual blocks per resolution of the encoder; the decoder has one more.
        groups: Groups of every GroupNorm.
        scaling_factor: Latents times this have about unit variance; the generator denoises these.
    """

    latent_channels: int = 4
    widths: tuple[int, ...] = (128, 256, 512, 512)
    blocks: int = 2
    groups: int = 32
    scaling_factor: float = 0.18215

    def __post_init__(self) -> None:
        require_positive(self, "latent_channels", "blocks", "groups")
        if not self.widths:
            raise ValueError("AutoencoderConfig.widths is empty; it must name at least one resolution")
        for width in self.widths:
            if width < 1 or width % self.groups:
                raise ValueError(f"AutoencoderConfig.groups = {self.groups} does not divide the width {width}")
        if self.scaling_factor <= 0:
            raise ValueError(f"AutoencoderConfig.scaling_factor is {self.scaling_factor}; it must be above 0")

    @property
    def downsampling_factor(self) -> int:
        """Pixels that the side of a latent stands for."""
        return 2 ** (len(self.widths) - 1)
