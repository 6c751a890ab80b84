"""Mixture of experts: a router sends each token through a few of many feed-forward layers.

Routing drops no token: an expert has no capacity that could overflow. Shapes are static all the same, because all
(token, expert) pairs are sorted by expert and multiplied in groups. Where the experts are split over ranks, each rank
computes the pairs of its own experts; `expert_exchange.py` sends the tokens there and the sums back.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from configs.modules.experts import ExpertsConfig
from mmjax.models.layers.activations import ACTIVATIONS, recomputed
from mmjax.models.layers.expert_exchange import EXPERT_SUMS, permute_rows
from mmjax.models.layers.feed_forward import GatedMLP
from mmjax.models.layers.linear import Linear, add_bias, constant_parameter, normal_parameter
from mmjax.models.layers.router import TokenRouting, route_tokens
from mmjax.models.layers.tensor_parallel import mark_saveable
from pallas_kernels.fp8 import MatmulFormat
from pallas_kernels.grouped_matmul import grouped_matmul
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


class MixtureOfExperts(nnx.Module):
    """y = sum over the chosen experts i of w_i expert_i(x), or of expert_i(w_i x), with weights w from a router.

    Optionally an expert that every token passes through is added, scaled by a sigmoid gate or not. `ExpertsConfig`
    lists the options of the experts, `RouterConfig` the options of the router.
    """

    def __init__(self, config: ExpertsConfig, width: int, *, activation: str = "silu") -> None:
        """Creates router `[d, E]`, gate and up `[E, d, f]` and down `[E, f, d]`, for E experts, and their biases.

        Tensor ranks divide the bias of down too, though not the output of down: each rank adds its own channels of the
        bias, so that the sum over the ranks has the whole bias once.
        """
        self.config, self.activation = config, ACTIVATIONS[activation]
        self.matmul_format: MatmulFormat = "native"
        count, ffn, options = config.count, config.ffn, config.router
        columns, rows = ("expert", None, "tensor"), ("expert", "tensor", None)
        self.router = normal_parameter((width, count), (None, None), width**-0.5)
        self.router_bias = constant_parameter(0.0, count) if options.bias else None
        self.selection_bias = constant_parameter(0.0, count) if options.selection_bias else None
        self.gate = normal_parameter((count, width, ffn), columns, width**-0.5)
        self.up = normal_parameter((count, width, ffn), columns, width**-0.5)
        self.down = normal_parameter((count, ffn, width), rows, ffn**-0.5)
        self.gate_bias, self.up_bias, self.down_bias = (
            normal_parameter((count, outputs), ("expert", "tensor"), 0.0) if config.biases else None
            for outputs in (ffn, ffn, width)
        )
        self.shared = GatedMLP(width, config.shared_ffn, activation=activation) if config.shared_ffn else None
        self.shared_gate = Linear(width, 1) if config.shared_ffn and config.shared_gate else None

    def __call__(self, x: Float[Array, "r s d"], axes: Axes) -> Float[Array, "r s d"]:
        """Returns the layer's output without the load-balancing loss."""
        return self._apply(x, axes)[0]

    def with_balancing_loss(
        self, x: Float[Array, "r s d"], balancing: BalancingWeights, axes: Axes
    ) -> tuple[Float[Array, "r s d"], Float[Array, ""]]:
        """Returns the layer's output, and its load-balancing loss summed over the local rows."""
        y, routing = self._apply(x, axes)
        loss = load_balancing_loss(routing.probabilities, routing.experts, balancing, axes)
        loss = self.config.balance_weight * loss
        if self.selection_bias is not None:
            loss = loss + selection_bias_term(self.selection_bias[...], routing.experts, balancing)
        return y, loss

    @jax.named_scope("experts")
    def _apply(self, x: Float[Array, "r s d"], axes: Axes) -> tuple[Float[Array, "r s d"], TokenRouting]:
        with jax.named_scope("router"):
            logits = jnp.einsum("rsd,de->rse", x, self.router[...], preferred_element_type=jnp.float32)
            logits = logits if self.router_bias is None else add_bias(logits, self.router_bias[...])
            selection_bias = None if self.selection_bias is None else self.selection_bias[...]
            routing = route_tokens(logits, self.config, selection_bias)
        tokens = x.shape[0] * x.shape[1]  # n
        y = self._expert_parallel_forward(
            x.reshape(tokens, -1), routing.experts.reshape(tokens, -1), routing.weights.reshape(tokens, -1), axes
        )  # [n, d]
        y = y.reshape(x.shape)
        if self.shared is not None:
            with jax.named_scope("shared_expert"):
                shared = self.shared(x, axes)
                y = y + (shared if self.shared_gate is None else jax.nn.sigmoid(self.shared_gate(x, axes)) * shared)
        return y, routing

    def _expert_parallel_forward(
        self, x: Float[Array, "n d"], experts: Int[Array, "n k"], weights: Float[Array, "n k"], axes: Axes
    ) -> Float[Array, "n d"]:
        """Returns the weighted sum of every token's experts, on whatever ranks these are."""
        # Varying here, so that the gradients are summed over the tensor ranks after they are back from the experts.
        x, weights = make_varying((x, weights), axes.tensor)
        local_sum = functools.partial(self._sum_local_experts, down_bias=self._local_down_bias(axes))
        if axes.expert:
            ranks = lax.axis_size(axes.expert)
            routing = Routing(self.config.count, self.config.top_k)
            transfer = chosen_transfer(axes.expert_transfer, routing, ranks, axes.expert_nodes)
            sum_experts, local_experts = EXPERT_SUMS[transfer], self.gate.shape[0]
            y = sum_experts(local_sum, x, experts, weights, local_experts, axes.expert)
        else:
            y = local_sum(x, experts, weights)
        return lax.psum(y, axes.tensor) if axes.tensor else y

    def _local_down_bias(self, axes: Axes) -> Float[Array, "E d"] | None:
        """The bias of down with zeros for the channels of other tensor ranks; None without one."""
        if self.down_bias is None:
            return None
        bias = self.down_bias[...]
        if not axes.tensor:
            return bias
        local = bias.shape[1]
        zeros = jnp.zeros((bias.shape[0], local * lax.axis_size(axes.tensor)), bias.dtype)
        first = lax.axis_index(axes.tensor) * local
        return lax.dynamic_update_slice_in_dim(make_varying(zeros, axes.tensor), bias, first, axis=1)

    def _sum_local_experts(
        self,
        x: Float[Array, "n d"],
        experts: Int[Array, "n k"],
        weights: Float[Array, "n k"],
        down_bias: Float[Array, "E d"] | None = None,
    ) -> Float[Array, "n d"]:
        """Returns the weighted sum over this rank's experts.

        Args:
            x: Tokens.
            experts: Chosen experts, counted from this rank's first; other numbers are experts of other ranks.
            weights: Weight of each chosen expert.
            down_bias: `_local_down_bias`.
        """
        count = self.gate.shape[0]  # E of this rank
        experts, weights = _local_first(experts, weights, count)  # [n, c] each
        per_token = experts.shape[1]  # c
        is_local = (experts >= 0) & (experts < count)
        group = jnp.where(is_local, experts, count).reshape(-1)  # [n c]; group `count`: pairs of other ranks' experts
        order = jnp.argsort(group)  # pairs by expert
        group_sizes = jnp.bincount(group, length=count + 1)[:count]  # [E]
        # The pairs of other ranks' experts are sorted last. They are masked before and after the matmuls, because
        # `grouped_matmul` leaves their rows undefined.
        in_group = (group[order] < count)[:, None]  # [n c, 1]
        masked = recomputed(lambda rows: jnp.where(in_group, rows, jnp.zeros((), rows.dtype)))

        def project(rows: jax.Array, kernel: jax.Array, bias: jax.Array | None) -> jax.Array:
            """Multiplies the rows by the kernels of their experts, and adds the experts' biases."""
            y = grouped_matmul(rows, kernel, group_sizes, matmul_format=self.matmul_format)
            # As a matmul with ones: the gradient of indexing would be a sum of atomic additions. Its inner dimension is
            # 1, so that it costs little by whatever XLA makes of it.
            if bias is not None:
                y = y + lax.ragged_dot(in_group.astype(rows.dtype), bias[:, None], group_sizes)
            return mark_saveable(y)

        gate_bias, up_bias = (None if bias is None else bias[...] for bias in (self.gate_bias, self.up_bias))
        weights_inputs = self.config.router.weighted == "inputs"
        copies = recomputed(_weight_copies)(x, weights) if weights_inputs else jnp.repeat(x, per_token, axis=0)
        pairs = masked(permute_rows(copies, order))  # [n c, d]
        gate, up = project(pairs, self.gate[...], gate_bias), project(pairs, self.up[...], up_bias)  # [n c, f] each
        y = project(recomputed(self._hidden)(gate, up), self.down[...], down_bias)  # [n c, d]
        by_token = permute_rows(masked(y), jnp.argsort(order)).reshape(-1, per_token, y.shape[-1])  # [n, c, d]
        return jnp.sum(by_token if weights_inputs else _weight_rows(by_token, weights), axis=1)

    def _hidden(self, gate: Float[Array, "m f"], up: Float[Array, "m f"]) -> Float[Array, "m f"]:
        """The input of down, from the outputs of gate and up."""
        limit, offset = self.config.limit, self.config.up_offset
        if limit:
            gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
        return self.activation(gate) * (up + offset if offset else up)


def _weight_copies(x: Float[Array, "n d"], weights: Float[Array, "n c"]) -> Float[Array, "m d"]:
    """Copies each row c times, one after the other, and weights the copies; m = n c."""
    return _weight_rows(jnp.repeat(x, weights.shape[1], axis=0), weights.reshape(-1))


def _weight_rows(rows: Float[Array, "*n d"], weights: Float[Array, "*n"]) -> Float[Array, "*n d"]:
    return rows * weights[..., None].astype(rows.dtype)


def _local_first(
    experts: Int[Array, "n k"], weights: Float[Array, "n k"], count: int
) -> tuple[Int[Array, "n c"], Float[Array, "n c"]]:
    """Chooses the experts of each token that this rank may hold: all k, or its own first if it holds fewer than k."""
    if experts.shape[1] <= count:
        return experts, weights
    is_local = (experts >= 0) & (experts < count)
    kept = jnp.argsort(~is_local, axis=1)[:, :count]  # stable: in the order of their weights
    return jnp.take_along_axis(experts, kept, axis=1), jnp.take_along_axis(weights, kept, axis=1)


LOAD_GRADIENT_SCALE = 1e-6
"""Factor of the loads that are passed on as gradients, so that they are negligible in the global gradient norm."""


def selection_bias_term(
    bias: Float[Array, " E"], experts: Int[Array, "r s k"], balancing: BalancingWeights
) -> Float[Array, ""]:
    """Returns 0, whose gradient by an expert's bias is its excess load, in shares of the tokens, times a small factor.

    Like gradients, loads are thereby summed over the whole global batch, however a plan divides it. The optimizer
    takes their signs alone (`mmjax.training.engine.optimizers.layer_optimizer`).
    """
    count, top_k = bias.shape[0], experts.shape[-1]
    chosen = jnp.sum(jax.nn.one_hot(experts, count, dtype=jnp.float32), axis=2)  # [r, s, E]
    excess = jnp.sum(balancing.loss_shares[:, :, None] * (chosen - top_k / count), axis=(0, 1))  # [E]
    wide = bias.astype(jnp.float32)
    return LOAD_GRADIENT_SCALE * jnp.sum((wide - lax.stop_gradient(wide)) * excess)


def load_balancing_loss(
    probabilities: Float[Array, "r s E"], experts: Int[Array, "r s k"], balancing: BalancingWeights, axes: Axes
) -> Float[Array, ""]:
    """Sum over tokens t of weight_t * E * sum_i f_i p_ti, with the E experts i.

    p_ti is the router's probability of expert i for token t (`TokenRouting`), and f_i the fraction of the tokens of t's
    own sample that chose expert i. Where all tokens of a sample have equal weights, this is their sum times
    E sum_i f_i P_i, the loss of Switch Transformer (arXiv 2101.03961, section 2.2) and, with f_i summed over the k
    choices, of Mixtral's published code, taken over the sample instead of over all that shares its batch. Of sigmoid
    scores it is k times DeepSeek-V3's sequence-wise loss (arXiv 2412.19437, equations 17 to 20).
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
