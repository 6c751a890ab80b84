"""What the encoders of every modality have in common: blocks over packed rows, a last norm, a projector."""

import functools
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import AudioConfig, ModelConfig, VisionConfig
from mmjax.models.layers.linear import build_norm
from mmjax.models.layers.transformer import SharedInputs, TransformerBlock, block_stack
from mmjax.models.modalities.projectors import build_projector
from mmjax.models.structure.interface import Batch
from mmjax.models.structure.module import Module, Piece
from pallas_kernels.packed_attention import make_segment_mask
from sharding.axes import Axes

EncoderConfig = VisionConfig | AudioConfig


class EncoderBlock(TransformerBlock):
    """A transformer block whose positions see all of their image or clip (arXiv 2010.11929, 2212.04356)."""

    reads = ("segments",)

    @staticmethod
    def shared_inputs(config: EncoderConfig, batch: Batch) -> SharedInputs:
        """What all blocks of a stage share."""
        return make_segment_mask(batch["segments"]), None


class EncoderNorm(nnx.Module):
    """The encoder's last norm."""

    reads = ()

    def __init__(self, config: EncoderConfig) -> None:
        self.norm = build_norm(config, config.width)

    def __call__(self, x: Float[Array, "r p d"], batch: Batch, axes: Axes) -> Float[Array, "r p d"]:
        return self.norm(x)


@functools.singledispatch
def encoder_module(config: Any, model: ModelConfig) -> Module:
    """The encoder of a configuration. A new kind registers its own, by the type of its configuration."""
    raise TypeError(f"no encoder is built from a {type(config).__name__}; register one with encoder_module")


def transformer_encoder_module(
    config: EncoderConfig, model: ModelConfig, embedding: type[nnx.Module], block: type[EncoderBlock]
) -> Module:
    """An encoder of blocks between an embedding of its own and a projector to the backbone."""
    last = (
        (Piece("norm", config.name, lambda: EncoderNorm(config), sequence_parallel=True),) if config.final_norm else ()
    )
    return Module(
        config.name,
        (
            Piece("embed", config.name, lambda: embedding(config)),
            block_stack(config, block),
            *last,
            Piece("projector", f"{config.name}_projector", lambda: build_projector(config, model.backbone)),
        ),
    )
