"""Which implementation is chosen, what is refused, and attention under the transformations that models use."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks.relative_error import relative_error
from pallas_kernels.fallbacks import warn_once
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


def inputs(length: int = LENGTH, heads: int = 4, key_heads: int = 2, width: int = 8, dtype=jnp.float32) -> list:
    sides = (heads, key_heads, key_heads)
    return [jnp.asarray(RANDOM.normal(size=(ROWS, length, side, width)), dtype) for side in sides]


def layers(query, key, value, segments, branches, scales, implementation="blocked", block=8):
    """Several layers in a scan, each recomputed in the backward, as in stages."""
    mask = make_segment_mask(segments, branches=branches, causal=True, block=block)

    def layer(x, scale):
        attend = jax.checkpoint(lambda x: packed_attention(x, key, value, mask, implementation=implementation))
        return scale * attend(x), None

    return jax.lax.scan(layer, query, scales)[0]


def gradients(function, *arrays):
    return jax.jit(jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))), argnums=(0, 1, 2)))(*arrays)


@pytest.mark.parametrize("split_keys", [True, False], ids=["keys split", "keys whole"])
def test_rows_over_data_and_heads_over_tensor_ranks_compute_the_same(split_keys):
    mesh = jax.make_mesh((2, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4])
    arrays = inputs(key_heads=2 if split_keys else 1)
    heads = P("data", None, "model")
    keys = heads if split_keys else P("data")
    scales = jnp.arange(1.0, 1 + LAYERS)
    expected = gradients(lambda *a: layers(*a, SEGMENTS, BRANCHES, scales, implementation="dense", block=None), *arrays)
    specs = (heads, keys, keys, P("data"), P("data"), P())
    mapped = jax.shard_map(layers, mesh=mesh, in_specs=specs, out_specs=heads)
    actual = gradients(lambda *a: mapped(*a, SEGMENTS, BRANCHES, scales), *arrays)
    for result, exact in zip(actual, expected, strict=True):
        assert relative_error(result, np.asarray(exact, np.float64)) < 5e-6


def test_residuals_are_linear_in_the_sequence():
    """A layer saves its inputs, its output and one number for each query and head; layers share the mask."""
    query, key, value = inputs()

    def residuals(layers_: int) -> int:
        def stack(query, key, value):
            mask = make_segment_mask(SEGMENTS, causal=True, block=8)

            def layer(x, scale):
                return scale * packed_attention(x, key, value, mask, implementation="blocked"), None

            return jax.lax.scan(layer, query, jnp.ones((layers_,)))[0]

        saved = jax.eval_shape(lambda *a: jax.tree.leaves(jax.vjp(stack, *a)[1]), query, key, value)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in saved)

    # Query, output and log-sum-exp, the output again for the scale's gradient, and the scale.
    assert residuals(3) - residuals(2) <= 4 * (3 * query.size + ROWS * LENGTH * 4 + 1)


@jax.numpy_dtype_promotion("standard")
def lowers(function, *arrays) -> str:
    return jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["encoder", "branches", "cross"])
@pytest.mark.parametrize("implementation", ["dense", "blocked"])
def test_every_implementation_lowers_for_gpus(implementation, kind, dtype):
    query, key, value = inputs(dtype=dtype)

    def attend(query, key, value, segments):
        if kind == "cross":
            mask = make_segment_mask(segments[:, ::2], keys=segments)
            query = query[:, ::2]
        else:
            mask = make_segment_mask(
                segments, branches=segments if kind == "branches" else None, causal=kind == "branches"
            )
        return jnp.sum(packed_attention(query, key, value, mask, implementation=implementation).astype(jnp.float32))

    text = lowers(jax.grad(attend, argnums=(0, 1, 2)), query, key, value, jnp.asarray(SEGMENTS))
    assert ("stablehlo.while" in text) == (implementation == "blocked")


@pytest.mark.parametrize("width", [8, 256])
def test_cudnn_lowers_for_gpus_or_jax_says_why_not(width):
    query, key, value = inputs(width=width, dtype=jnp.bfloat16)

    def attend(query, key, value):
        mask = make_segment_mask(SEGMENTS, branches=BRANCHES, causal=True)
        return jnp.sum(packed_attention(query, key, value, mask, implementation="cudnn").astype(jnp.float32))

    try:
        text = lowers(jax.grad(attend, argnums=(0, 1, 2)), query, key, value)
    except NotImplementedError as error:
        # jax's plugin for CUDA is not installed, or there is no Hopper GPU for the wide heads of Gemma.
        assert re.match("cudnn: (cuDNN is not detected|The head dim must be <= 128)", str(error))
        return
    assert "__cudnn$fmhaScaleBiasSoftmaxBackward" in text


CUDNN_REFUSES = {
    "bfloat16 and float16, not float32": {"dtype": jnp.float32},
    "heads of a multiple of 8 channels, not 12": {"width": 12, "dtype": jnp.bfloat16},
    "even numbers of queries and keys, not 23 and 23": {"length": 23, "dtype": jnp.bfloat16},
}


@pytest.mark.parametrize("words", CUDNN_REFUSES)
def test_cudnn_refuses_arrays_with_the_reason(words):
    arrays = inputs(**CUDNN_REFUSES[words])
    with pytest.raises(NotImplementedError, match=f"cudnn: takes .*{words}"):
        packed_attention(*arrays, make_segment_mask(SEGMENTS[:, : arrays[0].shape[1]]), implementation="cudnn")


def traced_implementation(length: int, **options) -> str:
    """Which implementation is traced: only the blocked one has a loop."""
    arrays = [jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)] * 3
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    text = str(
        jax.make_jaxpr(lambda q, k, v, ids: packed_attention(q, k, v, make_segment_mask(ids), **options))(*arrays, ids)
    )
    return "blocked" if "while" in text else "dense"


def test_short_rows_are_dense_and_others_blocked_by_default():
    assert traced_implementation(128) == "dense" and traced_implementation(129) == "blocked"
    assert (
        traced_implementation(129, implementation="dense") == "dense"
        and traced_implementation(128, implementation="blocked") == "blocked"
    )
    with use_attention_implementation("dense"):
        assert (
            traced_implementation(129) == "dense" and traced_implementation(129, implementation="blocked") == "blocked"
        )
    assert traced_implementation(129) == "blocked"


def test_a_gpu_where_cudnn_refuses_falls_back_and_logs_the_reason_once(monkeypatch, caplog):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    warn_once.cache_clear()
    for _ in range(2):
        assert traced_implementation(129) == "blocked"
    assert traced_implementation(128) == "dense"
    assert caplog.messages == [
        f"packed attention is {taken} on this GPU, because cudnn: takes bfloat16 and float16, not float32"
        for taken in ("blocked", "dense")
    ]


QUERY, KEY = np.zeros((4, 24, 4, 8), np.float32), np.zeros((4, 24, 2, 8), np.float32)
BAD_ARRAYS = {
    "query [4, 24, 4, 8], key [4, 24, 3, 8], value [4, 24, 3, 8]: 3 key heads do not divide 4 query heads": (
        QUERY,
        *(np.zeros((4, 24, 3, 8), np.float32),) * 2,
    ),
    "query [4, 24, 4, 8], key [4, 24, 2, 8], value [4, 23, 2, 8]: rows must be the same": (QUERY, KEY, KEY[:, 1:]),
    "query [4, 24, 4, 4], key [4, 24, 2, 8]": (QUERY[..., :4], KEY, KEY),
    "query [4, 12, 4, 8], key [4, 24, 2, 8], value [4, 24, 2, 8]: the mask is of [4, 24] queries": (
        QUERY[:, ::2],
        KEY,
        KEY,
    ),
    "query float32, key float32, value bfloat16: give one type": (QUERY, KEY, jnp.asarray(KEY, jnp.bfloat16)),
    "query int32, key int32, value int32: give one": tuple(x.astype(np.int32) for x in (QUERY, KEY, KEY)),
    "none of them 0": (QUERY[..., :0], KEY[..., :0], KEY[..., :0]),
}


@pytest.mark.parametrize("words", BAD_ARRAYS)
def test_bad_arrays_are_refused_with_their_shapes_at_trace_time(words):
    arrays = [jnp.asarray(x) for x in BAD_ARRAYS[words]]
    with pytest.raises(ValueError, match=re.escape(words)):
        jax.eval_shape(lambda *a: packed_attention(*a, make_segment_mask(SEGMENTS)), *arrays)


def test_an_unknown_implementation_is_refused_by_name():
    with pytest.raises(ValueError, match=f"'flash'; choose one of {', '.join(IMPLEMENTATIONS)}"):
        packed_attention(*inputs(), make_segment_mask(SEGMENTS), implementation="flash")
    with pytest.raises(ValueError, match="'flash'"), use_attention_implementation("flash"):
        pass
