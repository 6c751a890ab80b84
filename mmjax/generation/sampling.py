"""The next token of a text, chosen among likely ones."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from configs.errors import UserError


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: Divides the logits; 0 takes the likeliest.
        top_p: Only the likeliest tokens that together have this probability may come (arXiv 1904.09751); 1 for all.
    """

    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"the temperature is {self.temperature}; it must be 0 (the likeliest token) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}; it is a probability above 0, up to 1")


def sample_tokens(
    logits: Float[Array, "b v"], keys: Key[Array, " b"], sampling: Sampling, sayable: Bool[Array, " v"]
) -> Int[Array, " b"]:
    """The next token of each row, by a key of its own, so that the rows beside it change nothing."""
    logits = jnp.where(sayable[None, :], logits, -jnp.inf)
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1)
    logits = logits / sampling.temperature
    if sampling.top_p < 1:
        logits = jnp.where(top_p_mask(logits, sampling.top_p), logits, -jnp.inf)
    return jax.vmap(jax.random.categorical)(keys, logits)


def top_p_mask(logits: Float[Array, "b v"], top_p: float) -> Bool[Array, "b v"]:
    """The smallest set of the likeliest tokens that have at least this probability together."""
    ordered = jnp.sort(jax.nn.softmax(logits, axis=-1), axis=-1, descending=True)
    before = jnp.cumsum(ordered, axis=-1) - ordered
    least = jnp.min(jnp.where(before < top_p, ordered, jnp.inf), axis=-1, keepdims=True)
    return jax.nn.softmax(logits, axis=-1) >= least
