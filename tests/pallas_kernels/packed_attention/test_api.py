"""What is chosen, what is refused, and attention under the transformations that models run it in."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks.relative_error import relative_error
from pallas_kernels.packed_attention import (
    IMPLEMENTATIONS,
    make_segment_mask,
    packed_attention,
    use_attention_implementation,
)
from tests.pallas_kernels.packed_attention.cases import branches_of, rows

RANDOM = np.random.default_rng(0)
ROWS, LENGTH, LAYERS = 4, 24, 2
SEGMENTS = rows(RANDOM, ROWS, LENGTH)
BRANCHES = branches_of(RANDOM, SEGMENTS)


def given(length: int = LENGTH, heads: int = 4, key_heads: int = 2, width: int = 8, dtype=jnp.float32) -> list:
    sides = (heads, key_heads, key_heads)
    return [jnp.asarray(RANDOM.normal(size=(ROWS, length, side, width)), dtype) for side in sides]


def layers(query, key, value, segments, branches, scales, implementation="blocked", block=8):
    """Several in a scan, each computed again for the backward, as stages have them."""
    packing = make_segment_mask(segments, branches=branches, causal=True, block=block)

    def layer(x, scale):
        attend = jax.checkpoint(lambda x: packed_attention(x, key, value, packing, implementation=implementation))
        return scale * attend(x), None

    return jax.lax.scan(layer, query, scales)[0]


def gradients(function, *arrays):
    return jax.jit(jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))), argnums=(0, 1, 2)))(*arrays)


@pytest.mark.parametrize("split_keys", [True, False], ids=["keys split", "keys whole"])
def test_rows_over_data_and_heads_over_tensor_ranks_compute_the_same(split_keys):
    mesh = jax.make_mesh((2, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4])
    arrays = given(key_heads=2 if split_keys else 1)
    heads = P("data", None, "model")
    keys = heads if split_keys else P("data")
    scales = jnp.arange(1.0, 1 + LAYERS)
    expected = gradients(lambda *a: layers(*a, SEGMENTS, BRANCHES, scales, implementation="dense", block=None), *arrays)
    specs = (heads, keys, keys, P("data"), P("data"), P())
    mapped = jax.shard_map(layers, mesh=mesh, in_specs=specs, out_specs=heads)
    got = gradients(lambda *a: mapped(*a, SEGMENTS, BRANCHES, scales), *arrays)
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, np.asarray(other, np.float64)) < 5e-6


def test_what_is_saved_for_the_backward_is_linear_in_the_sequence():
    """Inputs, output and one number a query and head; what belongs to the packing is one, however many layers."""
    query, key, value = given()

    def residuals(layers_: int) -> int:
        def stack(query, key, value):
            packing = make_segment_mask(SEGMENTS, causal=True, block=8)

            def layer(x, scale):
                return scale * packed_attention(x, key, value, packing, implementation="blocked"), None

            return jax.lax.scan(layer, query, jnp.ones((layers_,)))[0]

        saved = jax.eval_shape(lambda *a: jax.tree.leaves(jax.vjp(stack, *a)[1]), query, key, value)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in saved)

    # Query, output and normaliser, the output again for the scale's gradient, and the scale.
    assert residuals(3) - residuals(2) <= 4 * (3 * query.size + ROWS * LENGTH * 4 + 1)


@jax.numpy_dtype_promotion("standard")  # as in test_forms.py
def lowers(function, *arrays) -> str:
    return jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["encoder", "branches", "cross"])
@pytest.mark.parametrize("implementation", ["dense", "blocked"])
def test_every_form_lowers_for_gpus(implementation, kind, dtype):
    query, key, value = given(dtype=dtype)

    def attend(query, key, value, segments):
        if kind == "cross":
            packing = make_segment_mask(segments[:, ::2], keys=segments)
            query = query[:, ::2]
        else:
            packing = make_segment_mask(
                segments, branches=segments if kind == "branches" else None, causal=kind == "branches"
            )
        return jnp.sum(packed_attention(query, key, value, packing, implementation=implementation).astype(jnp.float32))

    text = lowers(jax.grad(attend, argnums=(0, 1, 2)), query, key, value, jnp.asarray(SEGMENTS))
    assert ("stablehlo.while" in text) == (implementation == "blocked")


def test_cudnn_lowers_for_gpus_or_says_what_it_lacks():
    query, key, value = given(dtype=jnp.bfloat16)

    def attend(query, key, value):
        packing = make_segment_mask(SEGMENTS, branches=BRANCHES, causal=True)
        return jnp.sum(packed_attention(query, key, value, packing, implementation="cudnn").astype(jnp.float32))

    try:
        text = lowers(jax.grad(attend, argnums=(0, 1, 2)), query, key, value)
    except NotImplementedError as error:
        assert "cudnn: cuDNN is not detected" in str(error)  # jax's plugin for CUDA is not installed
        return
    assert "__cudnn$fmhaScaleBiasSoftmaxBackward" in text


UNFIT = {
    "bfloat16 and float16, not float32": {"dtype": jnp.float32},
    "heads of a multiple of 8 channels up to 128, not 12": {"width": 12, "dtype": jnp.bfloat16},
    "heads of a multiple of 8 channels up to 128, not 256": {"width": 256, "dtype": jnp.bfloat16},
    "even numbers of queries and keys, not 23 and 23": {"length": 23, "dtype": jnp.bfloat16},
}


@pytest.mark.parametrize("words", UNFIT)
def test_cudnn_says_what_it_does_not_take(words):
    arrays = given(**UNFIT[words])
    with pytest.raises(NotImplementedError, match=f"cudnn: takes .*{words}"):
        packed_attention(*arrays, make_segment_mask(SEGMENTS[:, : arrays[0].shape[1]]), implementation="cudnn")


def forms(length: int, **options) -> str:
    """Which form is traced: blocks loop, the table does not."""
    arrays = [jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)] * 3
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    text = str(
        jax.make_jaxpr(lambda q, k, v, ids: packed_attention(q, k, v, make_segment_mask(ids), **options))(*arrays, ids)
    )
    return "blocked" if "while" in text else "dense"


def test_short_rows_are_dense_and_others_blocked_unless_told_otherwise():
    assert forms(256) == "dense" and forms(257) == "blocked"
    assert forms(257, implementation="dense") == "dense" and forms(256, implementation="blocked") == "blocked"
    with use_attention_implementation("dense"):
        assert forms(257) == "dense" and forms(257, implementation="blocked") == "blocked"
    assert forms(257) == "blocked"


QUERY, KEY = np.zeros((4, 24, 4, 8), np.float32), np.zeros((4, 24, 2, 8), np.float32)
REFUSED = {
    "query [4, 24, 4, 8], key [4, 24, 3, 8], value [4, 24, 3, 8]: 3 key heads do not divide 4 query heads": (
        QUERY,
        *(np.zeros((4, 24, 3, 8), np.float32),) * 2,
    ),
    "query [4, 24, 4, 8], key [4, 24, 2, 8], value [4, 23, 2, 8]: rows and widths must be": (QUERY, KEY, KEY[:, 1:]),
    "query [4, 24, 4, 4], key [4, 24, 2, 8]": (QUERY[..., :4], KEY, KEY),
    "query [4, 12, 4, 8], key [4, 24, 2, 8], value [4, 24, 2, 8]: the packing is of [4, 24] queries": (
        QUERY[:, ::2],
        KEY,
        KEY,
    ),
    "query float32, key float32, value bfloat16: give one type": (QUERY, KEY, jnp.asarray(KEY, jnp.bfloat16)),
    "query int32, key int32, value int32: give one": tuple(x.astype(np.int32) for x in (QUERY, KEY, KEY)),
    "none of them 0": (QUERY[..., :0], KEY[..., :0], KEY[..., :0]),
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_arrays_are_refused_with_their_shapes_at_trace_time(words):
    arrays = [jnp.asarray(x) for x in REFUSED[words]]
    with pytest.raises(ValueError, match=re.escape(words)):
        jax.eval_shape(lambda *a: packed_attention(*a, make_segment_mask(SEGMENTS)), *arrays)


def test_an_unknown_form_is_refused_by_name():
    with pytest.raises(ValueError, match=f"'flash'; choose one of {', '.join(IMPLEMENTATIONS)}"):
        packed_attention(*given(), make_segment_mask(SEGMENTS), implementation="flash")
    with pytest.raises(ValueError, match="'flash'"), use_attention_implementation("flash"):
        pass
