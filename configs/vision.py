"""Vision encoders."""

import dataclasses

from configs.checks import require_divides, require_positive


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
        require_positive(self, "width", "depth", "heads", "ffn", "patch", "channels", "merge")
        for name in ("pixel_mean", "pixel_deviation"):
            values = getattr(self, name)
            if len(values) != self.channels:
                raise ValueError(f"VisionConfig.{name} has {len(values)} values for {self.channels} channels")
        require_divides(self, "heads", "width")
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
