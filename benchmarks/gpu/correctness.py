"""Every kernel on this device against float64, as |got - wanted| / |wanted| (Frobenius), for `benchmarks.gpu`."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from benchmarks.gpu.attention import causal_packing, random_heads
from benchmarks.gpu.matmuls import gathered, kernels, scattered
from benchmarks.gpu.parts import PartRun, short_reason
from benchmarks.gpu.sizes import AttentionHeads
from benchmarks.relative_error import relative_error
from pallas_kernels.collective_matmul import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from pallas_kernels.packed_attention import IMPLEMENTATIONS, packed_attention
from pallas_kernels.ragged_all_to_all.api import IMPLEMENTATIONS as EXCHANGES
from pallas_kernels.ragged_all_to_all.api import ragged_all_to_all

GOALS = {"float32": 1e-5, "bfloat16": 2e-2}
"""bfloat16 rounds inputs, results and, in attention, the shares that are multiplied: 2^-9 each, some of them summed."""
SHAPE = (256, 512, 256)  # rows of all ranks, contracted size, columns


def rows(task: PartRun) -> Iterator[dict[str, Any]]:
    """The worst of output and gradients of each kernel."""
    checks = [*_attention(task), *_collectives(), *_exchanges(), *_hopper(task)]  # last what could hang
    for name, dtype, check in checks:
        if task.seconds_left < 2:
            yield task.row(f"correct: {name}", None, note="cut for time")
            continue
        try:
            with jax.default_matmul_precision("highest"):  # for float32; bfloat16 has one precision
                yield task.row(f"correct: {name}, {dtype}", check(), GOALS[dtype], at_most=True, always=True)
        except (NotImplementedError, ImportError) as error:
            yield task.row(f"correct: {name}, {dtype}", None, note=f"not here: {short_reason(error)}")
        except Exception as error:  # what fails on this device is a finding: it stands in the table, which fails
            yield task.row(f"correct: {name}, {dtype}", None, note=f"failed: {short_reason(error)}") | {"failed": True}


Check = tuple[str, str, Callable[[], float]]


def _attention(task: PartRun) -> Iterator[Check]:
    heads, mixes = task.sizes.attention
    for form in IMPLEMENTATIONS:
        for dtype in GOALS:
            yield f"packed_attention, {form}", dtype, functools.partial(_attended, form, dtype, heads, mixes[0][1])


def _attended(form: str, dtype: str, heads: AttentionHeads, segments: tuple[int, ...]) -> float:
    segments = tuple(each // 2 for each in segments)  # the float64 reference holds every pair of a head
    padding = sum(segments) % 2 + 2
    query, key, value, given = random_heads(1, sum(segments) + padding, heads, dtype)
    ids, packing = causal_packing([segments], padding)

    def loss(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        output = packed_attention(query, key, value, packing, implementation=form)
        return jnp.sum((output * given).astype(jnp.float32)), output

    gradients, output = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(query, key, value)
    wanted = _float64(*(np.asarray(x[0], np.float64) for x in (query, key, value, given)), ids[0])
    return max(relative_error(got[0], of) for got, of in zip((output, *gradients), wanted, strict=True))


def _float64(query: np.ndarray, key: np.ndarray, value: np.ndarray, given: np.ndarray, ids: np.ndarray) -> tuple:
    """Attention's output and its three gradients, head by head: [s, h, e], [s, k, e]."""
    group, scale = query.shape[1] // key.shape[1], query.shape[2] ** -0.5
    places = np.arange(len(ids))
    seen = (ids[:, None] == ids[None]) & (ids > 0)[:, None] & (places[None] <= places[:, None])
    output, of_query, of_key, of_value = (np.zeros_like(x) for x in (query, query, key, value))
    for head in range(query.shape[1]):
        q, k, v, g = query[:, head], key[:, head // group], value[:, head // group], given[:, head]
        scores = np.where(seen, q @ k.T * scale, -np.inf)
        most = np.where(seen.any(axis=1), scores.max(axis=1), 0.0)
        shares = np.exp(scores - most[:, None])
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
        output[:, head] = shares @ v
        slope = g @ v.T
        slope = shares * (slope - (shares * slope).sum(axis=1, keepdims=True)) * scale
        of_query[:, head] = slope @ k
        of_key[:, head // group] += slope.T @ q
        of_value[:, head // group] += shares.T @ g
    return output, of_query, of_key, of_value


def _collectives() -> Iterator[Check]:
    """On one device: a ring of one rank, which is a plain matmul with the paths of its gradients."""
    for backend in ("reference", "ring"):  # for one rank mosaic goes around the ring too
        for dtype in GOALS:
            yield f"collective_matmul, {backend}, one rank", dtype, functools.partial(_collective, backend, dtype)


def _collective(backend: str, dtype: str) -> float:
    m, d, f = SHAPE
    random = np.random.default_rng(0)
    x, w, given = (jnp.asarray(random.normal(size=shape), dtype) for shape in ((m, d), (d, f), (m, f)))
    axes = ("tensor",)
    operations = (
        lambda x, w: all_gather_matmul(x, (w,), axes, backend=backend)[0],
        lambda x, w: matmul_reduce_scatter(x, w, axes, backend=backend),
        lambda x, w: matmul_all_reduce(x, w, axes, backend=backend),
    )
    mesh = jax.make_mesh((1,), axes, devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
    a, b, g = (np.asarray(array, np.float64) for array in (x, w, given))
    wanted, worst = (a @ b, g @ b.T, a.T @ g), 0.0
    for operation in operations:
        split = jax.shard_map(operation, mesh=mesh, in_specs=(P("tensor"), P(None, "tensor")), out_specs=P("tensor"))

        def both(x: jax.Array, w: jax.Array, given: jax.Array, split: Callable = split) -> tuple:
            output, back = jax.vjp(split, x, w)
            return output, *back(given)

        got = jax.jit(both)(x, w, given)
        worst = max([worst, *(relative_error(each, of) for each, of in zip(got, wanted, strict=True))])
    return worst


def _hopper(task: PartRun) -> Iterator[Check]:
    """The Hopper kernels with virtual ranks on this one GPU."""
    ranks = task.sizes.ranks
    for name, check in (("all_gather_matmul", _gathered), ("matmul_reduce_scatter", _scattered)):
        yield f"mosaic {name}, {ranks} virtual ranks", "bfloat16", functools.partial(check, ranks)


def _gathered(ranks: int) -> float:
    m, d, f = SHAPE
    x, w = gathered(ranks, (m * ranks, d, f))
    (got,), whole = jax.jit(kernels().loopback_all_gather_matmul)(x, (w,))
    a, b = (np.asarray(array, np.float64) for array in (x, w))
    wanted = np.einsum("nmd,rdf->rnmf", a, b)
    return max(relative_error(got, wanted), relative_error(whole, np.broadcast_to(a, (ranks, *a.shape))))


def _scattered(ranks: int) -> float:
    m, d, f = SHAPE
    x, w = scattered(ranks, (m * ranks, d, f))
    got = jax.jit(kernels().loopback_matmul_reduce_scatter)(x, w)
    a, b = (np.asarray(array, np.float64) for array in (x, w))
    return relative_error(got, np.einsum("rnmd,rdf->nmf", a, b))


def _exchanges() -> Iterator[Check]:
    for form in EXCHANGES:
        yield f"ragged_exchange, {form}, one rank", "float32", functools.partial(_exchanged, form)


def _exchanged(form: str) -> float:
    if form == "ragged" and jax.default_backend() == "cpu":
        raise NotImplementedError("lax.ragged_all_to_all is not there on CPUs")
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 16)), jnp.float32)
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))

    def exchange(x: jax.Array, sent: jax.Array) -> jax.Array:
        return ragged_all_to_all(x, sent, rows=56, axis="data", implementation=form)

    split = jax.jit(jax.shard_map(exchange, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P("data")))
    got = split(x, jnp.array([40], jnp.int32))
    return relative_error(got, np.concatenate([np.asarray(x[:40], np.float64), np.zeros((16, 16))]))
