"""Every implementation against the definition in float64: output and gradients, relative to their magnitudes."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.relative_error import relative_error
from pallas_kernels.packed_attention import make_segment_mask, packed_attention
from tests.pallas_kernels.packed_attention.cases import (
    AttentionCase,
    attention,
    attention_magnitudes,
    branches_of,
    cases,
    expected_mask,
    rows,
)

TOLERANCES = {"float32": 1e-6, "bfloat16": 1.2e-2}
"""Of the norm of the sums' magnitudes: a gradient whose terms cancel has no smaller error than one whose terms add up.
bfloat16 rounds products of inputs, softmax weights and results by 2**-9 each, several times over."""


@functools.partial(jax.jit, static_argnames=("causal", "window", "block", "implementation"))
def forward_and_backward(
    query,
    key,
    value,
    cotangent,
    segments,
    keys,
    branches,
    positions=None,
    *,
    causal,
    window=None,
    block,
    implementation,
):
    def attend(query, key, value):
        mask = make_segment_mask(
            segments, keys=keys, branches=branches, causal=causal, positions=positions, window=window, block=block
        )
        return packed_attention(query, key, value, mask, implementation=implementation)

    output, back = jax.vjp(attend, query, key, value)
    return output, *back(cotangent)


def arrays(random, case: AttentionCase, heads: int, group: int, width: int, dtype: str) -> list[jax.Array]:
    """Query, key, value and the output's gradient."""
    (r, s), keys = case.segments.shape, case.segments if case.keys is None else case.keys
    sides = [(r, s, heads * group), (*keys.shape, heads), (*keys.shape, heads), (r, s, heads * group)]
    return [jnp.asarray(random.normal(size=(*side, width)), dtype) for side in sides]


def compare(case: AttentionCase, inputs: list[jax.Array], block: int | None, implementation: str) -> None:
    """Compares with the definition on the same rounded inputs."""
    mask_arguments = (case.segments, case.keys, case.branches, case.positions)
    with jax.numpy_dtype_promotion("standard"):  # jax's own dense form promotes bfloat16, in its backward
        actual = forward_and_backward(
            *inputs,
            *mask_arguments,
            causal=case.causal,
            window=case.window,
            block=block,
            implementation=implementation,
        )
    mask = expected_mask(case)
    expected, magnitudes = attention(*inputs, mask), attention_magnitudes(*inputs, mask)
    for result, exact, magnitude in zip(actual, expected, magnitudes, strict=True):
        assert result.dtype == inputs[0].dtype
        error = np.linalg.norm(np.asarray(result, np.float64) - exact)
        assert error <= TOLERANCES[inputs[0].dtype.name] * np.linalg.norm(magnitude)


@hypothesis.given(
    cases(lengths=(23,)),
    st.sampled_from(
        [((1, 1, 8), 4, "float32"), ((2, 3, 4), 16, "float32"), ((3, 1, 4), 8, "float32"), ((2, 2, 8), 8, "bfloat16")]
    ),
    st.integers(0, 2**32 - 1),
)
@hypothesis.settings(max_examples=50)
def test_blocked_attention_follows_the_definition(case, form, seed):  # few shapes, since each is compiled
    heads, block, dtype = form
    compare(case, arrays(np.random.default_rng(seed), case, *heads, dtype), block, "blocked")


RANDOM = np.random.default_rng(0)
SEGMENTS = rows(RANDOM, 3, 40)
KINDS = {
    "encoder": AttentionCase(SEGMENTS, None, None, False),
    "causal": AttentionCase(SEGMENTS, None, None, True),
    "branches": AttentionCase(SEGMENTS, None, branches_of(RANDOM, SEGMENTS), True),
    "window": AttentionCase(SEGMENTS, None, branches_of(RANDOM, SEGMENTS), True, 3),
    "cross": AttentionCase(SEGMENTS[:, ::4], SEGMENTS, None, False),
    "one query": AttentionCase(
        np.ones((3, 1), np.int32), np.int32(np.arange(40)[None] < [[3], [40], [0]]), None, False
    ),
}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", ["dense", "blocked"])
def test_every_implementation_follows_the_definition(implementation, kind, dtype):
    compare(KINDS[kind], arrays(np.random.default_rng(1), KINDS[kind], 2, 2, 8, dtype), None, implementation)


@pytest.mark.parametrize("implementation", ["dense", "blocked"])
def test_padding_is_zero_and_gets_no_gradient(implementation):
    segments = np.array([[0] * 8, [1] * 5 + [0] * 3], np.int32)
    case = AttentionCase(segments, None, None, True)
    inputs = arrays(np.random.default_rng(2), case, 1, 2, 4, "float32")
    inputs[0] = inputs[0].at[0].set(1e30)  # any value may stand there
    actual = forward_and_backward(*inputs, *case[:3], causal=True, block=4, implementation=implementation)
    for array in actual:
        assert not np.any(np.asarray(array)[segments == 0])
        assert np.all(np.isfinite(array)) and np.any(np.asarray(array)[segments == 1])


def test_scores_far_apart_stay_finite():
    case = AttentionCase(np.ones((1, 32), np.int32), None, None, True)
    inputs = [200 * x for x in arrays(np.random.default_rng(3), case, 1, 1, 8, "float32")]
    actual = forward_and_backward(*inputs, *case[:3], causal=True, block=8, implementation="blocked")
    expected = attention(*inputs, expected_mask(case))
    assert relative_error(actual[0], expected[0]) < 1e-4 and all(np.all(np.isfinite(array)) for array in actual)


def test_memory_is_linear_in_the_sequence():
    def temporary_bytes(length: int, implementation: str) -> int:
        shapes = [jax.ShapeDtypeStruct((1, length, heads, 8), jnp.float32) for heads in (2, 1, 1, 2)]
        ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
        options = {"causal": True, "block": 32, "implementation": implementation}
        program = forward_and_backward.lower(*shapes, ids, None, ids, **options).compile()
        return program.memory_analysis().temp_size_in_bytes

    blocked = [temporary_bytes(length, "blocked") for length in (512, 1024, 2048)]
    assert blocked[1] < 2.2 * blocked[0] and blocked[2] < 2.2 * blocked[1]
    assert temporary_bytes(2048, "dense") > 8 * blocked[2]


@pytest.mark.parametrize("implementation", ["dense", "blocked"])
def test_soft_cap_scale_sinks_and_wide_values_follow_the_definition(implementation):
    """In float32 as in float64, by the definition written out and differentiated by JAX."""
    case = AttentionCase(SEGMENTS, None, None, True, 7)
    random = np.random.default_rng(4)
    shapes = [(3, 40, 4, 8), (3, 40, 2, 8), (3, 40, 2, 5), (4,)]
    inputs = [jnp.asarray(random.normal(size=shape) * 2, jnp.float32) for shape in shapes]
    visible = jnp.asarray(expected_mask(case))

    def definition(query, key, value, sinks):
        keys, values = (jnp.repeat(x, 2, axis=2) for x in (key, value))
        scores = 3.0 * jnp.tanh(0.7 * jnp.einsum("rshe,rthe->rhst", query, keys) / 3.0)
        exponentials = jnp.where(visible[:, None], jnp.exp(scores), 0.0)
        denominator = exponentials.sum(axis=-1, keepdims=True) + jnp.exp(sinks)[None, :, None, None]
        return jnp.einsum("rhst,rthu->rshu", exponentials / denominator, values)

    def attend(query, key, value, sinks):
        mask = make_segment_mask(SEGMENTS, causal=True, positions=case.positions, window=7, block=8)
        options = {"scale": 0.7, "softcap": 3.0, "sinks": sinks, "implementation": implementation}
        return packed_attention(query, key, value, mask, **options)

    def output_and_gradients(function, arrays):
        output, back = jax.vjp(function, *arrays)
        return output, *back(jnp.sin(jnp.arange(output.size, dtype=output.dtype)).reshape(output.shape))

    actual = jax.jit(lambda *a: output_and_gradients(attend, a))(*inputs)
    expected = jax.jit(lambda *a: output_and_gradients(definition, a))(*inputs)
    for result, exact in zip(actual, expected, strict=True):
        assert relative_error(result, np.asarray(exact, np.float64)) < 2e-6


def test_a_window_costs_its_own_blocks():
    """A row of one segment in blocks of 8: the diagonal, and what a window of 16 reaches before it."""
    ones, positions = np.ones((1, 256), np.int32), np.arange(256, dtype=np.int32)[None]
    mask = make_segment_mask(ones, causal=True, positions=positions, window=16, block=8)
    assert int(mask.block_pairs.count) == 32 + 31 + 30
