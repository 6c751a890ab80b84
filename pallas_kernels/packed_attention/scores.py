"""Scores of attention: scaled products of queries and keys, perhaps limited by a soft cap."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class ScoreOptions:
    """How products of queries and keys become scores.

    Attributes:
        scale: Factor of the products.
        softcap: Scores are softcap * tanh(score / softcap) (Gemma 2, arXiv 2408.00118); 0 for no limit.
    """

    scale: float
    softcap: float = 0.0

    def scores(self, products: jax.Array) -> jax.Array:
        """Scores of products in float32."""
        scores = products * self.scale
        return self.softcap * jnp.tanh(scores / self.softcap) if self.softcap else scores

    def score_derivative(self, scores: jax.Array) -> jax.Array | float:
        """Derivative of the scores by the products, given the scores."""
        return self.scale * (1.0 - jnp.square(scores / self.softcap)) if self.softcap else self.scale
