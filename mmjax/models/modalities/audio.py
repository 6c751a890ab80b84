"""The front of Whisper's encoder (arXiv 2212.04356) over packed clips: mel frames to positions of the encoder."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from configs.architectures import AudioConfig, ModelConfig
from mmjax.models.layers.activations import ACTIVATIONS
from mmjax.models.layers.linear import add_bias, constant_parameter, normal_parameter
from mmjax.models.layers.positions import sinusoidal_positions_1d
from mmjax.models.layers.tensor_parallel import reduce_row_parallel
from mmjax.models.modalities.encoder import EncoderBlock, encoder_module, transformer_encoder_module
from mmjax.models.structure.interface import ActivationsByModule, Batch
from mmjax.models.structure.module import Module
from sharding.axes import Axes

TAPS = 3
STRIDE = 2


def convolution_windows(x: Float[Array, "r f c"], clips: Int[Array, "r f"], stride: int) -> Float[Array, "r p taps c"]:
    """Every stride-th frame between the one before and the one after it; these are 0 where they are not of its clip.

    So a convolution sees at the ends of a packed clip what it sees at the ends of a clip alone: zeros.
    """
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    owners = jnp.pad(clips, ((0, 0), (1, 1)), constant_values=-1)
    taps = []
    for first in range(TAPS):
        chosen = slice(first, first + x.shape[1], stride)
        own = owners[:, chosen] == clips[:, ::stride]
        taps.append(jnp.where(own[:, :, None], padded[:, chosen], jnp.zeros((), x.dtype)))
    return jnp.stack(taps, axis=2)


class TemporalConvolution(nnx.Module):
    """A convolution of width 3 over the frames of each clip, split over channels like `Linear`."""

    def __init__(self, inputs: int, outputs: int, *, split: str, stride: int = 1) -> None:
        """Shapes: kernel `[3, inputs, outputs]`, bias `[outputs]`."""
        spec = {"columns": (None, "tensor"), "rows": ("tensor", None)}[split]
        self.split, self.stride = split, stride
        self.kernel = normal_parameter((TAPS, inputs, outputs), (None, *spec), (TAPS * inputs) ** -0.5)
        self.bias = constant_parameter(0.0, outputs, spec[1])

    def __call__(self, x: Float[Array, "r f c"], clips: Int[Array, "r f"], axes: Axes) -> Float[Array, "r p d"]:
        """`clips` says to which clip of the row a frame belongs."""
        y = jnp.einsum("rptc,tcd->rpd", convolution_windows(x, clips, self.stride), self.kernel[...])
        return add_bias(reduce_row_parallel(y, self.split, axes), self.bias[...])


class FrameEmbedding(nnx.Module):
    """Mel frames through two convolutions, which halve their number, and where they stand in their clip."""

    reads = ("frames", "segments", "positions")

    def __init__(self, config: AudioConfig) -> None:
        self.width, self.activation = config.width, ACTIVATIONS[config.activation]
        self.first = TemporalConvolution(config.mels, config.width, split="columns")
        self.second = TemporalConvolution(config.width, config.width, split="rows", stride=STRIDE)

    def __call__(self, inputs: ActivationsByModule, batch: Batch, axes: Axes) -> Float[Array, "r p d"]:
        """Reads `frames` [r, f, mels], and `segments` and `positions` [r, f/2]; takes no inputs from other modules.

        A clip starts at an even frame and has so many frames that its positions, f/2, are a multiple of `merge`.
        """
        clips = jnp.repeat(batch["segments"], STRIDE, axis=1)
        x = batch["frames"].astype(self.first.kernel[...].dtype)
        x = self.activation(self.first(x, clips, axes))
        x = self.activation(self.second(x, clips, axes))
        return x + sinusoidal_positions_1d(batch["positions"], self.width).astype(x.dtype)


@encoder_module.register
def _(config: AudioConfig, model: ModelConfig) -> Module:
    return transformer_encoder_module(config, model, FrameEmbedding, EncoderBlock)
