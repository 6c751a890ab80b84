"""The front of a vision transformer over packed patches of images of any size (NaViT's packing, arXiv 2307.06304)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import ModelConfig, VisionConfig
from mmjax.models.layers.attention import rotary_cos_sin_2d
from mmjax.models.layers.linear import Linear, build_norm, constant_parameter
from mmjax.models.layers.positions import LearnedPositions2D, image_grid_sizes, sinusoidal_positions_2d
from mmjax.models.layers.transformer import SharedInputs, apply_layer_scale
from mmjax.models.modalities.encoder import EncoderBlock, encoder_module, transformer_encoder_module
from mmjax.models.structure.interface import ActivationsByModule, Batch
from mmjax.models.structure.module import Module
from sharding.axes import Axes


def normalise_pixels(
    patches: Float[Array, "r p c"], mean: tuple[float, ...], deviation: tuple[float, ...]
) -> Float[Array, "r p c"]:
    """(pixel - mean) / deviation per channel; the channels of a pixel are adjacent in a patch."""
    pixels = patches.shape[-1] // len(mean)
    mean, deviation = (jnp.tile(jnp.array(values), pixels)[None, None] for values in (mean, deviation))
    return (patches - mean) / deviation


class PatchEmbedding(nnx.Module):
    """Pixels of a patch, and where it stands in its image, to the encoder's width."""

    reads = ("patches", "positions", "segments")

    def __init__(self, config: VisionConfig) -> None:
        self.width = config.width
        self.normal = (config.pixel_mean, config.pixel_std)
        self.pixels = Linear(config.patch_width, config.width, bias=config.patch_bias)
        self.table = LearnedPositions2D(config.grid, config.width) if config.positions == "learned" else None
        self.class_token = constant_parameter(0.0, config.width) if config.class_token else None
        self.class_position = constant_parameter(0.0, config.width) if config.class_token and self.table else None
        self.norm = build_norm(config, config.width) if config.input_norm else None

    def __call__(self, inputs: ActivationsByModule, batch: Batch, axes: Axes) -> Float[Array, "r p d"]:
        """Reads `patches` [r, p, c], `positions` [r, p, 2] and `segments` [r, p]; takes no inputs from other modules.

        A class token stands where the position is negative.
        """
        pixels = normalise_pixels(batch["patches"], *self.normal)
        x = self.pixels(pixels.astype(self.pixels.kernel[...].dtype), axes)
        x = x + self._where(batch).astype(x.dtype)
        if self.class_token is not None:
            stands = batch["positions"][:, :, :1] < 0
            token = self.class_token[...]
            token = token if self.class_position is None else token + self.class_position[...]
            x = jnp.where(stands, token[None, None, :], x)
        return x if self.norm is None else self.norm(x)

    def _where(self, batch: Batch) -> Float[Array, "r p d"]:
        if self.table is None:
            return sinusoidal_positions_2d(batch["positions"], self.width)
        return self.table(batch["positions"], batch["segments"])


class PatchBlock(EncoderBlock):
    """An encoder block whose queries and keys may be turned by row and column."""

    reads = ("segments", "positions")

    @staticmethod
    def shared_inputs(config: VisionConfig, batch: Batch) -> SharedInputs:
        """What all blocks of a stage share; a class token is not turned."""
        packing, _ = EncoderBlock.shared_inputs(config, batch)
        if not config.rope_base:
            return packing, None
        positions = jnp.maximum(batch["positions"], 0).astype(jnp.float32)
        if config.rope_grid:
            extents = image_grid_sizes(batch["positions"], batch["segments"])
            positions = positions * (config.rope_grid / extents.astype(jnp.float32))
        return packing, rotary_cos_sin_2d(positions, config.head_width, config.rope_base)


class PostNormBlock(PatchBlock):
    """An encoder block whose norms stand behind attention and feed-forward layer, over what these add."""

    def __call__(self, x: Float[Array, "r q d"], shared: SharedInputs, axes: Axes) -> Float[Array, "r q d"]:
        packing, rotary = shared
        seen = self.attention(x, axes, packing=packing, rotary=rotary)
        x = x + apply_layer_scale(self.attention_scale, self.attention_norm(seen))
        return x + apply_layer_scale(self.mlp_scale, self.mlp_norm(self.mlp(x, axes)))


@encoder_module.register
def _(config: VisionConfig, model: ModelConfig) -> Module:
    plain = PatchBlock if config.rope_base else EncoderBlock
    return transformer_encoder_module(config, model, PatchEmbedding, PostNormBlock if config.post_norm else plain)
