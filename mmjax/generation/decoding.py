"""Autoregressive decoding in one compiled program: prefill of all prompts, then one token of each row at a time.

`trained_model.py` compiles `decode_answers`; `kv_cache.py` computes the backbone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from mmjax.generation.kv_cache import CachedBackbone, DecodeState
from mmjax.generation.sampling import Sampling, penalise_repetition, sample_tokens
from mmjax.models.structure.module import ModuleInputs
from sharding.trees import Tree


class DecodedTokens(NamedTuple):
    """The tokens that were decoded after each prompt.

    Attributes:
        tokens: Token ids; undefined after the end of an answer.
        counts: Number of tokens of each answer, without its end token.
        ended: Whether the model ended the answer.
    """

    tokens: Int[Array, "b n"]
    counts: Int[Array, " b"]
    ended: Bool[Array, " b"]


class _LoopState(NamedTuple):
    number: Int[Array, ""]
    state: DecodeState
    token: Int[Array, " b"]
    decoded: DecodedTokens
    seen: Bool[Array, "b v"]  # which tokens prompt and answer have


def decode_answers(
    backbone: CachedBackbone,
    parameters: Tree,
    arrays: dict[str, ModuleInputs],
    lengths: Int[Array, " b"],
    seeds: Int[Array, " b"],
    allowed_tokens: Bool[Array, " v"],
    *,
    end_token: int,
    max_tokens: int,
    sampling: Sampling,
) -> DecodedTokens:
    """Decodes the answers to prompts, one a row; each depends on its own prompt and seed alone.

    Args:
        backbone: The model's backbone.
        parameters: Parameters of the whole model.
        arrays: Arrays of the prompts, by module.
        lengths: Number of tokens of each prompt.
        seeds: Seed of each prompt.
        allowed_tokens: Whether each id may be decoded; the end token must be allowed.
        end_token: The id that ends an answer.
        max_tokens: Largest number of tokens of an answer; a row must have room for all but the last.
        sampling: Settings of the choice of tokens.
    """
    rows = lengths.shape[0]
    room = arrays[backbone.name]["tokens"].shape[1] - lengths + 1
    row_max_tokens = jnp.minimum(room, max_tokens)  # [b]

    def keys(number: jax.Array) -> jax.Array:
        return jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), number))(seeds)

    def choose(logits: jax.Array, number: jax.Array, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the token with this number of every answer, and the tokens seen then."""
        if sampling.repetition_penalty != 1:
            logits = penalise_repetition(logits, seen, sampling.repetition_penalty)
        token = sample_tokens(logits, keys(number), sampling, allowed_tokens).astype(jnp.int32)
        return token, seen.at[jnp.arange(rows), token].set(True)

    def append(decoded: DecodedTokens, token: jax.Array, number: jax.Array) -> DecodedTokens:
        """Adds the token with this number to every answer that has not ended."""
        is_active = ~decoded.ended & (number < row_max_tokens)
        ended = decoded.ended | (is_active & (token == end_token))
        tokens = decoded.tokens.at[:, number].set(token)
        return DecodedTokens(tokens, decoded.counts + (is_active & ~ended).astype(jnp.int32), ended)

    def is_unfinished(loop: _LoopState) -> jax.Array:
        return jnp.any(~loop.decoded.ended & (loop.number < row_max_tokens))

    def step(loop: _LoopState) -> _LoopState:
        state, logits = backbone.decode(parameters, loop.state, loop.token)
        token, seen = choose(logits, loop.number, loop.seen)
        return _LoopState(loop.number + 1, state, token, append(loop.decoded, token, loop.number), seen)

    state, hidden = backbone.prefill(parameters, arrays, lengths)
    logits = backbone.logits_at(parameters, hidden, lengths - 1)
    prompts = arrays[backbone.name]["tokens"]  # [b, s]
    is_prompt = jnp.arange(prompts.shape[1])[None] < lengths[:, None]
    seen = jnp.zeros(logits.shape, jnp.bool_).at[jnp.arange(rows)[:, None], prompts].max(is_prompt)
    token, seen = choose(logits, jnp.int32(0), seen)
    empty = DecodedTokens(
        jnp.zeros((rows, max_tokens), jnp.int32), jnp.zeros((rows,), jnp.int32), jnp.zeros((rows,), jnp.bool_)
    )
    start = _LoopState(jnp.int32(1), state, token, append(empty, token, jnp.int32(0)), seen)
    return jax.lax.while_loop(is_unfinished, step, start).decoded
