"""Encoders of every modality: bidirectional blocks over packed rows, a final norm, and a projector.

`model.model_modules` builds them by `encoder_module`; `vision.py` and `audio.py` register their embeddings and blocks.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from configs.architectures import EncoderConfig, ModelConfig
from configs.modules.encoders import unregistered_encoder
from mmjax.models.layers.context_parallel import mask_of_rank
from mmjax.models.layers.linear import NO_AXES
from mmjax.models.layers.normalization import build_norm
from mmjax.models.layers.transformer import SharedInputs, TransformerBlock, block_stack
from mmjax.models.modalities.deepstack import tapped_block
from mmjax.models.modalities.projectors import build_projector
from mmjax.models.structure.module import Module, ModuleInputs, Piece, PieceModule
from pallas_kernels.packed_attention import make_segment_mask
from sharding.axes import Axes


class EncoderBlock(TransformerBlock):
    """A block whose positions attend to all positions of their own image or clip (arXiv 2010.11929, 2212.04356)."""

    batch_keys = ("segments",)

    @staticmethod
    def shared_inputs(config: EncoderConfig, batch: ModuleInputs, axes: Axes = NO_AXES) -> SharedInputs:
        """Computes the mask that separates the images or clips of a row; there is no rotation."""
        return SharedInputs(mask_of_rank(make_segment_mask(batch["segments"]), axes), None)


class EncoderNorm(PieceModule):
    """The norm after an encoder's last block, before which neighbouring positions may be averaged."""

    batch_keys = ()

    def __init__(self, config: EncoderConfig) -> None:
        """Creates the norm."""
        self.norm, self.width, self.pool = build_norm(config, config.width), config.width, config.pool

    def __call__(self, x: Float[Array, "r p c"], batch: ModuleInputs, axes: Axes) -> Float[Array, "r q c"]:
        """Averages `pool` positions each and normalises the last hidden states, not outputs of tapped layers."""
        x = average_positions(x, self.pool)
        if x.shape[-1] == self.width:
            return self.norm(x)
        return jnp.concatenate([self.norm(x[..., : self.width]), x[..., self.width :]], axis=-1)


def average_positions(x: Float[Array, "r p c"], pool: int) -> Float[Array, "r q c"]:
    """Averages every `pool` neighbouring positions."""
    if pool == 1:
        return x
    rows, positions, channels = x.shape
    return jnp.mean(x.reshape(rows, positions // pool, pool, channels), axis=2)


@functools.singledispatch
def encoder_module(config: EncoderConfig, model: ModelConfig) -> Module:
    """Builds the encoder that a configuration describes.

    A new kind registers its own function, by the type of its configuration.
    """
    raise unregistered_encoder(config)


def transformer_encoder_module(
    config: EncoderConfig, model: ModelConfig, embedding: type[PieceModule], block: type[EncoderBlock] = EncoderBlock
) -> Module:
    """Builds an encoder that is a stack of blocks.

    Args:
        config: The encoder.
        model: The model that contains it.
        embedding: Built from the encoder's configuration; its outputs enter the first block.
        block: Kind of the blocks.
    """
    # A type checker knows only that `embedding` is some module, not that its constructor takes a configuration.
    build_embedding: Any = embedding
    kind = tapped_block(block) if config.tapped_layers else block
    pieces = [
        Piece(name="embed", part=config.name, build=lambda: build_embedding(config)),
        block_stack(config, kind, layer_inputs=functools.partial(kind.inputs_of_layer, config)),
    ]
    if config.final_norm:
        pieces.append(
            Piece(
                name="norm",
                part=config.name,
                build=lambda: EncoderNorm(config),
                sequence_parallel=config.pool == 1,  # a rank's share of the positions may not be whole groups
            )
        )
    pieces.append(
        Piece(
            name="projector",
            part=f"{config.name}_projector",
            build=lambda: build_projector(config, model.backbone),
        )
    )
    return Module(config.name, tuple(pieces))
