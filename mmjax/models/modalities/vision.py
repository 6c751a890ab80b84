"""The front end of vision transformers, over packed patches of images of any size (NaViT, arXiv 2307.06304).

It registers the encoder of `VisionConfig` with `encoder.encoder_module`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from configs.architectures import ModelConfig, VisionConfig
from mmjax.models.layers.context_parallel import context_positions
from mmjax.models.layers.layer_kinds import inputs_of_layer
from mmjax.models.layers.linear import NO_AXES, Linear, constant_parameter, normal_parameter
from mmjax.models.layers.normalization import build_norm
from mmjax.models.layers.positions import rotary_cos_sin_2d, sinusoidal_positions_2d
from mmjax.models.layers.transformer import SharedInputs
from mmjax.models.modalities.deepstack import add_room_for_taps
from mmjax.models.modalities.encoder import EncoderBlock, encoder_module, transformer_encoder_module
from mmjax.models.modalities.position_table import LearnedPositions2D
from mmjax.models.modalities.windows import window_inputs
from mmjax.models.structure.module import ActivationsByModule, Module, ModuleInputs, PieceModule
from sharding.axes import Axes


def normalise_pixels(
    patches: Float[Array, "r p c"], mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Array, "r p c"]:
    """(pixel - mean) / std per colour channel; the channels of a pixel are adjacent in a patch."""
    pixels = patches.shape[-1] // len(mean)
    patch_mean, patch_std = (jnp.tile(jnp.array(values), pixels)[None, None] for values in (mean, std))
    return (patches - patch_mean) / patch_std


class PatchEmbedding(PieceModule):
    """Projects the pixels of a patch to the encoder's width, and adds the patch's position."""

    batch_keys = ("patches", "positions", "segments")

    def __init__(self, config: VisionConfig) -> None:
        """Creates the projection and, as the configuration says, position table, class token, registers and norm."""
        self.width, self.taps = config.width, len(config.tapped_layers)
        self.pixel_mean, self.pixel_std = config.pixel_mean, config.pixel_std
        self.pixels = Linear(config.patch_width, config.width, bias=config.patch_bias)
        self.sines = config.positions == "sine"
        self.table = self._table(config) if config.positions == "learned" else None
        self.class_token = constant_parameter(0.0, config.width) if config.class_token else None
        self.registers = (
            normal_parameter((config.registers, config.width), (None, None), 0.02) if config.registers else None
        )
        self.class_position = constant_parameter(0.0, config.width) if config.class_token and self.table else None
        self.norm = build_norm(config, config.width) if config.input_norm else None

    @jax.named_scope("embedding")
    def __call__(self, inputs: ActivationsByModule, batch: ModuleInputs, axes: Axes) -> Float[Array, "r p c"]:
        """Embeds the patches of a batch, in the first d of c channels where outputs of layers follow (DeepStack).

        Args:
            inputs: Not used: an encoder takes nothing from other modules.
            batch: `patches` [r, p, c], `positions` [r, p, 2] (row and column; -1 - i for token i before the
                patches) and `segments` [r, p].
            axes: Mesh axes.
        """
        pixels = normalise_pixels(batch["patches"], self.pixel_mean, self.pixel_std)
        x = self.pixels(pixels.astype(self.pixels.kernel[...].dtype), axes)  # [r, p, d]
        x = self._add_positions(x, batch)
        if tokens := self._prefix_tokens():
            number = -1 - batch["positions"][:, :, 0]  # [r, p]; negative for patches
            chosen = jnp.concatenate(tokens)[jnp.maximum(number, 0)]  # [r, p, d]
            x = jnp.where(number[:, :, None] < 0, x, chosen.astype(x.dtype))
        return add_room_for_taps(x if self.norm is None else self.norm(x), self.taps)

    def _prefix_tokens(self) -> list[Float[Array, "n d"]]:
        """Returns the tokens before the patches of every image: the class token, then registers."""
        tokens = []
        if self.class_token is not None:
            token = self.class_token[...]
            tokens.append((token if self.class_position is None else token + self.class_position[...])[None])
        if self.registers is not None:
            tokens.append(self.registers[...])
        return tokens

    @staticmethod
    def _table(config: VisionConfig) -> LearnedPositions2D:
        return LearnedPositions2D(config.grid, config.width, config.interpolation)

    def _add_positions(self, x: Float[Array, "r p d"], batch: ModuleInputs) -> Float[Array, "r p d"]:
        if self.table is not None:
            return x + self.table(batch["positions"], batch["segments"]).astype(x.dtype)
        if self.sines:
            return x + sinusoidal_positions_2d(batch["positions"], self.width).astype(x.dtype)
        return x


class PatchBlock(EncoderBlock):
    """An encoder block whose attention may be rotated by patch row and column, and kept within windows."""

    batch_keys = ("segments", "positions")

    @staticmethod
    def shared_inputs(config: VisionConfig, batch: ModuleInputs, axes: Axes = NO_AXES) -> Any:
        """Computes the mask that separates images, and the rotation; with windows, also the mask of the windows."""
        mask, _ = EncoderBlock.shared_inputs(config, batch, axes)
        positions, segments = batch["positions"], batch["segments"]
        rotary = rotary_cos_sin_2d(positions, segments, config.head_width, config.rope) if config.rope else None
        image = SharedInputs(mask, jax.tree.map(lambda x: context_positions(x, axes), rotary))
        if config.windows is None:
            return image
        return window_inputs(image, positions, segments, config.windows.side, config.merge, axes)

    @staticmethod
    def inputs_of_layer(config: VisionConfig, shared: Any, layer: int | jax.Array) -> SharedInputs:
        """Returns the mask of the layer, and the rotation."""
        return inputs_of_layer(shared, config.kind_of_layers, layer)


@encoder_module.register
def _(config: VisionConfig, model: ModelConfig) -> Module:
    block = PatchBlock if config.rope or config.windows else EncoderBlock
    return transformer_encoder_module(config, model, PatchEmbedding, block)
