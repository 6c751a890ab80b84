"""The front end of Whisper's encoder (arXiv 2212.04356) over packed clips: mel frames to encoder positions.

It registers the encoder of `AudioConfig` with `encoder.encoder_module`.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from configs.architectures import AudioConfig, ModelConfig
from mmjax.models.layers.activations import ACTIVATIONS
from mmjax.models.layers.context_parallel import mask_of_rank
from mmjax.models.layers.linear import NO_AXES, add_bias, constant_parameter, normal_parameter
from mmjax.models.layers.positions import sinusoidal_positions_1d
from mmjax.models.layers.tensor_parallel import WeightSplit, reduce_row_parallel
from mmjax.models.layers.transformer import SharedInputs
from mmjax.models.modalities.attention_kinds import chunk_segments
from mmjax.models.modalities.encoder import EncoderBlock, encoder_module, transformer_encoder_module
from mmjax.models.structure.module import ActivationsByModule, Module, ModuleInputs, PieceModule
from pallas_kernels.packed_attention import make_segment_mask
from sharding.axes import Axes

TAPS = 3
STRIDE = 2


def convolution_windows(x: Float[Array, "r f c"], clips: Int[Array, "r f"], stride: int) -> Float[Array, "r p taps c"]:
    """Windows of three frames around every `stride`-th frame; frames of other clips are replaced by zeros.

    At the ends of a packed clip a convolution therefore reads zeros, as it does at the ends of a single clip.

    Args:
        x: Frames.
        clips: Number of the clip that each frame belongs to.
        stride: Step between windows.
    """
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    padded_clips = jnp.pad(clips, ((0, 0), (1, 1)), constant_values=-1)
    taps = []
    for tap in range(TAPS):
        frames = slice(tap, tap + x.shape[1], stride)
        same_clip = padded_clips[:, frames] == clips[:, ::stride]  # [r, p]
        taps.append(jnp.where(same_clip[:, :, None], padded[:, frames], jnp.zeros((), x.dtype)))
    return jnp.stack(taps, axis=2)


class TemporalConvolution(nnx.Module):
    """A convolution of width 3 over the frames of each clip, whose channels are split like the channels of `Linear`."""

    def __init__(self, inputs: int, outputs: int, *, split: WeightSplit, stride: int = 1) -> None:
        """Creates kernel `[3, inputs, outputs]` and bias `[outputs]`; the split is "columns" or "rows"."""
        kernel_split = (None, "tensor") if split == "columns" else ("tensor", None)
        self.split: WeightSplit = split
        self.stride = stride
        self.kernel = normal_parameter((TAPS, inputs, outputs), (None, *kernel_split), (TAPS * inputs) ** -0.5)
        self.bias = constant_parameter(0.0, outputs, kernel_split[1])

    def __call__(self, x: Float[Array, "r f c"], clips: Int[Array, "r f"], axes: Axes) -> Float[Array, "r p d"]:
        """Convolves frames, of which `clips` gives the clip within the row; the stride divides their number."""
        y = jnp.einsum("rptc,tcd->rpd", convolution_windows(x, clips, self.stride), self.kernel[...])
        return add_bias(reduce_row_parallel(y, self.split, axes), self.bias[...])


def cut_into_chunks(
    segments: Int[Array, "r p"], positions: Int[Array, "r p"], chunk: int
) -> tuple[Int[Array, "r p"], Int[Array, "r p"]]:
    """Numbers of the chunks of a row's clips, ascending from 1 and 0 outside of clips, and positions in each chunk.

    Args:
        segments: Number of the clip that each position belongs to.
        positions: Number of each position in its clip.
        chunk: Positions of a chunk; 0 for whole clips, which leaves both as they are.
    """
    if not chunk:
        return segments, positions
    return chunk_segments(segments, positions, chunk), positions % chunk


class FrameBlock(EncoderBlock):
    """An encoder block whose positions attend to all positions of their own chunk of a clip."""

    batch_keys = ("segments", "positions")

    @staticmethod
    def shared_inputs(config: AudioConfig, batch: ModuleInputs, axes: Axes = NO_AXES) -> SharedInputs:
        """Computes the mask that separates chunks; there is no rotation."""
        chunks, _ = cut_into_chunks(batch["segments"], batch["positions"], config.chunk)
        return SharedInputs(mask_of_rank(make_segment_mask(chunks), axes), None)


class FrameEmbedding(PieceModule):
    """Embeds mel frames by two convolutions, the second of which halves their number, and adds their positions."""

    batch_keys = ("frames", "segments", "positions")

    def __init__(self, config: AudioConfig) -> None:
        """Creates the two convolutions."""
        self.width, self.activation = config.width, ACTIVATIONS[config.activation]
        self.chunk = config.chunk
        self.first = TemporalConvolution(config.mels, config.width, split="columns")
        self.second = TemporalConvolution(config.width, config.width, split="rows", stride=STRIDE)

    @jax.named_scope("embedding")
    def __call__(self, inputs: ActivationsByModule, batch: ModuleInputs, axes: Axes) -> Float[Array, "r p d"]:
        """Embeds the frames of a batch.

        Args:
            inputs: Not used: an encoder takes nothing from other modules.
            batch: `frames` [r, f, mels], and `segments` and `positions` [r, f / 2]. A clip starts at an even frame, and
                its number of positions is a multiple of `AudioConfig.merge`.
            axes: Mesh axes.
        """
        chunks, positions = cut_into_chunks(batch["segments"], batch["positions"], self.chunk)
        clips = jnp.repeat(chunks, STRIDE, axis=1)  # [r, f]
        x = batch["frames"].astype(self.first.kernel[...].dtype)
        x = self.activation(self.first(x, clips, axes))  # [r, f, d]
        x = self.activation(self.second(x, clips, axes))  # [r, f / 2, d]
        return x + sinusoidal_positions_1d(positions, self.width).astype(x.dtype)


@encoder_module.register
def _(config: AudioConfig, model: ModelConfig) -> Module:
    return transformer_encoder_module(config, model, FrameEmbedding, FrameBlock if config.chunk else EncoderBlock)
