"""Mixture of experts: a router sends each token through a few of many feed-forward layers.

Routing drops no token: an expert has no capacity that could overflow. Shapes are static all the same, because all
(token, expert) pairs are sorted by expert and multiplied in groups. Where the experts are split over ranks, each rank
computes the pairs of its own experts; tokens get there and back as `expert_exchange.py` says.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from configs.transformer import ExpertsConfig
from mmjax.models.layers.activations import ACTIVATIONS, recomputed
from mmjax.models.layers.expert_exchange import EXPERT_SUMS, permute_rows
from mmjax.models.layers.feed_forward import GatedMLP
from mmjax.models.layers.linear import Linear, normal_parameter
from mmjax.models.layers.tensor_parallel import mark_saveable
from pallas_kernels.varying import make_varying, rank_count
from sharding.axes import Axes
from sharding.expert_transfer import Routing, chosen_transfer


class BalancingWeights(NamedTuple):
    """How much each token counts in the load-balancing loss.

    Attributes:
        segments: Number of the token's sample within the row; 0 for padding.
        loss_shares: The token's share of the loss of the global batch; 0 for padding, which is routed but not counted.
    """

    segments: Int[Array, "r s"]
    loss_shares: Float[Array, "r s"]


class RoutedOutput(NamedTuple):
    """Output of the experts, and what the load-balancing loss needs of the router.

    Attributes:
        output: The weighted sum of each token's experts.
        probabilities: The router's probability of every expert, in float32.
        experts: The k experts that each token was sent to.
    """

    output: Float[Array, "r s d"]
    probabilities: Float[Array, "r s E"]
    experts: Int[Array, "r s k"]


class MixtureOfExperts(nnx.Module):
    """y = sum over the chosen experts i of w_i down_i(activation(gate_i x) * up_i x), with w from a router's softmax.

    Optionally a shared expert, scaled by a sigmoid gate, is added for every token (Qwen2-MoE).
    """

    def __init__(self, config: ExpertsConfig, width: int, *, activation: str = "silu") -> None:
        """Creates router `[d, E]`, gate and up `[E, d, f]` and down `[E, f, d]`, for E experts."""
        self.config, self.activation = config, ACTIVATIONS[activation]
        columns, rows = ("expert", None, "tensor"), ("expert", "tensor", None)
        self.router = normal_parameter((width, config.count), (None, None), width**-0.5)
        self.gate = normal_parameter((config.count, width, config.ffn), columns, width**-0.5)
        self.up = normal_parameter((config.count, width, config.ffn), columns, width**-0.5)
        self.down = normal_parameter((config.count, config.ffn, width), rows, config.ffn**-0.5)
        self.shared = GatedMLP(width, config.shared_ffn, activation=activation) if config.shared_ffn else None
        self.shared_gate = Linear(width, 1) if config.shared_ffn else None

    def __call__(self, x: Float[Array, "r s d"], axes: Axes) -> Float[Array, "r s d"]:
        """The layer's output without the load-balancing loss."""
        return self._route(x, axes).output

    def with_balancing_loss(
        self, x: Float[Array, "r s d"], balancing: BalancingWeights, axes: Axes
    ) -> tuple[Float[Array, "r s d"], Float[Array, ""]]:
        """The layer's output, and its load-balancing loss summed over the local rows."""
        routed = self._route(x, axes)
        loss = load_balancing_loss(routed.probabilities, routed.experts, balancing, axes)
        return routed.output, self.config.balance_weight * loss

    @jax.named_scope("experts")
    def _route(self, x: Float[Array, "r s d"], axes: Axes) -> RoutedOutput:
        with jax.named_scope("router"):
            logits = jnp.einsum("rsd,de->rse", x, self.router[...], preferred_element_type=jnp.float32)
            probabilities = jax.nn.softmax(logits, axis=-1)  # [r, s, E]
            experts, weights = route_top_k(probabilities, self.config)  # [r, s, k] each
        tokens = x.shape[0] * x.shape[1]  # n
        y = self._expert_parallel_forward(
            x.reshape(tokens, -1), experts.reshape(tokens, -1), weights.reshape(tokens, -1), axes
        )  # [n, d]
        y = y.reshape(x.shape)
        if self.shared is not None and self.shared_gate is not None:
            with jax.named_scope("shared_expert"):
                y = y + jax.nn.sigmoid(self.shared_gate(x, axes)) * self.shared(x, axes)
        return RoutedOutput(y, probabilities, experts)

    def _expert_parallel_forward(
        self, x: Float[Array, "n d"], experts: Int[Array, "n k"], weights: Float[Array, "n k"], axes: Axes
    ) -> Float[Array, "n d"]:
        """The weighted sum of every token's experts, on whatever ranks these are."""
        # Varying here, so that the gradients are summed over the tensor ranks after they are back from the experts.
        x, weights = make_varying((x, weights), axes.tensor)
        if axes.expert:
            ranks = lax.axis_size(axes.expert)
            routing = Routing(self.config.count, self.config.top_k)
            transfer = chosen_transfer(axes.expert_transfer, routing, ranks, axes.expert_nodes)
            sum_experts, local_experts = EXPERT_SUMS[transfer], self.gate.shape[0]
            y = sum_experts(self._sum_local_experts, x, experts, weights, local_experts, axes.expert)
        else:
            y = self._sum_local_experts(x, experts, weights)
        return lax.psum(y, axes.tensor) if axes.tensor else y

    def _sum_local_experts(
        self, x: Float[Array, "n d"], experts: Int[Array, "n k"], weights: Float[Array, "n k"]
    ) -> Float[Array, "n d"]:
        """This rank's part of the weighted sum.

        Without a native grouped matmul (on CPUs, and by default on NVIDIA GPUs: openxla/xla pull request 40189) XLA
        lowers `lax.ragged_dot` to dense matmuls of all pairs with every local expert.

        Args:
            x: Tokens.
            experts: Chosen experts, counted from this rank's first; other numbers are experts of other ranks.
            weights: Weight of each chosen expert.
        """
        count = self.gate.shape[0]  # E of this rank
        experts, weights = _local_first(experts, weights, count)  # [n, c] each
        per_token = experts.shape[1]  # c
        is_local = (experts >= 0) & (experts < count)
        group = jnp.where(is_local, experts, count).reshape(-1)  # [n c]; group `count`: pairs of other ranks' experts
        order = jnp.argsort(group)  # pairs by expert
        group_sizes = jnp.bincount(group, length=count + 1)[:count]  # [E]
        # The pairs of other ranks' experts are sorted last. They are masked before and after the matmuls, because
        # `ragged_dot` leaves their rows undefined.
        in_group = (group[order] < count)[:, None]  # [n c, 1]
        masked = recomputed(lambda rows: jnp.where(in_group, rows, jnp.zeros((), rows.dtype)))
        pairs = masked(permute_rows(jnp.repeat(x, per_token, axis=0), order))  # [n c, d]
        gate, up = (
            mark_saveable(lax.ragged_dot(pairs, kernel[...], group_sizes)) for kernel in (self.gate, self.up)
        )  # [n c, f] each
        hidden = recomputed(lambda gate, up: self.activation(gate) * up)(gate, up)  # [n c, f]
        y = mark_saveable(lax.ragged_dot(hidden, self.down[...], group_sizes))  # [n c, d]
        by_token = permute_rows(masked(y), jnp.argsort(order)).reshape(-1, per_token, y.shape[-1])  # [n, c, d]
        return jnp.sum(by_token * weights[:, :, None].astype(by_token.dtype), axis=1)


def _local_first(
    experts: Int[Array, "n k"], weights: Float[Array, "n k"], count: int
) -> tuple[Int[Array, "n c"], Float[Array, "n c"]]:
    """Of each token's experts those that this rank may hold: all, where it has that many, else the local ones first."""
    if experts.shape[1] <= count:
        return experts, weights
    is_local = (experts >= 0) & (experts < count)
    kept = jnp.argsort(~is_local, axis=1)[:, :count]  # stable: in the order of their weights
    return jnp.take_along_axis(experts, kept, axis=1), jnp.take_along_axis(weights, kept, axis=1)


def route_top_k(
    probabilities: Float[Array, "r s E"], config: ExpertsConfig
) -> tuple[Int[Array, "r s k"], Float[Array, "r s k"]]:
    """The k experts with the largest probabilities, and their weights in the sum of outputs."""
    weights, experts = lax.top_k(probabilities, config.top_k)
    return experts, weights / jnp.sum(weights, axis=-1, keepdims=True) if config.normalise else weights


def load_balancing_loss(
    probabilities: Float[Array, "r s E"], experts: Int[Array, "r s k"], balancing: BalancingWeights, axes: Axes
) -> Float[Array, ""]:
    """Sum over tokens t of weight_t * E * sum_i f_i p_ti, with the E experts i.

    p_ti is the router's probability of expert i for token t, and f_i the fraction of the tokens of t's own sample that
    chose expert i. Where all tokens of a sample have equal weights, this is their sum times E sum_i f_i P_i, the loss
    of Switch Transformer (arXiv 2101.03961, section 2.2) and, with f_i summed over the k choices, of Mixtral's
    published code, taken over the sample instead of over all that shares its batch.
    """
    count, ranks = probabilities.shape[-1], rank_count(axes.context) if axes.context else 1
    max_segments = probabilities.shape[1] * ranks + 1
    chosen = jnp.sum(jax.nn.one_hot(experts, count, dtype=jnp.float32), axis=2)  # [r, s, E]

    def segment_means(chosen: jax.Array, segments: jax.Array) -> jax.Array:
        """Fraction of the tokens of each token's segment that chose each expert: `[s, E]`, for one row."""
        sums = jax.ops.segment_sum(chosen, segments, max_segments)
        lengths = jax.ops.segment_sum(jnp.ones(segments.shape), segments, max_segments)
        if axes.context:
            sums, lengths = lax.psum((sums, lengths), axes.context)
        return (sums / jnp.maximum(lengths, 1.0)[:, None])[segments]

    fractions = lax.stop_gradient(jax.vmap(segment_means)(chosen, balancing.segments))  # [r, s, E]
    return count * jnp.sum(balancing.loss_shares[:, :, None] * fractions * probabilities)
