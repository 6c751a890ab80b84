"""Attention of a layer to some positions of an item: how many pairs of a query and a key it computes."""

import dataclasses
from typing import Literal

import numpy as np
from jaxtyping import Float

from configs.architectures import AudioConfig, BackboneConfig, EncoderConfig, VisionConfig

LocalKind = Literal["window", "chunk", "causal_chunk", "square"]


@dataclasses.dataclass(frozen=True)
class LocalAttention:
    """Attention to a window or a chunk of an item.

    Attributes:
        kind: `window`, of the last positions before each, itself included; `chunk`, equal chunks that an item is cut
            into; `causal_chunk`, to itself and the positions before it in its chunk; or `square`, windows of an image.
        size: Positions of a window or a chunk, or of a square's side.
    """

    kind: LocalKind
    size: int

    def pairs(self, length: Float[np.ndarray, "*shape"] | float | int) -> Float[np.ndarray, "*shape"]:
        """Pairs of an item of so many positions; of images, of a square one.

        window          l (l + 1) / 2 with l <= w, else w (w + 1) / 2 + (l - w) w
        chunk           floor(l / w) w² + (l mod w)²
        causal_chunk    half of that and of l
        """
        length = np.asarray(length, float)
        if self.kind == "window":
            within = np.minimum(length, self.size)
            return np.asarray(within * (within + 1) / 2 + (length - within) * self.size)
        if self.kind == "square":
            return np.asarray(self._squares(np.asarray(np.sqrt(length))) ** 2)
        squares = self._squares(length)
        return np.asarray((squares + length) / 2 if self.kind == "causal_chunk" else squares)

    def _squares(self, length: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Sum of the squared lengths of the chunks of `size` that a length is cut into."""
        whole, rest = np.divmod(length, self.size)
        return np.asarray(whole * self.size**2 + rest**2)


def local_attention(config: EncoderConfig | BackboneConfig) -> LocalAttention | None:
    """The local attention of a module's local layers; None where all layers attend to whole items."""
    if isinstance(config, BackboneConfig) and "local" in config.attention_kinds:
        return LocalAttention("window", config.attention_window)
    if isinstance(config, BackboneConfig) and "chunked" in config.attention_kinds:
        return LocalAttention("causal_chunk", config.attention_chunk)
    if isinstance(config, VisionConfig) and config.windows:
        return LocalAttention("square", config.windows.side)
    if isinstance(config, AudioConfig) and config.chunk:
        return LocalAttention("chunk", config.chunk)
    return None


def is_local_layer(config: EncoderConfig | BackboneConfig, layer: int) -> bool:
    """Whether the attention of a layer is local."""
    if isinstance(config, BackboneConfig):
        return config.attention_kinds[config.kind_of_layers[layer]] in ("local", "chunked")
    if isinstance(config, VisionConfig) and config.windows:
        return layer not in config.windows.full_layers
    return isinstance(config, AudioConfig) and config.chunk > 0
