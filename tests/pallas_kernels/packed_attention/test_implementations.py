"""Every form against the definition in float64: output and gradients, as ratios of norms."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.relative_error import relative_error
from pallas_kernels.packed_attention import make_segment_mask, packed_attention
from tests.pallas_kernels.packed_attention.cases import AttentionCase, attention, branches_of, cases, rows, table

TOLERANCES = {"float32": 2e-6, "bfloat16": 1.2e-2}
"""Of bfloat16: its own rounding (2**-9) of inputs' products, of the shares and of the result, several times over."""


@functools.partial(jax.jit, static_argnames=("causal", "block", "implementation"))
def both_ways(query, key, value, cotangent, segments, keys, branches, *, causal, block, implementation):
    def attend(query, key, value):
        packing = make_segment_mask(segments, keys=keys, branches=branches, causal=causal, block=block)
        return packed_attention(query, key, value, packing, implementation=implementation)

    output, back = jax.vjp(attend, query, key, value)
    return output, *back(cotangent)


def arrays(random, case: AttentionCase, heads: int, group: int, width: int, dtype: str) -> list[jax.Array]:
    """Query, key, value and the output's gradient."""
    (r, s), keys = case.segments.shape, case.segments if case.keys is None else case.keys
    sides = [(r, s, heads * group), (*keys.shape, heads), (*keys.shape, heads), (r, s, heads * group)]
    return [jnp.asarray(random.normal(size=(*side, width)), dtype) for side in sides]


def compare(case: AttentionCase, given: list[jax.Array], block: int | None, implementation: str) -> None:
    """With the definition, given the same rounded inputs."""
    of = (case.segments, case.keys, case.branches)
    with jax.numpy_dtype_promotion("standard"):  # jax's own dense form promotes bfloat16, in its backward
        got = both_ways(*given, *of, causal=case.causal, block=block, implementation=implementation)
    expected = attention(*(np.asarray(x, np.float64) for x in given), table(case))
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == given[0].dtype
        assert relative_error(one, other) < TOLERANCES[given[0].dtype.name]


@hypothesis.given(
    cases(lengths=(23,)),
    st.sampled_from(
        [((1, 1, 8), 4, "float32"), ((2, 3, 4), 16, "float32"), ((3, 1, 4), 8, "float32"), ((2, 2, 8), 8, "bfloat16")]
    ),
    st.integers(0, 2**32 - 1),
)
@hypothesis.settings(max_examples=50)
def test_blocks_compute_what_the_definition_says(case, form, seed):  # of few shapes, for each is compiled
    heads, block, dtype = form
    compare(case, arrays(np.random.default_rng(seed), case, *heads, dtype), block, "blocked")


RANDOM = np.random.default_rng(0)
SEGMENTS = rows(RANDOM, 3, 40)
KINDS = {
    "encoder": AttentionCase(SEGMENTS, None, None, False),
    "causal": AttentionCase(SEGMENTS, None, None, True),
    "branches": AttentionCase(SEGMENTS, None, branches_of(RANDOM, SEGMENTS), True),
    "cross": AttentionCase(SEGMENTS[:, ::4], SEGMENTS, None, False),
    "one query": AttentionCase(
        np.ones((3, 1), np.int32), np.int32(np.arange(40)[None] < [[3], [40], [0]]), None, False
    ),
}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", ["dense", "blocked"])
def test_every_form_computes_what_the_definition_says(implementation, kind, dtype):
    compare(KINDS[kind], arrays(np.random.default_rng(1), KINDS[kind], 2, 2, 8, dtype), None, implementation)


@pytest.mark.parametrize("implementation", ["dense", "blocked"])
def test_padding_is_zero_and_passes_nothing_back(implementation):
    segments = np.array([[0] * 8, [1] * 5 + [0] * 3], np.int32)
    case = AttentionCase(segments, None, None, True)
    given = arrays(np.random.default_rng(2), case, 1, 2, 4, "float32")
    given[0] = given[0].at[0].set(1e30)  # whatever stands there
    got = both_ways(*given, *case[:3], causal=True, block=4, implementation=implementation)
    for of in got:
        assert not np.any(np.asarray(of)[segments == 0])
        assert np.all(np.isfinite(of)) and np.any(np.asarray(of)[segments == 1])


def test_scores_far_apart_stay_finite():
    case = AttentionCase(np.ones((1, 32), np.int32), None, None, True)
    given = [200 * x for x in arrays(np.random.default_rng(3), case, 1, 1, 8, "float32")]
    got = both_ways(*given, *case[:3], causal=True, block=8, implementation="blocked")
    expected = attention(*given, table(case))
    assert relative_error(got[0], expected[0]) < 1e-4 and all(np.all(np.isfinite(of)) for of in got)


def test_memory_is_linear_in_the_sequence():
    def needed(length: int, implementation: str) -> int:
        shapes = [jax.ShapeDtypeStruct((1, length, heads, 8), jnp.float32) for heads in (2, 1, 1, 2)]
        ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
        options = {"causal": True, "block": 32, "implementation": implementation}
        program = both_ways.lower(*shapes, ids, None, ids, **options).compile()
        return program.memory_analysis().temp_size_in_bytes

    blocked = [needed(length, "blocked") for length in (512, 1024, 2048)]
    assert blocked[1] < 2.2 * blocked[0] and blocked[2] < 2.2 * blocked[1]
    assert needed(2048, "dense") > 8 * blocked[2]
