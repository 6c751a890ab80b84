"""Chunks of the vocabulary: the logits of a few rows of the embedding table, and a loop over all chunks.

`chunked_logits.py` sums functions of the logits by them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import CustomVJPPrimal
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.varying import zeros_as

CHUNK_BYTES = 2**26
"""Bytes of the logits of a chunk, unless it would have fewer than `MIN_CHUNK` rows of the table."""
MIN_CHUNK = 1024
_CHUNK_MULTIPLE = 128

PADDING_LOGIT = -1e9
"""Logit of padding: its exponential is 0 beside any other, and losses that compute with it stay finite."""


class VocabularyChunk(NamedTuple):
    """Logits of some tokens of the vocabulary.

    Attributes:
        logits: float32; `PADDING_LOGIT` where `is_counted` is False.
        token_ids: The tokens, as numbers in the whole vocabulary.
        is_counted: False for padding, whose numbers are behind the vocabulary, and for tokens that another chunk has.
    """

    logits: Float[Array, "r s c"]
    token_ids: Int[Array, "1 1 c"]
    is_counted: Bool[Array, "1 1 c"]


@dataclasses.dataclass(frozen=True)
class ChunkOptions:
    """What is known before a program runs: size of the vocabulary, cap of the logits, rows of a chunk."""

    vocabulary: int
    softcap: float
    chunk: int


def chunk_rows(positions: int, local_rows: int) -> int:
    """Rows of the table in a chunk, for so many positions and rows of this rank."""
    fitting = CHUNK_BYTES // (4 * positions) // _CHUNK_MULTIPLE * _CHUNK_MULTIPLE
    return min(max(fitting, MIN_CHUNK), local_rows)


def _chunk_start(options: ChunkOptions, table: jax.Array, number: jax.Array) -> jax.Array:
    """First row of a chunk; the last chunk begins early where chunks do not divide the table."""
    return jnp.minimum(number * options.chunk, table.shape[0] - options.chunk)


def _chunk_count(options: ChunkOptions, table: jax.Array) -> int:
    return -(-table.shape[0] // options.chunk)


def _table_rows(options: ChunkOptions, table: jax.Array, number: jax.Array) -> Float[Array, "c d"]:
    return lax.dynamic_slice_in_dim(table, _chunk_start(options, table, number), options.chunk)


def compute_chunk(
    options: ChunkOptions, hidden: jax.Array, table: jax.Array, first_token: jax.Array, number: jax.Array
) -> VocabularyChunk:
    """Computes a chunk's logits, hidden @ rows^T.

    Args:
        options: Sizes, and the cap of the logits.
        hidden: Hidden states `[r, s, d]`.
        table: This rank's rows of the embedding table `[v, d]`.
        first_token: Number of its first row in the whole vocabulary.
        number: Number of the chunk.
    """
    rows = _table_rows(options, table, number)
    logits = jnp.einsum("rsd,cd->rsc", hidden, rows, preferred_element_type=jnp.float32)
    if options.softcap:
        logits = options.softcap * jnp.tanh(logits / options.softcap)
    local = _chunk_start(options, table, number) + jnp.arange(options.chunk, dtype=jnp.int32)[None, None]
    token_ids = first_token + local
    is_counted = (local >= number * options.chunk) & (token_ids < options.vocabulary)
    return VocabularyChunk(jnp.where(is_counted, logits, PADDING_LOGIT), token_ids, is_counted)


def scan_chunks(
    options: ChunkOptions, table: jax.Array, body: Callable[[Any, jax.Array], Any], carry: Any, *, reverse: bool = False
) -> Any:
    """Runs `body(carry, number of a chunk)` for every chunk; in reverse order if asked."""
    numbers = jnp.arange(_chunk_count(options, table), dtype=jnp.int32)
    return lax.scan(lambda carry, number: (body(carry, number), None), carry, numbers, reverse=reverse)[0]


def chunk_gradients(
    options: ChunkOptions,
    saved: "SavedOperands",
    cotangents_of: Callable[[VocabularyChunk], tuple[jax.Array, Any]],
    extra: Any,
) -> tuple[jax.Array | None, jax.Array | None, Any]:
    """Gradients by hidden states and table, and the sum over chunks of whatever else a function returns.

    Args:
        options: Sizes, and the cap of the logits.
        saved: The operands, and which gradients are asked for.
        cotangents_of: From a chunk to the cotangent of its logits, in float32, and a tree like `extra`.
        extra: Zeros in the form of what the function returns besides.
    """
    hidden, table, first_token, by_hidden, by_table = saved

    def add(carry: Any, number: jax.Array) -> Any:
        hidden_sum, table_gradient, extra_sum = carry
        chunk = compute_chunk(options, hidden, table, first_token, number)
        cotangent, extra_terms = cotangents_of(chunk)
        cotangent = jnp.where(chunk.is_counted, cotangent, 0.0)
        if options.softcap:
            cotangent = cotangent * (1 - jnp.square(chunk.logits / options.softcap))
        cotangent = cotangent.astype(hidden.dtype)
        if by_hidden is not None:
            rows = _table_rows(options, table, number)
            hidden_sum += jnp.einsum("rsc,cd->rsd", cotangent, rows, preferred_element_type=jnp.float32)
        if by_table is not None:
            product = jnp.einsum("rsc,rsd->cd", cotangent, hidden, preferred_element_type=jnp.float32)
            table_gradient = lax.dynamic_update_slice_in_dim(
                table_gradient, product.astype(table.dtype), _chunk_start(options, table, number), axis=0
            )
        return hidden_sum, table_gradient, jax.tree.map(jnp.add, extra_sum, extra_terms)

    start = (
        None if by_hidden is None else zeros_as(hidden, shape=hidden.shape, dtype=jnp.float32),
        None if by_table is None else zeros_as(table, shape=table.shape, dtype=table.dtype),
        extra,
    )
    # The last chunk first: the rows of it that another chunk has are zeros, which that chunk replaces.
    hidden_sum, table_gradient, extra = scan_chunks(options, table, add, start, reverse=True)
    return None if hidden_sum is None else hidden_sum.astype(hidden.dtype), table_gradient, extra


class SavedOperands(NamedTuple):
    """Operands that a backward needs.

    `by_hidden` and `by_table` are () where that gradient is asked for, else None: neither has arrays, so that both are
    known while a backward is traced.
    """

    hidden: jax.Array
    table: jax.Array
    first_token: jax.Array
    by_hidden: tuple[()] | None
    by_table: tuple[()] | None


def save_operands(hidden: CustomVJPPrimal, table: CustomVJPPrimal, first_token: CustomVJPPrimal) -> SavedOperands:
    """Returns the operands with which of them are differentiated, as a `custom_vjp` with symbolic zeros gives them."""
    asked = [() if operand.perturbed else None for operand in (hidden, table)]
    return SavedOperands(hidden.value, table.value, first_token.value, *asked)
