"""Attention of an encoder within windows of an image."""

import dataclasses

from configs.checks import require_positive, require_types


@dataclasses.dataclass(frozen=True)
class AttentionWindows:
    """Square windows of every image, within which the patches of most layers attend (Qwen2.5-VL, arXiv 2502.13923).

    Windows begin at the first row and column; those at the other ends of an image may be smaller.

    Attributes:
        side: Side of a window in patches.
        full_layers: Layers, ascending from 0, whose patches attend to all of their image instead.
    """

    side: int = 8
    full_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_types(self)
        require_positive(self, "side")
        if list(self.full_layers) != sorted(set(self.full_layers)) or any(layer < 0 for layer in self.full_layers):
            raise ValueError(f"AttentionWindows.full_layers = {self.full_layers}; they must ascend from 0 or more")
