"""Sums over the vocabulary of functions of the logits, chunk by chunk of the vocabulary; the logits are never whole.

The logits of 8,192 positions and 152,000 tokens in float32 take 5 GB, and their gradient as much. Here a loop computes
the logits of a few rows of the embedding table, and adds what they contribute. The backward computes every chunk's
logits again, one more forward of the matmul. A chunk of the vocabulary has rows of the table's gradient of its own,
which are written once; a chunk of positions would need a sum of the whole gradient in float32 over all chunks.

Products are of operands in compute precision, the cotangents of the logits too; sums are in float32.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, Float, Int

from mmjax.models.layers.tensor_parallel import SMALL_RESULT_CHECKPOINT_NAME, first_vocabulary_row
from mmjax.models.layers.vocabulary_chunks import (
    PADDING_LOGIT,
    ChunkOptions,
    VocabularyChunk,
    chunk_gradients,
    chunk_rows,
    compute_chunk,
    save_operands,
    scan_chunks,
)
from pallas_kernels.varying import equally_varying, zeros_as
from sharding.axes import Axes


class LogitSums(NamedTuple):
    """What the cross-entropy needs of this rank's logits.

    Attributes:
        largest: The largest logit; no gradient passes through it.
        exp_sum: Sum of exp(logit - largest).
        target_logits: Logit of the target, or 0 if it is not among this rank's tokens.
        logit_sum: Sum of the logits.
    """

    largest: Float[Array, "r s"]
    exp_sum: Float[Array, "r s"]
    target_logits: Float[Array, "r s"]
    logit_sum: Float[Array, "r s"]


@dataclasses.dataclass(frozen=True, eq=False)
class ChunkedLogits:
    """The logits of hidden states at all positions, for this rank's rows of the embedding table.

    Attributes:
        hidden: Hidden states, the same on all tensor ranks.
        table: This rank's rows of the table. Ranks have equally many: where they do not divide the vocabulary, the last
            ones have padding.
        first_token: Number of the first row in the whole vocabulary.
        options: Sizes and the cap of the logits.
    """

    hidden: Float[Array, "r s d"]
    table: Float[Array, "v d"]
    first_token: Int[Array, ""]
    options: ChunkOptions

    def whole(self) -> Float[Array, "r s v"]:
        """All of this rank's logits at once, in float32: for a few positions, or a small vocabulary."""
        rows = self.table.shape[0]
        whole = dataclasses.replace(self.options, chunk=rows)
        return compute_chunk(whole, self.hidden, self.table, self.first_token, jnp.int32(0)).logits

    def sums(self, targets: Int[Array, "r s"]) -> LogitSums:
        """The sums that the cross-entropy with these targets, numbers in the whole vocabulary, needs."""
        hidden, table, first, targets = equally_varying(self.hidden, self.table, self.first_token, targets)
        return _logit_sums(self.options, hidden, table, first, targets)

    def sum(self, function: Callable[[VocabularyChunk], jax.Array]) -> Float[Array, "r s"]:
        """Sums a function's values `[r, s, c]` for each chunk; it may use arrays `[r, s]` from outside.

        Args:
            function: Called with a chunk; the values of logits that do not count are left out.
        """

        def values(logits: jax.Array, token_ids: jax.Array, is_counted: jax.Array) -> jax.Array:
            return function(VocabularyChunk(logits, token_ids, is_counted))

        hidden, table, first = equally_varying(self.hidden, self.table, self.first_token)
        # What the function takes from outside becomes an argument, by which it can be differentiated.
        closed = jax.make_jaxpr(values)(*compute_chunk(self.options, hidden, table, first, jnp.int32(0)))
        outer, inputs = tuple(closed.consts), len(closed.consts)
        opened = closed.jaxpr.replace(constvars=[], invars=[*closed.jaxpr.constvars, *closed.jaxpr.invars])
        function_of_all = jaxpr_as_fun(ClosedJaxpr(opened, ()))

        def converted(*operands: jax.Array) -> jax.Array:
            return function_of_all(*operands[-inputs:] if inputs else (), *operands[:3])[0]

        return _sum_over_chunks(self.options, converted, hidden, table, first, outer)


def chunked_logits(
    hidden: Float[Array, "r s d"], table: Float[Array, "v d"], vocabulary: int, axes: Axes, *, softcap: float = 0.0
) -> ChunkedLogits:
    """The logits hidden @ table^T, capped as softcap * tanh(logit / softcap) if a cap is given.

    Args:
        hidden: Hidden states at all positions.
        table: This rank's rows of the embedding table.
        vocabulary: Size of the whole vocabulary.
        axes: Mesh axes.
        softcap: The cap; 0 for none.
    """
    chunk = chunk_rows(hidden.shape[0] * hidden.shape[1], table.shape[0])
    first = jnp.asarray(first_vocabulary_row(table.shape[0], axes), jnp.int32)
    return ChunkedLogits(hidden, table, first, ChunkOptions(vocabulary, softcap, chunk))


# ------------------------------------------------------------------ sums for the cross-entropy


def _compute_logit_sums(
    options: ChunkOptions, hidden: jax.Array, table: jax.Array, first_token: jax.Array, targets: jax.Array
) -> LogitSums:
    def add(sums: LogitSums, number: jax.Array) -> LogitSums:
        chunk = compute_chunk(options, hidden, table, first_token, number)
        largest = jnp.maximum(sums.largest, jnp.max(chunk.logits, axis=-1))
        is_target = chunk.is_counted & (chunk.token_ids == targets[..., None])
        return LogitSums(
            largest,
            sums.exp_sum * jnp.exp(sums.largest - largest) + jnp.sum(jnp.exp(chunk.logits - largest[..., None]), -1),
            sums.target_logits + jnp.sum(jnp.where(is_target, chunk.logits, 0.0), -1),
            sums.logit_sum + jnp.sum(jnp.where(chunk.is_counted, chunk.logits, 0.0), -1),
        )

    zeros = zeros_as(hidden, shape=hidden.shape[:-1], dtype=jnp.float32)
    start = LogitSums(zeros + PADDING_LOGIT, zeros, zeros, zeros)
    return scan_chunks(options, table, add, start)


_logit_sums = jax.custom_vjp(_compute_logit_sums, nondiff_argnums=(0,))


def _logit_sums_forward(
    options: ChunkOptions,
    hidden: CustomVJPPrimal,
    table: CustomVJPPrimal,
    first_token: CustomVJPPrimal,
    targets: CustomVJPPrimal,
) -> tuple[LogitSums, tuple]:
    sums = _compute_logit_sums(options, hidden.value, table.value, first_token.value, targets.value)
    # Every recomputation policy saves them, so that none computes all logits for them again.
    sums = LogitSums(*(checkpoint_name(values, SMALL_RESULT_CHECKPOINT_NAME) for values in sums))
    return sums, (save_operands(hidden, table, first_token), targets.value, sums.largest)


def _logit_sums_backward(options: ChunkOptions, residuals: tuple, cotangents: LogitSums) -> tuple:
    saved, targets, largest = residuals

    def cotangents_of(chunk: VocabularyChunk) -> tuple[jax.Array, None]:
        is_target = chunk.token_ids == targets[..., None]
        by_logits = jnp.zeros_like(chunk.logits)
        if not isinstance(cotangents.exp_sum, SymbolicZero):
            by_logits += cotangents.exp_sum[..., None] * jnp.exp(chunk.logits - largest[..., None])
        if not isinstance(cotangents.target_logits, SymbolicZero):
            by_logits += jnp.where(is_target, cotangents.target_logits[..., None], 0.0)
        if not isinstance(cotangents.logit_sum, SymbolicZero):
            by_logits += cotangents.logit_sum[..., None]
        return by_logits, None

    hidden, table, _ = chunk_gradients(options, saved, cotangents_of, None)
    return hidden, table, None, None


_logit_sums.defvjp(_logit_sums_forward, _logit_sums_backward, symbolic_zeros=True)


# ------------------------------------------------------------------ sums of any function


def _compute_sum(
    options: ChunkOptions,
    function: Callable[..., jax.Array],
    hidden: jax.Array,
    table: jax.Array,
    first_token: jax.Array,
    outer: tuple[jax.Array, ...],
) -> Float[Array, "r s"]:
    """Sum over the chunks of `function(logits, token ids, is counted, *outer)`."""

    def add(total: jax.Array, number: jax.Array) -> jax.Array:
        chunk = compute_chunk(options, hidden, table, first_token, number)
        return total + _sum_chunk(function, chunk, chunk.logits, outer)

    return scan_chunks(options, table, add, zeros_as(hidden, shape=hidden.shape[:-1], dtype=jnp.float32))


def _sum_chunk(
    function: Callable[..., jax.Array], chunk: VocabularyChunk, logits: jax.Array, outer: tuple[jax.Array, ...]
) -> Float[Array, "r s"]:
    values = function(logits, chunk.token_ids, chunk.is_counted, *outer).astype(jnp.float32)
    return jnp.sum(jnp.where(chunk.is_counted, values, 0.0), axis=-1)


_sum_over_chunks = jax.custom_vjp(_compute_sum, nondiff_argnums=(0, 1))


def _sum_forward(
    options: ChunkOptions,
    function: Callable[..., jax.Array],
    hidden: CustomVJPPrimal,
    table: CustomVJPPrimal,
    first_token: CustomVJPPrimal,
    outer: tuple[CustomVJPPrimal, ...],
) -> tuple[jax.Array, tuple]:
    values = tuple(operand.value for operand in outer)
    total = _compute_sum(options, function, hidden.value, table.value, first_token.value, values)
    return total, (save_operands(hidden, table, first_token), values)


def _sum_backward(
    options: ChunkOptions, function: Callable[..., jax.Array], residuals: tuple, cotangent: jax.Array
) -> tuple:
    saved, outer = residuals
    floats = {number: x for number, x in enumerate(outer) if jnp.issubdtype(x.dtype, jnp.inexact)}

    def cotangents_of(chunk: VocabularyChunk) -> tuple[jax.Array, Any]:
        def of_floats(logits: jax.Array, floats: dict[int, jax.Array]) -> jax.Array:
            return _sum_chunk(function, chunk, logits, tuple((dict(enumerate(outer)) | floats).values()))

        _, pull = jax.vjp(of_floats, chunk.logits, floats)
        return pull(cotangent)

    zeros = {number: zeros_as(x, shape=x.shape, dtype=x.dtype) for number, x in floats.items()}
    hidden, table, by_float = chunk_gradients(options, saved, cotangents_of, zeros)
    return hidden, table, None, tuple(by_float.get(number) for number in range(len(outer)))


_sum_over_chunks.defvjp(_sum_forward, _sum_backward, symbolic_zeros=True)
