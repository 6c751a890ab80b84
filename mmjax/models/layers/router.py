"""The router of a mixture of experts (`experts.py`): from its logits to the experts of each token and their weights."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from configs.modules.experts import ExpertsConfig, RouterConfig
from mmjax.models.layers.linear import add_bias

SMALLEST_SUM = 1e-20
"""Added to the sum by which scores are divided: sigmoids of logits of -88 and less are all 0."""


class TokenRouting(NamedTuple):
    """The router's choice of experts for each token.

    Attributes:
        experts: The k experts that it is sent to.
        weights: The weights of these experts' outputs.
        probabilities: Scores of all experts, in float32, divided by their sum, for the load-balancing loss.
    """

    experts: Int[Array, "r s k"]
    weights: Float[Array, "r s k"]
    probabilities: Float[Array, "r s E"]


def route_tokens(
    logits: Float[Array, "r s E"], config: ExpertsConfig, selection_bias: Float[Array, " E"] | None = None
) -> TokenRouting:
    """Chooses the experts of each token and weights them (`RouterConfig` has the equations).

    Args:
        logits: The router's logits, in float32.
        config: The mixture of experts.
        selection_bias: Added to the scores by which experts are chosen; None for nothing.
    """
    router = config.router
    if router.scores == "softmax":
        scores = probabilities = jax.nn.softmax(logits, axis=-1)
    else:
        scores = jax.nn.sigmoid(logits)
        probabilities = _divide_by_sum(scores)
    criteria = scores if selection_bias is None else add_bias(scores, selection_bias)
    _, experts = lax.top_k(_mask_other_groups(lax.stop_gradient(criteria), router), config.top_k)
    weights = jnp.take_along_axis(scores, experts, axis=-1)
    if router.normalise:
        weights = _divide_by_sum(weights)
    return TokenRouting(experts, weights * router.weight_factor, probabilities)


def _divide_by_sum(scores: Float[Array, "r s n"]) -> Float[Array, "r s n"]:
    """Scores divided by their sum plus `SMALLEST_SUM`, as in DeepSeek-V3's published code."""
    total = jnp.sum(scores, axis=-1, keepdims=True) + SMALLEST_SUM
    fixed = lax.stop_gradient(total)
    # total / fixed is 1. The gradient of scores / total itself has the square of the sum, which would be 0.
    return (scores / fixed) / (total / fixed)


def _mask_other_groups(criteria: Float[Array, "r s E"], router: RouterConfig) -> Float[Array, "r s E"]:
    """Replaces the criteria by -inf for experts of groups that are not among a token's best."""
    if router.top_groups == router.groups:
        return criteria
    grouped = criteria.reshape(*criteria.shape[:-1], router.groups, -1)  # [r, s, g, E/g]
    best, _ = lax.top_k(grouped, router.group_best)
    _, groups = lax.top_k(jnp.sum(best, axis=-1), router.top_groups)
    is_chosen = jnp.any(jax.nn.one_hot(groups, router.groups, dtype=jnp.bool_), axis=-2)  # [r, s, g]
    return jnp.where(is_chosen[..., None], grouped, -jnp.inf).reshape(criteria.shape)
