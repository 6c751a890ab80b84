"""Sampling the next token of a text from its logits."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from configs.errors import UserError


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: Divisor of the logits; 0 for the most likely token (greedy decoding).
        top_p: Nucleus sampling (arXiv 1904.09751): only the most likely tokens that together have this probability are
            candidates; 1 for all tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(
                f"the temperature is {self.temperature}; it must be 0 (for the most likely token) or a positive number"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it must be a probability above 0 and at most 1")


def sample_tokens(
    logits: Float[Array, "b v"], keys: Key[Array, " b"], sampling: Sampling, allowed_tokens: Bool[Array, " v"]
) -> Int[Array, " b"]:
    """Samples the next token of each row, with a key of its own, so that a row does not depend on the others."""
    logits = jnp.where(allowed_tokens[None, :], logits, -jnp.inf)
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1)
    logits = logits / sampling.temperature
    if sampling.top_p < 1:
        logits = jnp.where(top_p_mask(logits, sampling.top_p), logits, -jnp.inf)
    return jax.vmap(jax.random.categorical)(keys, logits)


def top_p_mask(logits: Float[Array, "b v"], top_p: float) -> Bool[Array, "b v"]:
    """The smallest set of the most likely tokens whose probabilities add up to at least `top_p`."""
    probabilities = jax.nn.softmax(logits, axis=-1)
    descending = jnp.sort(probabilities, axis=-1, descending=True)
    sum_before = jnp.cumsum(descending, axis=-1) - descending
    threshold = jnp.min(jnp.where(sum_before < top_p, descending, jnp.inf), axis=-1, keepdims=True)
    return probabilities >= threshold
