"""Ring collective matmuls: each step multiplies the local shard while `ppermute` sends it on; on any submesh.

Either shards of the positions (of x, or of a cotangent) are sent around the ranks, and every rank multiplies each of
them; or partial sums are sent, and each rank adds its product to a sum before it sends that to the next rank, until it
reaches the rank that keeps it. Every product is written to its final place, so that no pass after the matmuls restores
the order (DistTrain, arXiv 2408.04275, section 7, overlaps such a pass with the wgrad). The barriers keep XLA from
merging the products into one, which would wait for all of the shards.

In FP8 a weight is rounded once, and a piece of a shard where it is multiplied: ranks send what is not rounded yet.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.collective_matmul.reference import sum_arrays
from pallas_kernels.collective_matmul.tiling import CollectiveTiling
from pallas_kernels.fp8 import MatmulFormat, gradient_operand, operand
from pallas_kernels.matmul import input_gradient, product, weight_gradient
from pallas_kernels.varying import rank_count, zeros_as


@dataclasses.dataclass(frozen=True)
class Ring:
    """The ranks along some mesh axes, and the pieces of shards that they send each other.

    With one ring all pieces of a shard are sent to the next lower rank; with two (bidirectional) the odd pieces are
    sent to the next higher rank.

    Attributes:
        axes: Mesh axes.
        parts: Number of pieces of a shard.
        rings: 1 or 2.
        shard_size: Positions of a shard.
    """

    axes: tuple[str, ...]
    parts: int
    rings: int
    shard_size: int

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return rank_count(self.axes)

    @property
    def part_size(self) -> int:
        """Number of positions of a piece."""
        return self.shard_size // self.parts

    def direction(self, part: int) -> int:
        """1 if a rank receives the piece from the next higher rank, -1 if from the next lower."""
        return -1 if self.rings == 2 and part % 2 else 1

    def receive_shard(self, x: jax.Array, part: int) -> jax.Array:
        """Receives the neighbour's piece, which this rank multiplies next."""
        return self._permute(x, -self.direction(part))

    def receive_sum(self, total: jax.Array, part: int) -> jax.Array:
        """Receives the neighbour's partial sum, sent in the opposite direction to the shards, so both are used."""
        return self._permute(total, self.direction(part))

    def _permute(self, x: jax.Array, offset: int) -> jax.Array:
        return lax.ppermute(x, self.axes, [(rank, (rank + offset) % self.ranks) for rank in range(self.ranks)])

    def shard_start(self, step: int, part: int) -> jax.Array:
        """Global start position of the piece that this rank multiplies at a step."""
        return self._start(step * self.direction(part), part)

    def sum_start(self, step: int, part: int) -> jax.Array:
        """Global start position of the piece whose sum this rank adds to at a step: at the last, of its own shard."""
        return self._start(-(step + 1) * self.direction(part), part)

    def _start(self, ranks_ahead: int, part: int) -> jax.Array:
        owner = (lax.axis_index(self.axes) + ranks_ahead) % self.ranks
        return owner * self.shard_size + part * self.part_size

    def slice_part(self, x: jax.Array, start: jax.Array) -> jax.Array:
        """Slices one piece out of all positions: [..., s, d] -> [..., s / n / parts, d]."""
        return lax.dynamic_slice_in_dim(x, start, self.part_size, axis=x.ndim - 2)

    def split_shard(self, x: jax.Array) -> list[jax.Array]:
        """Splits a shard into its pieces."""
        return jnp.split(x, self.parts, axis=-2)


def gather_matmul(
    x: jax.Array,
    weights: Sequence[jax.Array],
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
) -> tuple[jax.Array, ...]:
    """See `reference.gather_matmul`: shards of x are sent."""
    ring = Ring(axes, tiling.parts, tiling.rings, x.shape[-2])
    positions = ring.ranks * ring.shard_size
    outputs = tuple(zeros_as(x, w, shape=(*x.shape[:-2], positions, w.shape[1]), dtype=x.dtype) for w in weights)
    shards, operands = ring.split_shard(x), tuple(operand(w, matmul_format) for w in weights)
    for step in range(ring.ranks):
        for part in range(ring.parts):
            shard, outputs, operands = lax.optimization_barrier((shards[part], outputs, operands))
            shards[part] = ring.receive_shard(shard, part) if step + 1 < ring.ranks else shard
            multiplied = operand(shard, matmul_format)
            products = (product(multiplied, w).astype(x.dtype) for w in operands)
            start = ring.shard_start(step, part)
            outputs = tuple(_write(y, output, start) for y, output in zip(products, outputs, strict=True))
    return outputs


def gather_matmul_backward(
    x: jax.Array,
    weights: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `reference.gather_matmul_backward`: shards of x are sent for the wgrads, sums of the dgrad against them."""
    ring = Ring(axes, tiling.parts, tiling.rings, x.shape[-2])
    wgrads = tuple(zeros_as(x, y, shape=w.shape, dtype=jnp.float32) for w, y in zip(weights, cotangents, strict=True))
    shards, operands = ring.split_shard(x), tuple(operand(w, matmul_format) for w in weights)
    dgrads: list[Any] = [None] * ring.parts
    for step in range(ring.ranks):
        for part in range(ring.parts):
            shard, dgrad, wgrads, operands = lax.optimization_barrier((shards[part], dgrads[part], wgrads, operands))
            shards[part] = ring.receive_shard(shard, part) if step + 1 < ring.ranks else shard
            start = ring.shard_start(step, part)
            shard_cotangents = [gradient_operand(ring.slice_part(y, start), matmul_format) for y in cotangents]
            multiplied = operand(shard, matmul_format)
            pairs = zip(wgrads, shard_cotangents, strict=True)
            wgrads = tuple(wgrad + weight_gradient(multiplied, y) for wgrad, y in pairs)
            # XLA runs one collective at a time: the shard is sent during the products above, the sum during the
            # products below
            shards[part], dgrad, wgrads, operands = lax.optimization_barrier((shards[part], dgrad, wgrads, operands))
            received = ring.receive_sum(dgrad, part) if step else None
            start = ring.sum_start(step, part)
            sum_cotangents = [gradient_operand(ring.slice_part(y, start), matmul_format) for y in cotangents]
            summand = sum_arrays([input_gradient(y, w) for y, w in zip(sum_cotangents, operands, strict=True)])
            dgrads[part] = _add_rounded(received, summand, x.dtype)
    return jnp.concatenate(dgrads, axis=-2), wgrads


def matmul_scatter(
    x: jax.Array, w: jax.Array, axes: tuple[str, ...], tiling: CollectiveTiling, matmul_format: MatmulFormat
) -> jax.Array:
    """See `reference.matmul_scatter`: partial sums are sent."""
    ring = Ring(axes, tiling.parts, tiling.rings, x.shape[-2] // rank_count(axes))
    weight = operand(w, matmul_format)
    totals: list[Any] = [None] * ring.parts
    for step in range(ring.ranks):
        for part in range(ring.parts):
            total, weight = lax.optimization_barrier((totals[part], weight))
            received = ring.receive_sum(total, part) if step else None
            multiplied = operand(ring.slice_part(x, ring.sum_start(step, part)), matmul_format)
            totals[part] = _add_rounded(received, product(multiplied, weight), x.dtype)
    return jnp.concatenate(totals, axis=-2)


def matmul_scatter_backward(
    x: jax.Array,
    w: jax.Array,
    cotangent: jax.Array,
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
) -> tuple[jax.Array, jax.Array]:
    """See `reference.matmul_scatter_backward`: shards of the cotangent are sent and serve both gradients."""
    ring = Ring(axes, tiling.parts, tiling.rings, cotangent.shape[-2])
    wgrad = zeros_as(x, cotangent, shape=w.shape, dtype=jnp.float32)
    dgrad = zeros_as(cotangent, w, shape=x.shape, dtype=x.dtype)
    shards, weight = ring.split_shard(cotangent), operand(w, matmul_format)
    for step in range(ring.ranks):
        for part in range(ring.parts):
            shard, wgrad, dgrad, weight = lax.optimization_barrier((shards[part], wgrad, dgrad, weight))
            shards[part] = ring.receive_shard(shard, part) if step + 1 < ring.ranks else shard
            start = ring.shard_start(step, part)
            multiplied = gradient_operand(shard, matmul_format)
            wgrad = wgrad + weight_gradient(operand(ring.slice_part(x, start), matmul_format), multiplied)
            dgrad = _write(input_gradient(multiplied, weight).astype(x.dtype), dgrad, start)
    return dgrad, wgrad


def matmul_sum(
    x: jax.Array, w: jax.Array, axes: tuple[str, ...], chunks: int, matmul_format: MatmulFormat
) -> jax.Array:
    """See `reference.matmul_sum`: the all-reduce of one chunk overlaps with the product of the next.

    This is not a ring: the result is replicated, so that a ring would need a second pass, an all-gather.
    """
    sums, weight = [], operand(w, matmul_format)
    for chunk in jnp.split(x, chunks, axis=-2):
        chunk, weight = lax.optimization_barrier((chunk, weight))
        sums.append(lax.psum(product(operand(chunk, matmul_format), weight).astype(x.dtype), axes))
    return jnp.concatenate(sums, axis=-2)


def _write(y: jax.Array, output: jax.Array, start: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(output, y, start, axis=output.ndim - 2)


def _add_rounded(received: jax.Array | None, summand: jax.Array, dtype: Any) -> jax.Array:
    """A received sum, if there is one, plus a product in float32, rounded once."""
    if received is None:
        return summand.astype(dtype)
    # Without the barrier cuBLAS's matmul adds the received sum itself, and waits for it.
    total, summand = lax.optimization_barrier((received, summand))
    return (total.astype(jnp.float32) + summand).astype(dtype)
