"""The grouped matmul: its implementations and their gradients against a loop over groups, and the choice among them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging
from jax.sharding import AbstractDevice, AxisType
from jax.sharding import PartitionSpec as P

from pallas_kernels import fallbacks
from pallas_kernels.fp8 import quantize
from pallas_kernels.grouped_matmul import IMPLEMENTATIONS, api, grouped_matmul, use_grouped_matmul_implementation
from pallas_kernels.grouped_matmul.ragged_dot import FUSION_FLAG

ROWS, INNER, OUTER = 70, 6, 10
SIZES = {
    "uneven": [3, 0, 25, 1, 30],
    "all": [14] * 5,
    "one group": [0, 0, 70, 0, 0],
    "last groups empty": [20, 17, 0, 0, 0],
    "nothing": [0] * 5,
}
RUNS_HERE = ("ragged_dot", "tiled")
by_implementation = pytest.mark.parametrize("implementation", RUNS_HERE)
by_sizes = pytest.mark.parametrize("kind", SIZES)


def operands(kind, dtype=jnp.float32):
    """Rows, matrices, sizes of groups, and a cotangent; what is behind the last group is not a number."""
    random, sizes = np.random.default_rng(0), SIZES[kind]
    x, matrices, cotangent = (
        random.normal(size=shape) for shape in ((ROWS, INNER), (len(sizes), INNER, OUTER), (ROWS, OUTER))
    )
    x[sum(sizes) :], cotangent[sum(sizes) :] = np.nan, np.inf
    x, matrices, cotangent = (jnp.asarray(array, dtype) for array in (x, matrices, cotangent))
    return x, matrices, jnp.asarray(sizes, jnp.int32), cotangent


def expected(x, matrices, sizes, cotangent):
    """Product, dgrad and wgrad, by a loop over groups in float64; without rows behind the last group."""
    x, matrices, cotangent = (np.asarray(array, np.float64) for array in (x, matrices, cotangent))
    product, dgrad, wgrad, start = [], [], [], 0
    for size, matrix in zip(sizes, matrices, strict=True):
        rows = slice(start, start := start + int(size))
        product.append(x[rows] @ matrix)
        dgrad.append(cotangent[rows] @ matrix.T)
        wgrad.append(x[rows].T @ cotangent[rows])
    return np.concatenate(product), np.concatenate(dgrad), np.stack(wgrad)


@functools.cache
def with_gradients(implementation, matmul_format="native"):
    @jax.jit
    def run(x, matrices, sizes, cotangent):
        options = {"implementation": implementation, "matmul_format": matmul_format}
        multiply = functools.partial(grouped_matmul, group_sizes=sizes, **options)
        product, pull = jax.vjp(multiply, x, matrices)
        return product, *pull(cotangent)

    return run


def close(actual, wanted, rows, tolerance):
    product, dgrad, wgrad = (np.asarray(array, np.float64) for array in actual)
    for found, right in zip((product[:rows], dgrad[:rows], wgrad), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=tolerance, atol=tolerance * 8)


@by_sizes
def test_each_group_is_multiplied_by_its_matrix_with_gradients_and_rows_behind_do_not_matter(kind):
    given = operands(kind)
    close(with_gradients("tiled")(*given), expected(*given), sum(SIZES[kind]), 1e-6)


@pytest.mark.parametrize("kind", ["uneven", "all"])
def test_xla_s_own_agrees(kind):
    x, matrices, sizes, cotangent = operands(kind)
    behind = np.arange(ROWS)[:, None] >= sum(SIZES[kind])  # XLA multiplies them by zeros
    given = jnp.where(behind, 0.0, x), matrices, sizes, jnp.where(behind, 0.0, cotangent)
    close(with_gradients("ragged_dot")(*given), expected(*given), sum(SIZES[kind]), 1e-6)


def test_sums_in_bfloat16_are_rounded_once():
    given = operands("uneven", jnp.bfloat16)
    product, dgrad, wgrad = with_gradients("tiled")(*given)
    assert product.dtype == dgrad.dtype == wgrad.dtype == jnp.bfloat16
    close((product, dgrad, wgrad), expected(*given), sum(SIZES["uneven"]), 2.0**-8)


@by_implementation
def test_operands_in_fp8_are_rounded_whatever_is_behind_the_last_group(implementation):
    x, matrices, sizes, cotangent = operands("uneven")
    behind = (np.arange(ROWS) >= sum(SIZES["uneven"]))[:, None]
    x, cotangent = (jnp.where(behind, 1e9, array) for array in (x, cotangent))
    rounded_x, rounded_cotangent = (
        quantize(jnp.where(behind, 0.0, array), kind).dense for array, kind in ((x, "e4m3"), (cotangent, "e5m2"))
    )
    wanted = expected(rounded_x, quantize(matrices, "e4m3").dense, sizes, rounded_cotangent)
    actual = with_gradients(implementation, "fp8")(x, matrices, sizes, cotangent)
    close(actual, wanted, sum(SIZES["uneven"]), 1e-6)


def test_the_same_program_gives_the_same_bits():
    given = operands("uneven")
    first, second = (with_gradients("tiled")(*given) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


@by_implementation
def test_ranks_have_groups_of_their_own_and_gradients_of_what_they_share_are_summed(implementation):
    ranks, kinds = 2, ["uneven", "all"]
    mesh = jax.make_mesh((ranks,), ("ranks",), (AxisType.Auto,), devices=jax.devices()[:ranks])
    given = [operands(kind) for kind in kinds]
    x, cotangent = (jnp.stack([jnp.nan_to_num(one[i], posinf=0.0) for one in given]) for i in (0, 3))
    sizes, matrices = jnp.stack([one[2] for one in given]), given[0][1]

    def run(x, matrices, sizes, cotangent):
        multiply = functools.partial(grouped_matmul, group_sizes=sizes[0], implementation=implementation)
        product, pull = jax.vjp(multiply, x[0], matrices)
        dgrad, wgrad = pull(cotangent[0])
        return product[None], dgrad[None], wgrad

    one = P("ranks")
    shared = jax.shard_map(run, mesh=mesh, in_specs=(one, P(), one, one), out_specs=(one, one, P()))
    product, dgrad, wgrad = jax.jit(shared)(x, matrices, sizes, cotangent)
    each = [expected(x[i], matrices, SIZES[kinds[i]], cotangent[i]) for i in range(ranks)]
    for i in range(ranks):
        rows = sum(SIZES[kinds[i]])
        np.testing.assert_allclose(product[i, :rows], each[i][0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(dgrad[i, :rows], each[i][1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(wgrad, each[0][2] + each[1][2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("argument", "missing"), [(0, 1), (1, 0)])
def test_nothing_is_saved_for_a_gradient_that_is_not_asked_for(argument, missing):
    given = operands("uneven")

    def multiply(x, matrices):
        return grouped_matmul(x, matrices, given[2])

    frozen = functools.partial(multiply, **{("x", "matrices")[missing]: given[missing]})
    _, pull = jax.vjp(lambda trained: frozen(**{("x", "matrices")[argument]: trained}), given[argument])
    saved = [leaf.shape for leaf in jax.tree.leaves(pull)]
    assert given[argument].shape not in saved and given[missing].shape in saved


def mesh_of(kind, platform="gpu"):
    return jax.sharding.AbstractMesh(
        (1,), ("data",), (AxisType.Auto,), abstract_device=AbstractDevice(kind, 8, platform)
    )


@pytest.mark.parametrize(
    ("kind", "platform", "flag", "dtype", "inner", "chosen"),
    [
        ("NVIDIA H100 80GB HBM3", "gpu", "", jnp.bfloat16, 128, "mosaic"),
        ("NVIDIA H100 80GB HBM3", "gpu", "", jnp.float32, 128, "tiled"),
        ("NVIDIA H100 80GB HBM3", "gpu", "", jnp.bfloat16, 96, "tiled"),
        ("NVIDIA A100-SXM4-80GB", "gpu", "", jnp.bfloat16, 128, "tiled"),
        ("NVIDIA A100-SXM4-80GB", "gpu", f"{FUSION_FLAG}=true", jnp.bfloat16, 128, "ragged_dot"),
        ("NVIDIA A100-SXM4-80GB", "gpu", f"{FUSION_FLAG}=false", jnp.bfloat16, 128, "tiled"),
        ("TPU v5", "tpu", "", jnp.bfloat16, 128, "ragged_dot"),
        ("cpu", "cpu", "", jnp.bfloat16, 128, "tiled"),
    ],
)
def test_the_device_the_type_and_the_sizes_decide(kind, platform, flag, dtype, inner, chosen, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flag)
    x, matrices = jax.ShapeDtypeStruct((64, inner), dtype), jax.ShapeDtypeStruct((4, inner, 128), dtype)
    with jax.sharding.use_abstract_mesh(mesh_of(kind, platform)):
        assert api._choose(x, matrices, None) == chosen


def test_a_gpu_without_kernels_is_told_all_reasons_once(monkeypatch):
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda *arguments: warnings.append(arguments[0] % arguments[1:]))
    monkeypatch.setenv("XLA_FLAGS", "")
    fallbacks.warn_once.cache_clear()
    x, matrices = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((64, 128), (4, 128, 128)))
    with jax.sharding.use_abstract_mesh(mesh_of("NVIDIA A100-SXM4-80GB")):
        for _ in range(2):
            api._choose(x, matrices, None)
    (said,) = warnings
    assert "A100" in said and "xla_gpu_experimental_use_ragged_dot_fusion=true" in said


def test_a_named_implementation_refuses_what_it_cannot_do():
    x, matrices, sizes, _ = operands("uneven")
    with pytest.raises(NotImplementedError, match="mosaic: the mosaic kernels are for Hopper GPUs, not cpu"):
        grouped_matmul(x, matrices, sizes, implementation="mosaic")
    with pytest.raises(ValueError, match="'dense'; choose one of mosaic, ragged_dot, tiled"):
        grouped_matmul(x, matrices, sizes, implementation="dense")
    with pytest.raises(ValueError, match="'dense'"), use_grouped_matmul_implementation("dense"):
        pass


@by_implementation
def test_the_default_can_be_changed_for_what_is_traced(implementation):
    x, matrices, sizes, _ = operands("uneven")
    with use_grouped_matmul_implementation(implementation):
        traced = str(jax.make_jaxpr(lambda *given: grouped_matmul(*given))(x, matrices, sizes))  # traced anew
    assert ("ragged_dot_general" in traced) == (implementation == "ragged_dot")
    assert set(RUNS_HERE) < set(IMPLEMENTATIONS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": (7, 5)}, r"as many rows as x has columns"),
        ({"matrices": (4, 6, 10)}, r"one matrix for each group"),
        ({"x": (6,)}, r"\[m, k\], \[g, k, n\] and \[g\]"),
        ({"x": (0, 6)}, "none of them 0"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change, said):
    x, matrices, sizes, _ = operands("uneven")
    given = {"x": x, "matrices": matrices} | {name: jnp.zeros(shape) for name, shape in change.items()}
    with pytest.raises(ValueError, match=said):
        grouped_matmul(**given, group_sizes=sizes)


def test_types_that_do_not_fit_are_refused():
    x, matrices, sizes, _ = operands("uneven")
    with pytest.raises(ValueError, match="one floating-point type"):
        grouped_matmul(x.astype(jnp.bfloat16), matrices, sizes)
    with pytest.raises(ValueError, match="whole numbers"):
        grouped_matmul(x, matrices, sizes.astype(jnp.float32))
