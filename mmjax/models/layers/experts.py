"""Mixtures of experts: each token passes through the few feed-forward layers that a router chooses for it.

Routing drops nothing: there is no capacity that a popular expert could exceed. Shapes are static all the same, because
all (token, expert) pairs are sorted by expert and multiplied in groups. With the experts split over ranks, every rank
gets the tokens of all, computes the pairs that chose its own experts, and the sums go back to the tokens' ranks.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from configs.backbone import BackboneConfig
from configs.experts import ExpertsConfig
from mmjax.models.layers.activations import ACTIVATIONS
from mmjax.models.layers.linear import GatedMLP, Linear, normal_parameter
from mmjax.models.layers.tensor_parallel import all_gather_positions, local_positions, name_for_checkpoint
from mmjax.models.layers.transformer import SharedInputs, apply_layer_scale
from mmjax.models.modalities.backbone import BackboneBlock
from mmjax.models.structure.interface import Batch, LayerOutput
from sharding.axes import Axes


class BalancingWeights(NamedTuple):
    """Which tokens the balancing loss counts, and how.

    Attributes:
        segments: Number of the sample within the row.
        shares: Each token's share in the loss of the global batch; 0 for padding, which is routed but counts nowhere.
    """

    segments: Int[Array, "r s"]
    weights: Float[Array, "r s"]


class MixtureOfExperts(nnx.Module):
    """Gated experts behind a router, and perhaps one that all tokens pass through."""

    def __init__(self, config: ExpertsConfig, width: int, *, activation: str = "silu") -> None:
        """Shapes: router `[d, E]`, gate and up `[E, d, f]`, down `[E, f, d]`."""
        self.config, self.activation = config, ACTIVATIONS[activation]
        columns, rows = ("expert", None, "tensor"), ("expert", "tensor", None)
        self.router = normal_parameter((width, config.count), (None, None), width**-0.5)
        self.gate = normal_parameter((config.count, width, config.ffn), columns, width**-0.5)
        self.up = normal_parameter((config.count, width, config.ffn), columns, width**-0.5)
        self.down = normal_parameter((config.count, config.ffn, width), rows, config.ffn**-0.5)
        self.shared = GatedMLP(width, config.shared_ffn, activation=activation) if config.shared_ffn else None
        self.shared_gate = Linear(width, 1) if config.shared_ffn else None

    def __call__(self, x: Float[Array, "r s d"], axes: Axes) -> Float[Array, "r s d"]:
        """The layer's output alone."""
        return self._through(x, axes)[0]

    def with_balancing_loss(
        self, x: Float[Array, "r s d"], counted: BalancingWeights, axes: Axes
    ) -> tuple[Float[Array, "r s d"], Float[Array, ""]]:
        """The layer's output, and its balancing loss summed over the local rows."""
        y, probabilities, chosen = self._through(x, axes)
        return y, self.config.balance_weight * load_balancing_loss(probabilities, chosen, counted)

    def _through(
        self, x: Float[Array, "r s d"], axes: Axes
    ) -> tuple[Float[Array, "r s d"], Float[Array, "r s e"], Int[Array, "r s k"]]:
        """The output, the router's probabilities, and which experts were chosen."""
        logits = jnp.einsum("rsd,de->rse", x, self.router[...], preferred_element_type=jnp.float32)
        probabilities = jax.nn.softmax(logits, axis=-1)
        chosen, weights = route_top_k(probabilities, self.config)
        tokens = x.shape[0] * x.shape[1]
        flat = (x.reshape(tokens, -1), chosen.reshape(tokens, -1), weights.reshape(tokens, -1))
        y = self._routed(*flat, axes).reshape(x.shape)
        if self.shared is not None:
            y = y + jax.nn.sigmoid(self.shared_gate(x, axes)) * self.shared(x, axes)
        return y, probabilities, chosen

    def _routed(
        self, x: Float[Array, "n d"], chosen: Int[Array, "n k"], weights: Float[Array, "n k"], axes: Axes
    ) -> Float[Array, "n d"]:
        """The weighted sum of every token's experts, wherever those lie."""
        if axes.expert:
            x, chosen, weights = (lax.all_gather(each, axes.expert, tiled=True) for each in (x, chosen, weights))
        local = self.gate.shape[0]
        first = lax.axis_index(axes.expert) * local if axes.expert else 0
        y = self._local(x, chosen - first, weights)
        y = lax.psum_scatter(y, axes.expert, tiled=True) if axes.expert else y
        return lax.psum(y, axes.tensor) if axes.tensor else y

    def _local(
        self, x: Float[Array, "n d"], chosen: Int[Array, "n k"], weights: Float[Array, "n k"]
    ) -> Float[Array, "n d"]:
        """This rank's part of the sum; `chosen` counts from its first expert, and may be an expert of other ranks.

        Where XLA has no grouped product (CPUs, and by default NVIDIA GPUs: openxla/xla pull request 40189), it makes a
        dense one of all rows for each local expert.
        """
        count, top = self.gate.shape[0], chosen.shape[1]
        group = jnp.where((chosen >= 0) & (chosen < count), chosen, count).reshape(-1)
        order = jnp.argsort(group)
        sizes = jnp.bincount(group, length=count + 1)[:count]
        # What follows the groups is other ranks' work: kept out on both sides, whatever the product leaves there.
        here = (group[order] < count)[:, None]
        rows = jnp.where(here, _permuted(jnp.repeat(x, top, axis=0), order), jnp.zeros((), x.dtype))
        gate, up = (name_for_checkpoint(lax.ragged_dot(rows, of[...], sizes)) for of in (self.gate, self.up))
        y = name_for_checkpoint(lax.ragged_dot(self.activation(gate) * up, self.down[...], sizes))
        y = jnp.where(here, y, jnp.zeros((), x.dtype))
        pairs = _permuted(y, jnp.argsort(order)).reshape(-1, top, y.shape[-1])
        return jnp.sum(pairs * weights[:, :, None].astype(pairs.dtype), axis=1)


class ExpertBlock(BackboneBlock):
    """A backbone's block with experts for its feed-forward layer."""

    reads = (*BackboneBlock.reads, "shares")

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__(config)
        self.depth = config.depth
        self.mlp = MixtureOfExperts(config.experts, config.width, activation=config.activation)

    @staticmethod
    def shared_inputs(config: BackboneConfig, batch: Batch) -> tuple[SharedInputs, BalancingWeights]:
        """What all blocks of a stage share: who sees whom, the rotation, and what the balancing loss counts."""
        return BackboneBlock.shared_inputs(config, batch), BalancingWeights(batch["segments"], batch["shares"])

    def __call__(
        self, x: Float[Array, "r q d"], shared: tuple[SharedInputs, BalancingWeights], axes: Axes
    ) -> LayerOutput:
        """The block's output and its share of the balancing loss, which is the mean over the layers."""
        (packing, rotary), counted = shared
        normed = self.attention_norm(x)
        x, normed = self.add_attention(x, normed, self.attention(normed, axes, packing=packing, rotary=rotary))
        # Experts take all positions, because a sample's balance is over all of its tokens.
        y, loss = self.mlp.with_balancing_loss(all_gather_positions(normed, axes), counted, axes.without_sequence)
        y = local_positions(y, axes)
        loss = loss / self.depth
        return LayerOutput(x + apply_layer_scale(self.mlp_scale, y), loss)


def _permuted(x: Float[Array, "n d"], order: Int[Array, " n"]) -> Float[Array, "n d"]:
    """Rows in another order: as each is taken once, the gradient is no sum, whose order would be left to chance."""
    return x.at[order].get(unique_indices=True, mode="promise_in_bounds")


def route_top_k(
    probabilities: Float[Array, "r s e"], config: ExpertsConfig
) -> tuple[Int[Array, "r s k"], Float[Array, "r s k"]]:
    """The experts of the largest probabilities, and what each counts in their sum."""
    weights, chosen = lax.top_k(probabilities, config.top_k)
    return chosen, weights / jnp.sum(weights, axis=-1, keepdims=True) if config.normalise else weights


def load_balancing_loss(
    probabilities: Float[Array, "r s e"], chosen: Int[Array, "r s k"], counted: BalancingWeights
) -> Float[Array, ""]:
    """Sum over tokens of share * E * sum_e f_e p_e, with f_e the part of the token's own sample that chose expert e.

    For a sample whose tokens have equal shares, that is its tokens' shares times E sum_e f_e P_e, the loss of Switch
    (arXiv 2101.03961, section 2.2) and, with f_e summed over the k choices, of Mixtral's published code, taken over
    the sample instead of whatever happens to share its batch.
    """
    experts, longest = probabilities.shape[-1], probabilities.shape[1] + 1
    picked = jnp.sum(jax.nn.one_hot(chosen, experts, dtype=jnp.float32), axis=2)

    def means(picked: jax.Array, segments: jax.Array) -> jax.Array:
        sums = jax.ops.segment_sum(picked, segments, longest)
        lengths = jax.ops.segment_sum(jnp.ones(segments.shape), segments, longest)
        return (sums / jnp.maximum(lengths, 1.0)[:, None])[segments]

    fractions = lax.stop_gradient(jax.vmap(means)(picked, counted.segments))
    return experts * jnp.sum(counted.weights[:, :, None] * fractions * probabilities)
