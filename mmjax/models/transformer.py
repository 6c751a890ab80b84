"""The block of encoders and backbones: attention and a feed-forward layer, each behind a norm."""

import jax
from flax import nnx
from jaxtyping import Array, Float

from configs.transformer import TransformerConfig
from mmjax.models.attention import Attention, Rotation
from mmjax.models.layers import MLP, GatedMLP, LayerNorm, RMSNorm, constant, norm_of, scaled
from mmjax.models.module import Piece
from pallas_kernels.packed_attention import Packing
from sharding.axes import Axes

Shared = tuple[Packing, Rotation | None]
"""What all blocks of a stage share: who sees whom, and how queries and keys are turned."""


class LayerScale(nnx.Module):
    """A learned scale per channel (arXiv 2103.17239)."""

    def __init__(self, width: int, start: float) -> None:
        self.scale = constant(start, width)

    def __call__(self, x: Float[Array, "r q d"]) -> Float[Array, "r q d"]:
        return scaled(x, self.scale[...])


class TransformerBlock(nnx.Module):
    """A block with the options of its configuration; `TransformerConfig` says who published which."""

    def __init__(self, config: TransformerConfig) -> None:
        self.attention_norm = norm_of(config, config.width)
        self.attention = attention_of(config)
        self.mlp_norm = None if config.parallel else norm_of(config, config.width)
        self.mlp = mlp_of(config)
        scales = [LayerScale(config.width, config.layer_scale) if config.layer_scale else None for _ in range(2)]
        self.attention_scale, self.mlp_scale = scales

    def __call__(self, x: Float[Array, "r q d"], shared: Shared, axes: Axes) -> Float[Array, "r q d"]:
        packing, rotary = shared
        normed = self.attention_norm(x)
        return self.finish(x, normed, self.attention(normed, axes, packing=packing, rotary=rotary), axes)

    def finish(
        self, x: Float[Array, "r q d"], normed: Float[Array, "r q d"], seen: Float[Array, "r q d"], axes: Axes
    ) -> Float[Array, "r q d"]:
        """The block's output, given its input, that input normed, and what attention made of it."""
        x, normed = self.attended(x, normed, seen)
        return x + through(self.mlp_scale, self.mlp(normed, axes))

    def attended(
        self, x: Float[Array, "r q d"], normed: Float[Array, "r q d"], seen: Float[Array, "r q d"]
    ) -> tuple[Float[Array, "r q d"], Float[Array, "r q d"]]:
        """What attention made of the input added to it, and what the feed-forward layer takes."""
        x = x + through(self.attention_scale, seen)
        return x, normed if self.mlp_norm is None else self.mlp_norm(x)


def block_stack(config: TransformerConfig, block: type[TransformerBlock]) -> Piece:
    """The blocks of a module; `block.prepare(config, batch)` makes what those of a stage share."""
    return Piece(
        "blocks",
        config.name,
        lambda: block(config),
        layers=config.depth,
        prepare=lambda batch: block.prepare(config, batch),
        by_position=True,
    )


def through(scale: LayerScale | None, x: jax.Array) -> jax.Array:
    """x, scaled if there is a scale."""
    return x if scale is None else scale(x)


def attention_of(config: TransformerConfig) -> Attention:
    """The attention of a block."""
    inner = norm_of(config, config.width, split="tensor") if "attention" in config.inner_norms else None
    return Attention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        biases=config.biases,
        query_norm=_qk_norm(config, config.width),
        key_norm=_qk_norm(config, config.kv_width),
        inner_norm=inner,
    )


def _qk_norm(config: TransformerConfig, width: int) -> RMSNorm | LayerNorm | None:
    """One scale for all heads, or one for each channel of them all."""
    return {
        "none": lambda: None,
        "head": lambda: norm_of(config, config.head_width),
        "width": lambda: norm_of(config, width, split="tensor"),
    }[config.qk_norm]()


def mlp_of(config: TransformerConfig) -> MLP | GatedMLP:
    """The feed-forward layer of a block."""
    inner = norm_of(config, config.ffn, split="tensor") if "mlp" in config.inner_norms else None
    bias = "mlp" in config.biases
    if config.gated:
        return GatedMLP(config.width, config.ffn, activation=config.activation, bias=bias, inner_norm=inner)
    return MLP(config.width, config.ffn, config.width, activation=config.activation, bias=bias, inner_norm=inner)
