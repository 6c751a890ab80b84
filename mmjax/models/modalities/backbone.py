"""The decoder backbone: tokens, with encoders' outputs in their places, to the language loss and to conditions."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from configs.architectures import BackboneConfig, ModelConfig
from configs.rope import rotary_frequencies
from mmjax.models.layers.attention import RotaryCosSin, rotary_cos_sin
from mmjax.models.layers.linear import NO_AXES, build_norm, normal_parameter
from mmjax.models.layers.tensor_parallel import all_gather_positions, local_positions, vocabulary_parallel_logits
from mmjax.models.layers.transformer import SharedInputs, TransformerBlock
from mmjax.models.structure.interface import ActivationsByModule, Batch, ModuleOutput
from pallas_kernels.packed_attention import SegmentMask, make_segment_mask
from sharding.axes import Axes


def first_vocabulary_row(local_rows: int, axes: Axes) -> jax.Array | int:
    """Number of the first vocabulary row this device holds."""
    return lax.axis_index(axes.tensor) * local_rows if axes.tensor else 0


def embedding_table(config: BackboneConfig) -> nnx.Param:
    """`[v, d]`, rows split over the tensor axes."""
    return normal_parameter((config.vocabulary, config.width), ("tensor", None), 0.02)


def insert_encoder_tokens(
    x: Float[Array, "r s d"], tokens: Float[Array, "r t d"], index: Int[Array, "r s"]
) -> Float[Array, "r s d"]:
    """Puts an encoder's tokens where `index` (their number in the row, or -1) says."""
    chosen = jnp.take_along_axis(tokens, jnp.maximum(index, 0)[:, :, None], axis=1)
    return jnp.where((index >= 0)[:, :, None], chosen, x)


class TokenEmbedding(nnx.Module):
    """Looks tokens up, then puts each encoder's tokens in their places."""

    def __init__(self, config: ModelConfig) -> None:
        self.encoders = tuple(encoder.name for encoder in config.encoders)
        learned = config.backbone.positions == "learned"
        self.reads = ("tokens", *(("positions",) * learned), *(f"{name}_index" for name in self.encoders))
        self.embedding = embedding_table(config.backbone)
        shape = (config.backbone.max_positions, config.backbone.width)
        self.positions = normal_parameter(shape, (None, None), 0.02) if learned else None

    def __call__(self, inputs: ActivationsByModule, batch: Batch, axes: Axes) -> Float[Array, "r q d"]:
        """The embedded positions of this rank: all where `axes.sequence` is empty."""
        x = local_positions(self._words(batch["tokens"], axes), axes)
        for name in self.encoders:
            x = insert_encoder_tokens(x, inputs[name], local_positions(batch[f"{name}_index"], axes))
        return x if self.positions is None else x + self.positions[...][local_positions(batch["positions"], axes)]

    def embed_tokens(
        self, tokens: Int[Array, "r s"], positions: Int[Array, "r s"], axes: Axes
    ) -> Float[Array, "r s d"]:
        """Tokens that are words, at positions."""
        x = self._words(tokens, axes)
        return x if self.positions is None else x + self.positions[...][positions]

    def _words(self, tokens: Int[Array, "r s"], axes: Axes) -> Float[Array, "r s d"]:
        table = self.embedding[...]
        local = tokens - first_vocabulary_row(table.shape[0], axes)
        here = (local >= 0) & (local < table.shape[0])
        x = jnp.where(here[..., None], table[jnp.where(here, local, 0)], jnp.zeros((), table.dtype))
        return lax.psum(x, axes.tensor) if axes.tensor else x


class BackboneBlock(TransformerBlock):
    """A transformer block whose positions see what stands before them in their segment and branch."""

    reads = ("segments", "branches", "positions")

    @staticmethod
    def shared_inputs(config: BackboneConfig, batch: Batch) -> SharedInputs:
        """What all blocks of a stage share: who sees whom, and the rotation."""
        return causal_packing(batch), backbone_rotary(config, batch["positions"])


def causal_packing(batch: Batch) -> SegmentMask:
    """Each position sees what stands before it in its segment: the trunk (branch 0) and its own branch.

    So several questions hang behind one image, encoded once, and no answer leaks into another question.
    """
    return make_segment_mask(batch["segments"], branches=batch["branches"], causal=True)


def backbone_rotary(config: BackboneConfig, positions: Int[Array, "r s"]) -> RotaryCosSin | None:
    """How a backbone turns queries and keys at these positions."""
    if config.positions != "rotary":
        return None
    if config.rope_scaling is None:
        return rotary_cos_sin(positions, rotary_frequencies(config.head_width, config.rope_base))
    stretched = config.rope_scaling.frequencies(config.head_width, config.rope_base)
    return rotary_cos_sin(positions, stretched, config.rope_scaling.attention_scaling)


class LanguageHead(nnx.Module):
    """Last norm, the language loss over a vocabulary split over the tensor axes, and the generators' conditions."""

    def __init__(self, config: ModelConfig) -> None:
        self.generators = tuple(generator.name for generator in config.generators)
        self.reads = ("targets", "weights", *(f"{name}_conditions" for name in self.generators))
        self.norm = build_norm(config.backbone, config.backbone.width)
        self.embedding = embedding_table(config.backbone)

    def logits(self, x: Float[Array, "r q d"], axes: Axes = NO_AXES) -> Float[Array, "r s v"]:
        """Local columns of the logits of hidden states that are already normed, in float32, at all positions."""
        return vocabulary_parallel_logits(x, self.embedding[...], axes)

    def __call__(self, x: Float[Array, "r q d"], batch: Batch, axes: Axes) -> ModuleOutput:
        hidden = self.norm(x)
        loss, correct = weighted_cross_entropy(self.logits(hidden, axes), batch["targets"], batch["weights"], axes)
        hidden = all_gather_positions(hidden, axes) if self.generators else hidden
        conditions = {name: hidden_states_at(hidden, batch[f"{name}_conditions"]) for name in self.generators}
        return ModuleOutput(conditions, loss, {"correct": correct})


def hidden_states_at(hidden: Float[Array, "r s d"], at: Int[Array, "r g q"]) -> Float[Array, "r g q d"]:
    """Hidden states at positions of their own row."""
    rows, images, positions = at.shape
    flat = jnp.take_along_axis(hidden, at.reshape(rows, images * positions, 1), axis=1)
    return flat.reshape(rows, images, positions, hidden.shape[-1])


def weighted_cross_entropy(
    logits: Float[Array, "r s v"], targets: Int[Array, "r s"], weights: Float[Array, "r s"], axes: Axes
) -> tuple[Float[Array, ""], Array]:
    """Sum of weighted negative log likelihoods, and where the target is the likeliest token (bool `[r, s]`)."""
    local = targets - first_vocabulary_row(logits.shape[-1], axes)
    here = (local >= 0) & (local < logits.shape[-1])
    peak = lax.stop_gradient(jnp.max(logits, axis=-1))
    picked = jnp.take_along_axis(logits, jnp.where(here, local, 0)[..., None], axis=-1)[..., 0]
    picked = jnp.where(here, picked, 0.0)
    if axes.tensor:
        peak, picked = lax.pmax(peak, axes.tensor), lax.psum(picked, axes.tensor)
    total = jnp.sum(jnp.exp(logits - peak[..., None]), axis=-1)
    total = lax.psum(total, axes.tensor) if axes.tensor else total
    likelihood = picked - peak - jnp.log(total)
    return -jnp.sum(weights * likelihood), picked >= peak
