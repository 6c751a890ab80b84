"""Attention of an encoder within windows of an image.

`VisionConfig.windows` holds them.
"""

import dataclasses

from configs.common.checks import require_positive, require_types


@dataclasses.dataclass(frozen=True)
class AttentionWindows:
    """Square windows of every image, within which the patches of most layers attend (Qwen2.5-VL, arXiv 2502.13923).

    Windows begin at the first row and column; windows at the other ends of an image may be smaller.

    Attributes:
        side: Side of a window in patches.
        full_layers: Layers, ascending from 0, whose patches attend to all of their image instead.
    """

    side: int = 8
    full_layers: tuple[int, ...] = ()

    def with_depth(self, depth: int, other_depth: int) -> "AttentionWindows":
        """The windows of an encoder of another depth, of whose layers about the same share are full.

        Args:
            depth: Number of layers of the encoder.
            other_depth: Number of layers of the other one.
        """
        if not self.full_layers:
            return self
        most = other_depth if len(self.full_layers) == depth else max(1, other_depth - 1)
        count = min(max(1, round(len(self.full_layers) * other_depth / depth)), most)
        layers = tuple((group + 1) * other_depth // count - 1 for group in range(count))
        return dataclasses.replace(self, full_layers=layers)

    def kind_of_layers(self, depth: int) -> tuple[int, ...]:
        """For every layer 0 where patches attend to their whole image, and 1 where they attend to their window."""
        return tuple(int(layer not in self.full_layers) for layer in range(depth))

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "side")
        if list(self.full_layers) != sorted(set(self.full_layers)) or any(layer < 0 for layer in self.full_layers):
            raise ValueError(f"AttentionWindows.full_layers = {self.full_layers}; they must ascend from 0 or more")
