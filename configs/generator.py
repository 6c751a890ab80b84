"""Generators."""

import dataclasses

from configs.checks import require_positive


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
        require_positive(self, "image_size", "channels", "patch", "blocks", "head_width", "groups")
        require_positive(self, "conditions", "condition_width")
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
