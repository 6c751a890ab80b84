"""Projectors between modules: the input projector lives with its encoder, the output projector with its generator."""

from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import BackboneConfig, GeneratorConfig
from mmjax.models.encoder import EncoderConfig
from mmjax.models.interface import Batch, Channels, Leaving
from mmjax.models.layers import MLP, LayerNorm
from sharding.axes import Axes


class MergeProjector(nnx.Module):
    """Some adjacent positions of an encoder become one backbone token, through an MLP.

    Of an image they are a square of patches (the pixel shuffle of InternVL, arXiv 2404.16821), of a clip a moment.
    """

    reads = ()

    def __init__(self, config: EncoderConfig, backbone: BackboneConfig) -> None:
        self.merged = config.merged
        self.target = backbone.name
        self.mlp = MLP(self.merged * config.width, backbone.width, backbone.width)

    def __call__(self, x: Float[Array, "r p d"], batch: Batch, axes: Axes) -> Leaving:
        """The batch's patches are ordered so that a square is adjacent: the shuffle is a reshape."""
        rows, positions, width = x.shape
        merged = x.reshape(rows, positions // self.merged, self.merged * width)
        return Leaving({self.target: self.mlp(merged, axes)})


class ConditionProjector(nnx.Module):
    """Backbone hidden states at an image's condition positions to the generator's condition width."""

    reads = ()

    def __init__(self, config: GeneratorConfig, backbone: BackboneConfig) -> None:
        self.source = backbone.name
        self.norm = LayerNorm(backbone.width)
        self.mlp = MLP(backbone.width, config.condition_width * 2, config.condition_width)

    def __call__(self, inputs: Channels, batch: Batch, axes: Axes) -> Float[Array, "r g q c"]:
        return self.mlp(self.norm(inputs[self.source]), axes)
