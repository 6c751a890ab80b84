"""Writing answers: prompts read at once, then a token of each in turn, in one program."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from mmjax.generation.kv_cache import CachedBackbone, DecodeState
from mmjax.generation.sampling import Sampling, sample_tokens
from sharding.trees import Tree


class DecodedTokens(NamedTuple):
    """What was written behind each prompt.

    Attributes:
        tokens: Ids; behind the end of an answer anything.
        counts: Tokens of each answer, without the one that ends it.
        ended: Whether the model ended it.
    """

    tokens: Int[Array, "b n"]
    counts: Int[Array, " b"]
    ended: Bool[Array, " b"]


class _Progress(NamedTuple):
    number: Int[Array, ""]
    texts: DecodeState
    token: Int[Array, " b"]
    written: DecodedTokens


def decode_answers(
    backbone: CachedBackbone,
    parameters: Tree,
    arrays: Mapping[str, Mapping[str, jax.Array]],
    lengths: Int[Array, " b"],
    seeds: Int[Array, " b"],
    allowed_tokens: Bool[Array, " v"],
    *,
    end_token: int,
    max_tokens: int,
    sampling: Sampling,
) -> DecodedTokens:
    """Answers to prompts, one a row; each depends on its own prompt and seed alone.

    Args:
        backbone: Of the model.
        parameters: Of the whole model.
        arrays: The prompts.
        lengths: Tokens of each.
        seeds: One a prompt.
        sayable: Ids that may come.
        end: The id that ends an answer; it may come too.
        most: Tokens of an answer at most; a row must have room for all but the last.
        sampling: How tokens are chosen.
    """
    rows = lengths.shape[0]
    room = arrays[backbone.name]["tokens"].shape[1] - lengths + 1
    most_of = jnp.minimum(room, max_tokens)

    def keys(number: jax.Array) -> jax.Array:
        return jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), number))(seeds)

    def take(written: DecodedTokens, token: jax.Array, number: jax.Array) -> DecodedTokens:
        """Notes the token of every answer that goes on."""
        going = ~written.ended & (number < most_of)
        ended = written.ended | (going & (token == end_token))
        tokens = written.tokens.at[:, number].set(token)
        return DecodedTokens(tokens, written.counts + (going & ~ended).astype(jnp.int32), ended)

    def unfinished(now: _Progress) -> jax.Array:
        return jnp.any(~now.written.ended & (now.number < most_of))

    def step(now: _Progress) -> _Progress:
        texts, logits = backbone.decode(parameters, now.texts, now.token)
        token = sample_tokens(logits, keys(now.number), sampling, allowed_tokens).astype(jnp.int32)
        return _Progress(now.number + 1, texts, token, take(now.written, token, now.number))

    texts, hidden = backbone.prefill(parameters, arrays, lengths)
    first = sample_tokens(
        backbone.logits_at(parameters, hidden, lengths - 1), keys(jnp.int32(0)), sampling, allowed_tokens
    )
    nothing = DecodedTokens(
        jnp.zeros((rows, max_tokens), jnp.int32), jnp.zeros((rows,), jnp.int32), jnp.zeros((rows,), jnp.bool_)
    )
    first = first.astype(jnp.int32)
    start = _Progress(jnp.int32(1), texts, first, take(nothing, first, jnp.int32(0)))
    return jax.lax.while_loop(unfinished, step, start).written
