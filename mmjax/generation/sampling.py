"""Sampling the next token of a text from its logits: temperature, top-k, top-p, min-p and repetition penalty."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from configs.common.errors import UserError

_ROUNDING = 1e-6
"""Relative error of a sum of float32 probabilities, by which `top_p` may be missed."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Settings of the choice of the next token.

    The candidates are restricted by `top_k`, then `top_p`, then `min_p`, after the temperature has been applied.

    Attributes:
        temperature: Divisor of the logits; 0 for the most likely token (greedy decoding).
        top_p: Nucleus sampling (arXiv 1904.09751): only the fewest most likely tokens that together have this
            probability are candidates; 1 for all tokens.
        top_k: Number of the most likely tokens that are candidates; 0 for all.
        min_p: Only tokens with at least this share of the most likely token's probability are candidates (arXiv
            2407.01082); 0 for all.
        repetition_penalty: Divisor of the positive logits of tokens that the prompt or the answer has already, and
            factor of their negative logits (arXiv 1909.05858), in greedy decoding too; 1 for none.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(
                f"the temperature is {self.temperature}; it must be 0 (for the most likely token) or a positive number"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it must be a probability above 0 and at most 1")
        if self.top_k < 0:
            raise UserError(f"top_k is {self.top_k}; it must be 0 (for all tokens) or a number of tokens")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min_p is {self.min_p}; it must be a share from 0 to 1")
        if not 0 < self.repetition_penalty < float("inf"):
            raise UserError(
                f"repetition_penalty is {self.repetition_penalty}; it must be 1 (for none) or another positive number"
            )


def sample_tokens(
    logits: Float[Array, "b v"], keys: Key[Array, " b"], sampling: Sampling, allowed_tokens: Bool[Array, " v"]
) -> Int[Array, " b"]:
    """Samples the next token of each row, with a key of its own, so that a row does not depend on the others."""
    logits = jnp.where(allowed_tokens[None, :], logits, -jnp.inf)
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1)
    # The largest logit is 0 before the division, so that no temperature is too low; float32 ends at `tiny`.
    above_largest = logits - jnp.max(logits, axis=-1, keepdims=True)
    logits = above_largest / max(sampling.temperature, float(jnp.finfo(logits.dtype).tiny))
    if sampling.top_k or sampling.top_p < 1 or sampling.min_p:
        logits = jnp.where(candidate_mask(logits, sampling), logits, -jnp.inf)
    return jax.vmap(jax.random.categorical)(keys, logits)


def penalise_repetition(logits: Float[Array, "b v"], seen: Bool[Array, "b v"], penalty: float) -> Float[Array, "b v"]:
    """Applies `Sampling.repetition_penalty` to the logits of the tokens that each row has seen."""
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def candidate_mask(logits: Float[Array, "b v"], sampling: Sampling) -> Bool[Array, "b v"]:
    """Returns which tokens may be sampled. Of equally likely tokens, the tokens with lower ids come first."""
    order = jnp.argsort(logits, axis=-1, stable=True, descending=True)  # [b, v]
    descending = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
    if sampling.top_k:
        descending = jnp.where(jnp.arange(logits.shape[-1])[None] < sampling.top_k, descending, 0.0)
        descending /= jnp.sum(descending, axis=-1, keepdims=True)
    sum_before = jnp.cumsum(descending, axis=-1) - descending
    is_candidate = (descending > 0) & (descending >= sampling.min_p * descending[:, :1])
    if sampling.top_p < 1:
        is_candidate &= sum_before < sampling.top_p * (1 - _ROUNDING)
    rank = jnp.argsort(order, axis=-1)
    return jnp.take_along_axis(is_candidate, rank, axis=-1)
