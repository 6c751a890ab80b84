"""The ring: every step multiplies what is here while `ppermute` brings the next, on any submesh.

Shares of the positions (of x, or of a gradient) travel around the ranks and are multiplied wherever they are; or sums
travel, and each rank adds its product on the way to the rank that keeps them. Each product goes to its final place, so
that there is no pass that restores the order behind the matmuls (DistTrain, arXiv 2408.04275, section 7, hides such a
pass behind the weight gradient). The barriers keep XLA from merging the products to one, which would wait for all.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.collective_matmul.reference import input_gradient, matmul_float32, sum_arrays, weight_gradient
from pallas_kernels.collective_matmul.tiling import CollectiveTiling
from pallas_kernels.varying import make_varying, rank_count, varying_axes


@dataclasses.dataclass(frozen=True)
class Ring:
    """The ranks along some mesh axes, and the parts that travel among them.

    Part p of a share goes to lower ranks, or with two rings every second one to higher ranks.

    Attributes:
        axes: Mesh axes.
        parts: Parts of a share.
        rings: 1 or 2.
        share: Positions of a share.
    """

    axes: tuple[str, ...]
    parts: int
    rings: int
    share: int

    @property
    def ranks(self) -> int:
        """How many there are."""
        return rank_count(self.axes)

    @property
    def size(self) -> int:
        """Positions of a part."""
        return self.share // self.parts

    def direction(self, part: int) -> int:
        """1 if a rank gets the part of the next higher rank, -1 if that of the next lower."""
        return -1 if self.rings == 2 and part % 2 else 1

    def receive(self, x: jax.Array, part: int) -> jax.Array:
        """What the neighbour has whose share this rank multiplies next."""
        return self._permute(x, -self.direction(part))

    def pass_on(self, total: jax.Array, part: int) -> jax.Array:
        """A sum on its way to the rank that keeps it: sums go against the shares, on the links' other lanes."""
        return self._permute(total, self.direction(part))

    def _permute(self, x: jax.Array, by: int) -> jax.Array:
        return lax.ppermute(x, self.axes, [(rank, (rank + by) % self.ranks) for rank in range(self.ranks)])

    def here(self, step: int, part: int) -> jax.Array:
        """First position, of all shares, of the part that this rank has at a step."""
        return self._first(step * self.direction(part), part)

    def due(self, step: int, part: int) -> jax.Array:
        """First position, of all shares, of the part whose sum this rank adds to at a step; at the last its own."""
        return self._first(-(step + 1) * self.direction(part), part)

    def _first(self, ahead: int, part: int) -> jax.Array:
        owner = (lax.axis_index(self.axes) + ahead) % self.ranks
        return owner * self.share + part * self.size

    def cut(self, x: jax.Array, first: jax.Array) -> jax.Array:
        """One part of all positions `[..., s, d]`."""
        return lax.dynamic_slice_in_dim(x, first, self.size, axis=x.ndim - 2)

    def split(self, x: jax.Array) -> list[jax.Array]:
        """The parts of a share."""
        return jnp.split(x, self.parts, axis=-2)


def gather_matmul(
    x: jax.Array, weights: Sequence[jax.Array], axes: tuple[str, ...], tiling: CollectiveTiling, dtype: np.dtype
) -> tuple[jax.Array, ...]:
    """Every rank's positions times every weight."""
    ring = Ring(axes, tiling.parts, tiling.rings, x.shape[-2])
    made = tuple(_blank((*x.shape[:-2], ring.ranks * ring.share, w.shape[1]), dtype, (x, w)) for w in weights)
    held, weights = ring.split(x), tuple(weights)
    for step in range(ring.ranks):
        for part in range(ring.parts):
            here, made, weights = lax.optimization_barrier((held[part], made, weights))
            held[part] = ring.receive(here, part) if step + 1 < ring.ranks else here
            products = (matmul_float32(here, w).astype(dtype) for w in weights)
            made = tuple(_put(y, at, ring.here(step, part)) for y, at in zip(products, made, strict=True))
    return made


def gather_matmul_backward(
    x: jax.Array,
    weights: Sequence[jax.Array],
    gradients: Sequence[jax.Array],
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Gradients of x and of the weights: shares of x go around one way for these, sums the other way for that."""
    ring = Ring(axes, tiling.parts, tiling.rings, x.shape[-2])
    made = tuple(_blank(w.shape, jnp.float32, (x, y)) for w, y in zip(weights, gradients, strict=True))
    held, weights = ring.split(x), tuple(weights)
    totals: list[Any] = [None] * ring.parts
    for step in range(ring.ranks):
        for part in range(ring.parts):
            here, total, made, weights = lax.optimization_barrier((held[part], totals[part], made, weights))
            held[part] = ring.receive(here, part) if step + 1 < ring.ranks else here
            known = [ring.cut(y, ring.here(step, part)) for y in gradients]
            made = tuple(total + weight_gradient(here, y) for total, y in zip(made, known, strict=True))
            # XLA has one collective under way at a time: the share travels beside these products, the sum beside those
            held[part], total, made, weights = lax.optimization_barrier((held[part], total, made, weights))
            came = ring.pass_on(total, part) if step else None
            parts = [ring.cut(y, ring.due(step, part)) for y in gradients]
            mine = sum_arrays([input_gradient(y, w) for y, w in zip(parts, weights, strict=True)])
            totals[part] = _plus(came, mine, x.dtype)
    return jnp.concatenate(totals, axis=-2), made


def matmul_scatter(x: jax.Array, w: jax.Array, axes: tuple[str, ...], tiling: CollectiveTiling) -> jax.Array:
    """This rank's positions of the ranks' sum of x @ w."""
    ring = Ring(axes, tiling.parts, tiling.rings, x.shape[-2] // rank_count(axes))
    totals: list[Any] = [None] * ring.parts
    for step in range(ring.ranks):
        for part in range(ring.parts):
            total, w = lax.optimization_barrier((totals[part], w))
            came = ring.pass_on(total, part) if step else None
            totals[part] = _plus(came, matmul_float32(ring.cut(x, ring.due(step, part)), w), x.dtype)
    return jnp.concatenate(totals, axis=-2)


def matmul_scatter_backward(
    x: jax.Array, w: jax.Array, gradient: jax.Array, axes: tuple[str, ...], tiling: CollectiveTiling
) -> tuple[jax.Array, jax.Array]:
    """Gradients of x and w: shares of the result's gradient go around and serve both."""
    ring = Ring(axes, tiling.parts, tiling.rings, gradient.shape[-2])
    made = _blank(w.shape, jnp.float32, (x, gradient))
    back = _blank(x.shape, x.dtype, (gradient, w))
    held = ring.split(gradient)
    for step in range(ring.ranks):
        for part in range(ring.parts):
            here, made, back, w = lax.optimization_barrier((held[part], made, back, w))
            held[part] = ring.receive(here, part) if step + 1 < ring.ranks else here
            first = ring.here(step, part)
            made = made + weight_gradient(ring.cut(x, first), here)
            back = _put(input_gradient(here, w).astype(x.dtype), back, first)
    return back, made


def matmul_sum(x: jax.Array, w: jax.Array, axes: tuple[str, ...], chunks: int) -> jax.Array:
    """The ranks' sum of x @ w on all of them: one chunk's sum travels beside the next one's product.

    No ring: of what all ranks get whole, every rank would have to pass everything on.
    """
    sums = []
    for chunk in jnp.split(x, chunks, axis=-2):
        chunk, w = lax.optimization_barrier((chunk, w))
        sums.append(lax.psum(matmul_float32(chunk, w).astype(x.dtype), axes))
    return jnp.concatenate(sums, axis=-2)


def _blank(shape: tuple[int, ...], dtype: Any, like: tuple[jax.Array, ...]) -> jax.Array:
    """Zeros that vary over the axes over which these do."""
    axes = frozenset.union(*map(varying_axes, like))
    return make_varying(jnp.zeros(shape, dtype), tuple(sorted(axes)))


def _put(y: jax.Array, at: jax.Array, first: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(at, y, first, axis=at.ndim - 2)


def _plus(came: jax.Array | None, mine: jax.Array, dtype: Any) -> jax.Array:
    """What came, plus a float32 product, rounded once."""
    if came is None:
        return mine.astype(dtype)
    came, mine = lax.optimization_barrier((came, mine))  # or cuBLAS's matmul adds it itself, and waits for it
    return (came.astype(jnp.float32) + mine).astype(dtype)
