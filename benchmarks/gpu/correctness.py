"""Every kernel on this device against float64, as |actual - exact| / |exact| in Frobenius norms."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from benchmarks.gpu.matmuls import kernels
from benchmarks.gpu.operands import (
    all_gather_operands,
    causal_mask,
    grouped_operands,
    random_heads,
    reduce_scatter_operands,
)
from benchmarks.gpu.parts import PartRun, short_reason
from benchmarks.gpu.sizes import AttentionHeads, ExpertMatmul
from benchmarks.relative_error import relative_error
from mmjax.models.layers.chunked_logits import chunked_logits
from mmjax.models.layers.vocabulary_chunks import MIN_CHUNK
from pallas_kernels.collective_matmul import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from pallas_kernels.grouped_matmul import IMPLEMENTATIONS as GROUPED
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.packed_attention import IMPLEMENTATIONS, packed_attention
from pallas_kernels.ragged_all_to_all.api import IMPLEMENTATIONS as EXCHANGES
from pallas_kernels.ragged_all_to_all.api import ragged_all_to_all
from sharding.axes import Axes

GOALS = {"float32": 1e-5, "bfloat16": 2e-2}
"""bfloat16 rounds inputs, results and, in attention, the softmax weights: 2^-9 each, some of them summed."""
SHAPE = (256, 512, 256)  # rows of all ranks, contracted size, columns


def rows(part: PartRun) -> Iterator[dict[str, Any]]:
    """The largest error of output and gradients of each kernel."""
    # Last the checks that could hang.
    checks = [*_attention(part), *_grouped(), *_losses(), *_collectives(), *_exchanges(), *_hopper(part)]
    for name, dtype, check in checks:
        if part.seconds_left < 2:
            yield part.row(f"correct: {name}", None, note="cut for time")
            continue
        try:
            with jax.default_matmul_precision("highest"):  # for float32; bfloat16 has one precision
                yield part.row(f"correct: {name}, {dtype}", check(), GOALS[dtype], at_most=True, always=True)
        except (NotImplementedError, ImportError) as error:
            yield part.row(f"correct: {name}, {dtype}", None, note=f"not here: {short_reason(error)}")
        except Exception as error:  # a failure on this device goes into the table, and the command fails
            yield part.row(f"correct: {name}, {dtype}", None, note=f"failed: {short_reason(error)}") | {"failed": True}


Check = tuple[str, str, Callable[[], float]]


def _attention(part: PartRun) -> Iterator[Check]:
    heads, mixes = part.sizes.attention
    for implementation in IMPLEMENTATIONS:
        for dtype in GOALS:
            yield (
                f"packed_attention, {implementation}",
                dtype,
                functools.partial(_attended, implementation, dtype, heads, mixes[0][1]),
            )


def _attended(implementation: str, dtype: str, heads: AttentionHeads, segments: tuple[int, ...]) -> float:
    segments = tuple(length // 2 for length in segments)  # the float64 reference needs all pairs of a head
    padding = sum(segments) % 2 + 2
    query, key, value, cotangent = random_heads(1, sum(segments) + padding, heads, dtype)
    ids, mask = causal_mask([segments], padding)

    def loss(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        output = packed_attention(query, key, value, mask, implementation=implementation)
        return jnp.sum((output * cotangent).astype(jnp.float32)), output

    gradients, output = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(query, key, value)
    exact = _float64(*(np.asarray(x[0], np.float64) for x in (query, key, value, cotangent)), ids[0])
    return max(
        relative_error(actual[0], expected) for actual, expected in zip((output, *gradients), exact, strict=True)
    )


def _float64(query: np.ndarray, key: np.ndarray, value: np.ndarray, cotangent: np.ndarray, ids: np.ndarray) -> tuple:
    """The output of attention and its three gradients, head by head: [s, h, e], [s, k, e]."""
    group, scale = query.shape[1] // key.shape[1], query.shape[2] ** -0.5
    positions = np.arange(len(ids))
    visible = (ids[:, None] == ids[None]) & (ids > 0)[:, None] & (positions[None] <= positions[:, None])
    output, query_gradient, key_gradient, value_gradient = (np.zeros_like(x) for x in (query, query, key, value))
    for head in range(query.shape[1]):
        q, k, v, g = query[:, head], key[:, head // group], value[:, head // group], cotangent[:, head]
        scores = np.where(visible, q @ k.T * scale, -np.inf)
        maximum = np.where(visible.any(axis=1), scores.max(axis=1), 0.0)
        weights = np.exp(scores - maximum[:, None])
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        output[:, head] = weights @ v
        gradient = g @ v.T
        gradient = weights * (gradient - (weights * gradient).sum(axis=1, keepdims=True)) * scale
        query_gradient[:, head] = gradient @ k
        key_gradient[:, head // group] += gradient.T @ q
        value_gradient[:, head // group] += weights.T @ g
    return output, query_gradient, key_gradient, value_gradient


def _collectives() -> Iterator[Check]:
    """On one device a ring has one rank: a plain matmul, with the code of its gradients."""
    for backend in ("reference", "ring"):  # with one rank mosaic uses the ring too
        for dtype in GOALS:
            yield f"collective_matmul, {backend}, one rank", dtype, functools.partial(_collective, backend, dtype)


def _collective(backend: str, dtype: str) -> float:
    m, d, f = SHAPE
    random = np.random.default_rng(0)
    x, w, cotangent = (jnp.asarray(random.normal(size=shape), dtype) for shape in ((m, d), (d, f), (m, f)))
    axes = ("tensor",)
    operations = (
        lambda x, w: all_gather_matmul(x, (w,), axes, backend=backend)[0],
        lambda x, w: matmul_reduce_scatter(x, w, axes, backend=backend),
        lambda x, w: matmul_all_reduce(x, w, axes, backend=backend),
    )
    mesh = jax.make_mesh((1,), axes, devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
    a, b, g = (np.asarray(array, np.float64) for array in (x, w, cotangent))
    exact, worst = (a @ b, g @ b.T, a.T @ g), 0.0
    for operation in operations:
        split = jax.shard_map(operation, mesh=mesh, in_specs=(P("tensor"), P(None, "tensor")), out_specs=P("tensor"))

        def both(x: jax.Array, w: jax.Array, cotangent: jax.Array, split: Callable = split) -> tuple:
            output, back = jax.vjp(split, x, w)
            return output, *back(cotangent)

        actual = jax.jit(both)(x, w, cotangent)
        worst = max(
            [worst, *(relative_error(result, expected) for result, expected in zip(actual, exact, strict=True))]
        )
    return worst


def _grouped() -> Iterator[Check]:
    for implementation in GROUPED:
        for dtype in GOALS:
            yield f"grouped_matmul, {implementation}", dtype, functools.partial(_grouped_error, implementation, dtype)


def _grouped_error(implementation: str, dtype: str) -> float:
    sizes = ExpertMatmul(rows=SHAPE[0], inner=SHAPE[1], outer=SHAPE[2], groups=5)
    x, matrices, group_sizes, cotangent = grouped_operands(sizes, dtype)
    multiply = functools.partial(grouped_matmul, group_sizes=group_sizes, implementation=implementation)

    def both(x: jax.Array, matrices: jax.Array, cotangent: jax.Array) -> tuple:
        product, pull = jax.vjp(multiply, x, matrices)
        return product, *pull(cotangent)

    actual = jax.jit(both)(x, matrices, cotangent)
    a, b, g = (np.asarray(array, np.float64) for array in (x, matrices, cotangent))
    group = np.repeat(np.arange(sizes.groups), np.asarray(group_sizes))
    of_group = [np.flatnonzero(group == number) for number in range(sizes.groups)]
    exact = (
        np.concatenate([a[index] @ b[number] for number, index in enumerate(of_group)]),
        np.concatenate([g[index] @ b[number].T for number, index in enumerate(of_group)]),
        np.stack([a[index].T @ g[index] for index in of_group]),
    )
    return max(relative_error(found, expected) for found, expected in zip(actual, exact, strict=True))


def _losses() -> Iterator[Check]:
    for dtype in GOALS:
        yield "loss over chunks of the vocabulary", dtype, functools.partial(_loss_error, dtype)


def _loss_error(dtype: str) -> float:
    """Of both gradients, with more than one chunk."""
    positions, width, vocabulary = SHAPE[0], SHAPE[1], 3 * MIN_CHUNK // 2
    random = np.random.default_rng(0)
    hidden = jnp.asarray(random.standard_normal((1, positions, width)), dtype)
    table = jnp.asarray(random.standard_normal((vocabulary, width)) * width**-0.5, dtype)
    targets = random.integers(0, vocabulary, (1, positions))
    chunks = chunked_logits(hidden, table, vocabulary, Axes())
    options = dataclasses.replace(chunks.options, chunk=MIN_CHUNK)

    def loss(hidden: jax.Array, table: jax.Array) -> jax.Array:
        sums = dataclasses.replace(chunks, hidden=hidden, table=table, options=options).sums(jnp.asarray(targets))
        return jnp.sum(jnp.log(sums.exp_sum) + sums.largest - sums.target_logits)

    actual = jax.jit(jax.grad(loss, (0, 1)))(hidden, table)
    a, b = np.asarray(hidden[0], np.float64), np.asarray(table, np.float64)
    logits = a @ b.T
    likelihood = np.exp(logits - logits.max(axis=1, keepdims=True))
    by_logits = likelihood / likelihood.sum(axis=1, keepdims=True) - np.eye(vocabulary)[targets[0]]
    return max(relative_error(actual[0][0], by_logits @ b), relative_error(actual[1], by_logits.T @ a))


def _hopper(part: PartRun) -> Iterator[Check]:
    """The Hopper kernels with virtual ranks on one GPU."""
    ranks = part.sizes.ranks
    for name, check in (("all_gather_matmul", _gathered), ("matmul_reduce_scatter", _scattered)):
        yield f"mosaic {name}, {ranks} virtual ranks", "bfloat16", functools.partial(check, ranks)


def _gathered(ranks: int) -> float:
    m, d, f = SHAPE
    x, w = all_gather_operands(ranks, (m * ranks, d, f))
    (actual,), gathered = jax.jit(kernels().loopback_all_gather_matmul)(x, (w,))
    a, b = (np.asarray(array, np.float64) for array in (x, w))
    exact = np.einsum("nmd,rdf->rnmf", a, b)
    return max(relative_error(actual, exact), relative_error(gathered, np.broadcast_to(a, (ranks, *a.shape))))


def _scattered(ranks: int) -> float:
    m, d, f = SHAPE
    x, w = reduce_scatter_operands(ranks, (m * ranks, d, f))
    actual = jax.jit(kernels().loopback_matmul_reduce_scatter)(x, w)
    a, b = (np.asarray(array, np.float64) for array in (x, w))
    return relative_error(actual, np.einsum("rnmd,rdf->nmf", a, b))


def _exchanges() -> Iterator[Check]:
    for implementation in EXCHANGES:
        yield f"ragged_exchange, {implementation}, one rank", "float32", functools.partial(_exchanged, implementation)


def _exchanged(implementation: str) -> float:
    if implementation == "ragged" and jax.default_backend() == "cpu":
        raise NotImplementedError("there is no lax.ragged_all_to_all on CPUs")
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 16)), jnp.float32)
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))

    def exchange(x: jax.Array, sent: jax.Array) -> jax.Array:
        return ragged_all_to_all(x, sent, rows=56, axis="data", implementation=implementation)

    split = jax.jit(jax.shard_map(exchange, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P("data")))
    actual = split(x, jnp.array([40], jnp.int32))
    return relative_error(actual, np.concatenate([np.asarray(x[:40], np.float64), np.zeros((16, 16))]))
