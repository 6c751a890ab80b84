"""What the encoders of every modality have in common: pre-norm transformer blocks over packed rows, and a last norm."""

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float

from configs.architectures import AudioConfig, VisionConfig
from mmjax.models.attention import Attention, segment_mask
from mmjax.models.interface import Batch
from mmjax.models.layers import MLP, LayerNorm
from sharding.axes import Axes

EncoderConfig = VisionConfig | AudioConfig


class EncoderBlock(nnx.Module):
    """Attention within the image or clip and an MLP, each behind a LayerNorm (arXiv 2010.11929, 2212.04356)."""

    reads = ("segments",)

    def __init__(self, config: EncoderConfig) -> None:
        self.attention_norm = LayerNorm(config.width)
        self.attention = Attention(config.width, config.heads, bias=True)
        self.mlp_norm = LayerNorm(config.width)
        self.mlp = MLP(config.width, config.ffn, config.width)

    @staticmethod
    def prepare(config: EncoderConfig, batch: Batch) -> Bool[Array, "r 1 p p"]:
        """What all blocks of a stage share: the mask."""
        return segment_mask(batch["segments"])

    def __call__(self, x: Float[Array, "r p d"], mask: jax.Array, axes: Axes) -> Float[Array, "r p d"]:
        x = x + self.attention(self.attention_norm(x), axes, mask=mask)
        return x + self.mlp(self.mlp_norm(x), axes)


class EncoderNorm(nnx.Module):
    """The encoder's last LayerNorm."""

    reads = ()

    def __init__(self, config: EncoderConfig) -> None:
        self.norm = LayerNorm(config.width)

    def __call__(self, x: Float[Array, "r p d"], batch: Batch, axes: Axes) -> Float[Array, "r p d"]:
        return self.norm(x)
