"""Multi-head latent attention: keys and values of all heads are expanded from one narrow vector per position.

Blocks of the backbone have it in place of `attention.Attention`.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.attention.latent_attention import LatentAttentionConfig
from mmjax.models.layers.linear import NO_AXES, Linear
from mmjax.models.layers.normalization import RMSNorm
from mmjax.models.layers.positions import Rotation, apply_rotary
from mmjax.models.layers.tensor_parallel import all_gather_sequence
from pallas_kernels.packed_attention.api import Mask, packed_attention
from sharding.axes import Axes


class LatentAttention(nnx.Module):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), with the heads split over tensor axes.

    [z, p] = x W_latent and [N, V] = norm(z) W_key_value, with one N and V for each head; its queries and keys are
    Q = [Q_nope, rotary(Q_rope)] and K = [N, rotary(p)]. Queries are norm(x W_query_down) W_query or x W_query.
    The compressions W_query_down and W_latent are on every tensor rank, since all heads read all of the latent vectors.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        config: LatentAttentionConfig,
        *,
        score_scale: float = 0.0,
        score_softcap: float = 0.0,
    ) -> None:
        """Creates the projections.

        They are latent `[d, c + rope_width]`, key_value `[c, h (nope_width + u)]`, query_down `[d, query_rank]` and
        query `[query_rank, h e]`, or query `[d, h e]` alone, and output `[h u, d]`.

        Args:
            width: Width d of the input and of the output.
            heads: Heads h.
            config: The other widths.
            score_scale: Factor of the products of queries and keys; 0 for 1 / sqrt(e).
            score_softcap: Soft cap of the scores (`packed_attention`); 0 for none.
        """
        self.config = config
        self.score_scale, self.score_softcap = score_scale or config.head_width**-0.5, score_softcap
        rank, epsilon = config.query_rank, config.norm_epsilon
        self.query_down = Linear(width, rank) if rank else None
        self.query_norm = RMSNorm(rank, epsilon=epsilon) if rank else None
        self.query = Linear(rank or width, heads * config.head_width, split="columns")
        self.latent = Linear(width, config.kv_rank + config.rope_width)
        self.latent_norm = RMSNorm(config.kv_rank, epsilon=epsilon)
        self.key_value = Linear(config.kv_rank, heads * (config.nope_width + config.value_width), split="columns")
        self.output = Linear(heads * config.value_width, width, split="rows")

    @jax.named_scope("attention")
    def __call__(self, x: Float[Array, "r q d"], axes: Axes, *, mask: Mask, rotary: Rotation) -> Float[Array, "r q d"]:
        """Attends from x to x itself; q are this rank's positions where `axes.sequence` divides them, else all s."""
        query = self._project_query(x, axes, rotary)
        latent, rotated = self._compress(x, axes, rotary)
        return self.project_output(self._attend(query, *self._expand(latent, rotated, axes), mask), axes)

    def project(
        self, x: Float[Array, "r s d"], axes: Axes, rotary: Rotation
    ) -> tuple[Float[Array, "r s h e"], tuple[Float[Array, "r s 1 c"], Float[Array, "r s 1 rope"]]]:
        """Returns the queries of x, and its normed latent vectors and rotated channels of keys, for later positions."""
        latent, rotated = self._compress(x, axes, rotary)
        return self._project_query(x, axes, rotary), (latent[:, :, None], rotated)

    def attend(
        self,
        query: Float[Array, "r s h e"],
        latent: Float[Array, "r t 1 c"],
        rotated: Float[Array, "r t 1 rope"],
        mask: Mask,
    ) -> Float[Array, "r s h u"]:
        """Returns the weighted sums of values, before the output projection; the arguments are results of `project`.

        For fewer queries than keys nothing is expanded: queries are projected to the width of the latent vectors, which
        are the keys and the values of all heads, and the sums are projected back. That computes less.
        """
        if query.shape[1] == latent.shape[1]:
            return self._attend(query, *self._expand(latent[:, :, 0], rotated, NO_AXES), mask)
        to_key, to_value = self._expansions()
        nope, rope = jnp.split(query, [self.config.nope_width], axis=-1)
        projected = jnp.einsum("rshn,chn->rshc", nope, to_key)
        key = jnp.concatenate([latent, rotated], axis=-1)  # [r, t, 1, c + rope]
        sums = self._attend(jnp.concatenate([projected, rope], axis=-1), key, latent, mask)  # [r, s, h, c]
        return jnp.einsum("rshc,chu->rshu", sums, to_value)

    def _expansions(self) -> tuple[Float[Array, "c h nope"], Float[Array, "c h u"]]:
        """Returns the columns of W_key_value that expand keys, and the columns that expand values."""
        kernel = self.key_value.kernel[...]
        kernel = kernel.reshape(kernel.shape[0], -1, self.config.nope_width + self.config.value_width)
        to_key, to_value = jnp.split(kernel, [self.config.nope_width], axis=-1)
        return to_key, to_value

    def _project_query(self, x: Float[Array, "r q d"], axes: Axes, rotary: Rotation) -> Float[Array, "r s h e"]:
        """Returns the queries of this rank's heads at all positions; their last channels are rotated."""
        if self.query_down is not None and self.query_norm is not None:
            x = self.query_norm(self.query_down(x, axes))  # [r, q, query_rank]
        query = self.query(x, axes)  # [r, s, h e]
        query = query.reshape(*query.shape[:2], -1, self.config.head_width)
        nope, rope = jnp.split(query, [self.config.nope_width], axis=-1)
        return jnp.concatenate([nope, apply_rotary(rope, rotary)], axis=-1)

    def _compress(
        self, x: Float[Array, "r q d"], axes: Axes, rotary: Rotation
    ) -> tuple[Float[Array, "r q c"], Float[Array, "r s 1 rope"]]:
        """Returns normed latent vectors at this rank's positions, and the rotated channels of keys at all positions."""
        latent, rope = jnp.split(self.latent(x, axes), [self.config.kv_rank], axis=-1)
        rope = all_gather_sequence(rope, axes)[:, :, None]  # [r, s, 1, rope]
        return self.latent_norm(latent), apply_rotary(rope, rotary)

    def _expand(
        self, latent: Float[Array, "r q c"], rotated: Float[Array, "r s 1 rope"], axes: Axes
    ) -> tuple[Float[Array, "r s h e"], Float[Array, "r s h u"]]:
        """Expands latent vectors to keys and values of this rank's heads at all positions."""
        expanded = self.key_value(latent, axes)  # [r, s, h (nope + u)]
        expanded = expanded.reshape(*expanded.shape[:2], -1, self.config.nope_width + self.config.value_width)
        nope, value = jnp.split(expanded, [self.config.nope_width], axis=-1)
        shared = jnp.broadcast_to(rotated, (*nope.shape[:3], rotated.shape[-1]))
        return jnp.concatenate([nope, shared], axis=-1), value

    def _attend(self, query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask) -> jax.Array:
        return packed_attention(query, key, value, mask, scale=self.score_scale, softcap=self.score_softcap)

    def project_output(self, heads_output: Float[Array, "r s h u"], axes: Axes) -> Float[Array, "r q d"]:
        """Joins the heads and applies the output projection."""
        return self.output(heads_output.reshape(*heads_output.shape[:2], -1), axes)
