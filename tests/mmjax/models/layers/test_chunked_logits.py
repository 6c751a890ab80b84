"""Logits in chunks of the vocabulary: against whole ones, and what they cost in arithmetic and memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mmjax.models.layers.chunked_logits import chunked_logits
from mmjax.models.layers.vocabulary_chunks import CHUNK_BYTES, MIN_CHUNK, chunk_rows
from mmjax.training.engine.stage_functions import RECOMPUTATION_POLICIES
from mmjax.training.metrics.flops import count_flops
from sharding.axes import Axes

ROWS, POSITIONS, WIDTH, VOCABULARY = 2, 3, 4, 11


def operands(dtype=jnp.float32):
    random = np.random.default_rng(0)
    hidden, table = random.normal(size=(ROWS, POSITIONS, WIDTH)), random.normal(size=(VOCABULARY, WIDTH))
    return jnp.asarray(hidden, dtype), jnp.asarray(table, dtype), jnp.asarray([[0, 10, 4], [7, 8, 3]], jnp.int32)


def in_chunks(hidden, table, rows, softcap=0.0):
    logits = chunked_logits(hidden, table, len(table), Axes(), softcap=softcap)
    return dataclasses.replace(logits, options=dataclasses.replace(logits.options, chunk=rows))


def whole_logits(hidden, table, softcap):
    logits = jnp.einsum("rsd,vd->rsv", hidden.astype(jnp.float32), table.astype(jnp.float32))
    return softcap * jnp.tanh(logits / softcap) if softcap else logits


def total(sums):
    """A scalar that depends on every differentiable sum."""
    return jnp.sum(jnp.log(sums.exp_sum) + sums.largest + 0.5 * sums.target_logits + 0.1 * sums.logit_sum)


@pytest.mark.parametrize("rows", [1, 4, 10, 11])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_sums_and_gradients_equal_those_of_whole_logits_whatever_the_chunk(rows, softcap):
    hidden, table, targets = operands()

    def chunked(hidden, table):
        return total(in_chunks(hidden, table, rows, softcap).sums(targets))

    def whole(hidden, table):
        logits = whole_logits(hidden, table, softcap)
        target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)
        normalizer = jax.nn.logsumexp(logits, axis=-1)
        return jnp.sum(normalizer) + 0.5 * jnp.sum(target_logits) + 0.1 * jnp.sum(logits)

    with jax.default_matmul_precision("highest"):
        actual = jax.jit(jax.value_and_grad(chunked, (0, 1)))(hidden, table)
        expected = jax.value_and_grad(whole, (0, 1))(hidden, table)
        np.testing.assert_allclose(
            in_chunks(hidden, table, rows, softcap).whole(), whole_logits(hidden, table, softcap), rtol=1e-5
        )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), actual, expected)


def test_in_bfloat16_the_cotangents_of_logits_are_rounded_and_sums_are_not():
    hidden, table, targets = operands(jnp.bfloat16)
    gradient = jax.grad(lambda table: total(in_chunks(hidden, table, 4).sums(targets)))
    exact = jax.grad(lambda table: total(in_chunks(hidden.astype(jnp.float32), table, 4).sums(targets)))
    actual, expected = gradient(table), exact(table.astype(jnp.float32))
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(actual.astype(jnp.float32), expected, atol=2**-7 * float(jnp.max(jnp.abs(expected))))


@pytest.mark.parametrize("trained", ["hidden", "table"])
def test_a_gradient_that_is_not_asked_for_is_not_computed(trained):
    hidden, table, targets = operands()
    given = {"hidden": hidden, "table": table}

    def loss(operand):
        return total(in_chunks(**given | {trained: operand}, rows=VOCABULARY).sums(targets))

    one = 2 * ROWS * POSITIONS * WIDTH * VOCABULARY
    assert count_flops(jax.grad(loss), given[trained]) == 3 * one  # logits, logits again, one product


@pytest.mark.parametrize("policy", RECOMPUTATION_POLICIES)
def test_every_policy_computes_the_logits_twice(policy):
    hidden, table, targets = operands()
    head = RECOMPUTATION_POLICIES[policy](lambda pair: total(in_chunks(*pair, rows=VOCABULARY).sums(targets)))
    one = 2 * ROWS * POSITIONS * WIDTH * VOCABULARY
    assert count_flops(jax.grad(head), (hidden, table)) == 4 * one


def test_residuals_have_no_logits_and_no_copy_of_the_table():
    hidden, table, targets = operands()
    _, pull = jax.vjp(lambda hidden, table: total(in_chunks(hidden, table, 4).sums(targets)), hidden, table)
    values = [leaf for leaf in jax.tree.leaves(pull) if leaf.size > ROWS * POSITIONS]
    assert sorted(leaf.shape for leaf in values) == sorted([hidden.shape, table.shape])
    assert any(leaf is table for leaf in values)


def test_a_large_head_needs_the_memory_of_a_few_chunks():
    """8,192 positions with the width and the vocabulary of Qwen3-8B: whole logits take 5 GB, and their gradient too."""
    positions, width, vocabulary = 8192, 4096, 151936
    hidden, table = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, positions, width), (vocabulary, width)))
    targets = jax.ShapeDtypeStruct((1, positions), jnp.int32)

    def loss(hidden, table, targets):
        return total(chunked_logits(hidden, table, vocabulary, Axes()).sums(targets))

    memory = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(hidden, table, targets).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.4e9


@pytest.mark.parametrize(
    ("positions", "local_rows", "expected"),
    [(8192, 151936, 2048), (4096, 151936, 4096), (131072, 151936, MIN_CHUNK), (64, 200, 200), (8191, 10**6, 2048)],
)
def test_a_chunk_has_so_many_rows_that_its_logits_fit_but_enough_for_a_matmul(positions, local_rows, expected):
    rows = chunk_rows(positions, local_rows)
    assert rows == expected
    assert rows <= max(CHUNK_BYTES // (4 * positions), MIN_CHUNK)
