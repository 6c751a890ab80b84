"""Collective matmuls under `jax.shard_map` against float64 on one device: values, gradients, types, errors."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks.relative_error import relative_error
from pallas_kernels.collective_matmul import (
    CollectiveTiling,
    all_gather_matmul,
    gather_sequence,
    matmul_all_reduce,
    matmul_reduce_scatter,
    split_sequence,
)
from pallas_kernels.matmul import matmul
from tests.tiers import first_in_default

ROWS, POSITIONS, WIDTH, COLUMNS = 2, 16, 8, (12, 4)
BACKENDS = ("reference", "ring")
CASES = [
    *((backend, ranks, CollectiveTiling(), "float32") for backend in BACKENDS for ranks in (1, 2, 4)),
    *(
        ("ring", ranks, CollectiveTiling(*cut), "float32")
        for ranks, cut in ((4, (2, 1)), (4, (1, 2)), (2, (2, 2)), (4, (2, 2)))
    ),
    *((backend, 4, CollectiveTiling(), "bfloat16") for backend in BACKENDS),
    ("ring", 4, CollectiveTiling(2, 2), "bfloat16"),
]
DIGITS = {"float32": 1e-6, "bfloat16": 1e-2}
"""Of the norm; bfloat16 has 8 bits, so that one rounding costs up to 4e-3 and a ring of four rounds four times."""


def mesh_of(data, tensor):
    kinds = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((data, tensor), ("data", "tensor"), kinds, devices=jax.devices()[: data * tensor])


def operands(dtype="float32"):
    random = np.random.default_rng(0)
    shapes = [(ROWS, POSITIONS, WIDTH), *((WIDTH, columns) for columns in COLUMNS), (COLUMNS[0], WIDTH)]
    return tuple(jnp.asarray(random.normal(size=shape), dtype) for shape in shapes)


def seeds(dtype="float32"):
    random = np.random.default_rng(1)
    return tuple(jnp.asarray(random.normal(size=(ROWS, POSITIONS, width)), dtype) for width in (*COLUMNS, WIDTH))


@functools.cache
def exact():
    """Values and gradients in float64 of arrays that bfloat16 holds exactly."""
    x, *weights, down = (np.asarray(a, np.float64) for a in operands("bfloat16"))
    *dys, dz = (np.asarray(a, np.float64) for a in seeds("bfloat16"))
    ys = [x @ w for w in weights]
    flat = functools.partial(np.tensordot, axes=((0, 1), (0, 1)))
    hidden = ys[0]
    gathered = (*ys, sum(dy @ w.T for dy, w in zip(dys, weights, strict=True)), *(flat(x, dy) for dy in dys))
    return gathered, (hidden @ down, dz @ down.T, flat(hidden, dz)), hidden


def gathering(mesh, backend, tiling, matmul_format="native"):
    """x by positions, weights by columns: products of all positions, and their gradients."""

    def body(x, weights, seeds):
        options = {"backend": backend, "tiling": tiling, "matmul_format": matmul_format}
        call = functools.partial(all_gather_matmul, axes=("tensor",), **options)
        ys, vjp = jax.vjp(call, x, weights)
        return ys, *vjp(seeds)

    columns, sequence = P("data", None, "tensor"), P("data", "tensor")
    weights, outputs = (P(None, "tensor"),) * 2, (columns,) * 2
    specs = (sequence, weights, outputs), (outputs, sequence, weights)
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs[0], out_specs=specs[1]))


def scattering(mesh, backend, tiling, sequence, matmul_format="native"):
    """x by its last dimension, the weight by rows: the sum, by positions or whole, and its gradients."""

    def body(x, w, seed):
        call = functools.partial(matmul_reduce_scatter, tiling=tiling) if sequence else matmul_all_reduce
        options = {"backend": backend, "matmul_format": matmul_format}
        y, vjp = jax.vjp(functools.partial(call, axes=("tensor",), **options), x, w)
        return y, *vjp(seed)

    inner, rows, outer = P("data", None, "tensor"), P("tensor"), P("data", "tensor") if sequence else P("data")
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(inner, rows, outer), out_specs=(outer, inner, rows)))


@pytest.mark.parametrize("backend, tensor, tiling, dtype", first_in_default(CASES))
def test_all_gather_matmul_is_the_plain_product_with_its_gradients(backend, tensor, tiling, dtype):
    x, *weights, _ = (a.astype(dtype) for a in operands("bfloat16"))
    given = tuple(a.astype(dtype) for a in seeds("bfloat16")[:2])
    results = gathering(mesh_of(2, tensor), backend, tiling)(x, tuple(weights), given)
    for result, wanted in zip(jax.tree.leaves(results), exact()[0], strict=True):
        assert result.dtype == dtype
        assert relative_error(result, wanted) < DIGITS[dtype]


@pytest.mark.parametrize(
    "backend, tensor, tiling, dtype, sequence",
    first_in_default(
        [(*case, True) for case in CASES] + [(*case, False) for case in CASES if case[2] == CollectiveTiling()]
    ),
)
def test_reduce_scatter_and_all_reduce_are_the_plain_product_with_its_gradients(
    backend, tensor, tiling, sequence, dtype
):
    down, seed = operands("bfloat16")[3].astype(dtype), seeds("bfloat16")[2].astype(dtype)
    hidden = exact()[2]
    x = jnp.asarray(hidden, dtype)
    results = scattering(mesh_of(2, tensor), backend, tiling, sequence)(x, down, seed)
    lost = relative_error(x, hidden)  # rounding the operand is not an error of the sum
    for result, wanted in zip(results, exact()[1], strict=True):
        assert result.dtype == dtype
        assert relative_error(result, wanted) < DIGITS[dtype] + lost


@pytest.mark.parametrize(
    ("backend", "tiling"), first_in_default([("ring", CollectiveTiling(2, 2)), ("reference", CollectiveTiling())])
)
def test_products_in_fp8_are_those_of_one_device_whose_arrays_are_scaled_whole(backend, tiling):
    """But for values below 2^-14 of the largest, and for the rounding of a ring's partial sums."""
    x, *weights, down = operands()
    *dys, dz = seeds()
    multiply = functools.partial(matmul, matmul_format="fp8")
    ys, pull = jax.vjp(lambda x, weights: tuple(multiply(x, w) for w in weights), x, tuple(weights))
    results = gathering(mesh_of(2, 4), backend, tiling, "fp8")(x, tuple(weights), tuple(dys))
    for result, wanted in zip(jax.tree.leaves(results), jax.tree.leaves((ys, *pull(tuple(dys)))), strict=True):
        assert relative_error(result, wanted) < 1e-5
    z, pull = jax.vjp(multiply, ys[0], down)
    for sequence in (True, False):
        scattered = scattering(mesh_of(2, 4), backend, tiling, sequence, "fp8")(ys[0], down, dz)
        for result, wanted in zip(scattered, (z, *pull(dz)), strict=True):
            assert relative_error(result, wanted) < 1e-5


def over_tensor(collective, program):
    """How many collectives of a kind a program has over the tensor axis."""
    return len(re.findall(rf"{collective}\w*\[[^]]*'tensor'", program))


def test_the_ring_permutes_and_has_no_other_collective():
    mesh, (x, *weights, _) = mesh_of(1, 4), operands()
    program = str(jax.make_jaxpr(gathering(mesh, "ring", CollectiveTiling(2, 2)))(x, tuple(weights), seeds()[:2]))
    # Forward 3 steps of 4 parts; backward as many for x, and as many for the sums.
    assert len(re.findall(r"ppermute\[", program)) == 3 * 4 * 3
    assert (
        "all_gather" not in program and not over_tensor("psum", program) and not over_tensor("reduce_scatter", program)
    )


def test_all_reduce_has_as_many_sums_as_chunks(monkeypatch):
    monkeypatch.setattr("pallas_kernels.collective_matmul.tiling.PROCESSORS", 0.25)
    x, w = jnp.ones((ROWS, POSITIONS, COLUMNS[0])), operands()[3]
    program = jax.make_jaxpr(scattering(mesh_of(1, 2), "ring", None, False))(x, w, seeds()[2])
    assert over_tensor("psum", str(program)) == 4


def test_split_and_gathered_positions_are_the_same_with_their_gradients():
    x, seed = jnp.arange(96.0).reshape(2, 8, 6), jnp.sin(jnp.arange(96.0)).reshape(2, 8, 6)

    def body(x, seed):
        there_and_back, vjp = jax.vjp(
            lambda x: gather_sequence(3.0 * split_sequence(x, ("tensor",), 1), ("tensor",), 1), x
        )
        return there_and_back, *vjp(seed)

    mapped = jax.shard_map(body, mesh=mesh_of(2, 4), in_specs=P("data"), out_specs=P("data"))
    y, gradient = jax.jit(mapped)(x, seed)
    np.testing.assert_array_equal(y, 3.0 * x)
    np.testing.assert_array_equal(gradient, 3.0 * seed)


def refused(call, *shapes, dtype="float32", axes=("tensor",)):
    arrays = [jnp.zeros(shape, dtype) for shape in shapes]
    mapped = jax.shard_map(functools.partial(call, axes), mesh=mesh_of(1, 4), in_specs=P(), out_specs=P())
    with pytest.raises(ValueError) as error:
        jax.make_jaxpr(mapped)(*arrays)
    return str(error.value)


@pytest.mark.parametrize(
    "call, shapes, words",
    [
        (lambda axes, x, w: all_gather_matmul(x, (w,), ("model",)), [(2, 8, 4), (4, 4)], ["'model'", "tensor"]),
        (lambda axes, x, w: all_gather_matmul(x, (w,), axes), [(2, 8, 4), (5, 4)], ["5 rows", "[2, 8, 4]"]),
        (lambda axes, x, w: all_gather_matmul(x, (w,), axes), [(4,), (4, 4)], ["[..., s, d]", "[4]"]),
        (lambda axes, x, w: matmul_reduce_scatter(x, w, axes), [(2, 6, 4), (4, 4)], ["6 positions", "multiple of 4"]),
        (lambda axes, x, w: matmul_all_reduce(x, w, axes, backend="rings"), [(2, 8, 4), (4, 4)], ["'rings'", "ring"]),
        (
            lambda axes, x, w: all_gather_matmul(x, (w,), axes, tiling=CollectiveTiling(3, 1)),
            [(2, 8, 4), (4, 4)],
            ["3 parts", "8 positions"],
        ),
        (
            lambda axes, x, w: all_gather_matmul(x, (w.astype(jnp.int32),), axes),
            [(2, 8, 4), (4, 4)],
            ["one precision", "int32[4, 4]"],
        ),
        (lambda axes, x, w: split_sequence(x, axes, 1), [(2, 6, 4), (4, 4)], ["4 ranks", "6 positions"]),
    ],
)
def test_operands_that_do_not_fit_are_refused_with_their_shapes(call, shapes, words):
    message = refused(call, *shapes)
    assert all(word in message for word in words), message
