"""Sampling: only allowed and likely tokens, with the frequencies of their probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.common.errors import UserError
from mmjax.generation.sampling import Sampling, candidate_mask, penalise_repetition, sample_tokens
from mmjax.generation.trained_model import Answer

LOGITS = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05]]))
ALL = jnp.ones(4, bool)
DRAWS = 4000


def drawn(sampling: Sampling, sayable=ALL) -> np.ndarray:
    """Frequencies of the tokens over many samples."""
    keys = jax.random.split(jax.random.key(0), DRAWS)
    tokens = sample_tokens(jnp.repeat(LOGITS, DRAWS, axis=0), keys, sampling, sayable)
    return np.bincount(np.asarray(tokens), minlength=4) / DRAWS


def test_temperature_zero_takes_the_most_likely_allowed_token():
    keys = jax.random.split(jax.random.key(0), 1)
    assert sample_tokens(LOGITS, keys, Sampling(), ALL).tolist() == [0]
    assert sample_tokens(LOGITS, keys, Sampling(), jnp.array([False, True, True, True])).tolist() == [1]


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.9, 3), (1.0, 4)])
def test_top_p_keeps_the_smallest_set_with_that_probability(top_p, kept):
    assert candidates(LOGITS, top_p=top_p) == list(range(kept))


def candidates(logits, **fields) -> list[int]:
    """The numbers of the tokens that may be sampled."""
    (mask,) = candidate_mask(logits, Sampling(1.0, **fields))
    return np.flatnonzero(mask).tolist()


def test_probabilities_that_add_up_to_top_p_but_for_rounding_are_enough():
    """In the order of ids, ties included: transformers keeps tokens 0 and 3 of these."""
    assert candidates(jnp.log(jnp.array([[0.3, 0.1, 0.1, 0.5]])), top_p=0.8) == [0, 3]


def test_of_tokens_that_are_equally_likely_as_few_are_kept_as_are_needed():
    equal = jnp.zeros((1, 8))
    assert candidates(equal, top_p=0.5) == [0, 1, 2, 3]
    assert candidates(equal, top_k=3) == [0, 1, 2]
    assert candidates(equal, min_p=1.0) == list(range(8))


def test_top_k_min_p_and_top_p_restrict_each_other_in_this_order():
    assert candidates(LOGITS, top_k=3) == [0, 1, 2] and candidates(LOGITS, top_k=9) == [0, 1, 2, 3]
    assert candidates(LOGITS, min_p=0.3) == [0, 1, 2] and candidates(LOGITS, min_p=0.31) == [0, 1]
    assert candidates(LOGITS, top_p=0.6) == [0, 1]
    assert candidates(LOGITS, top_p=0.6, top_k=2) == [0]  # of the two, 0.5 / 0.8 is more than 0.6
    assert candidates(LOGITS, top_p=0.95, min_p=0.5) == [0, 1]
    assert candidates(jnp.array([[0.0, -jnp.inf]]), top_k=2) == [0]


@pytest.mark.parametrize("temperature", [1e-40, 1e-320, 1e-3])
def test_a_temperature_near_zero_samples_the_most_likely_token(temperature):
    assert drawn(Sampling(temperature)).tolist() == [1, 0, 0, 0]
    assert drawn(Sampling(temperature, 0.9), jnp.array([False, True, True, True])).tolist() == [0, 1, 0, 0]


def test_a_large_temperature_samples_all_tokens_alike():
    np.testing.assert_allclose(drawn(Sampling(1e30)), [0.25] * 4, atol=0.03)


def test_the_repetition_penalty_weakens_what_was_seen_whatever_its_sign():
    logits, seen = jnp.array([[2.0, -2.0, 2.0, -2.0]]), jnp.array([[True, True, False, False]])
    assert penalise_repetition(logits, seen, 4.0).tolist() == [[0.5, -8.0, 2.0, -2.0]]


def test_samples_follow_the_probabilities():
    error = 4 * np.sqrt(0.25 / DRAWS)
    np.testing.assert_allclose(drawn(Sampling(1.0)), [0.5, 0.3, 0.15, 0.05], atol=error)
    np.testing.assert_allclose(drawn(Sampling(1.0, 0.8)), [0.625, 0.375, 0, 0], atol=error)
    squares = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    np.testing.assert_allclose(drawn(Sampling(0.5)), squares / squares.sum(), atol=error)
    assert drawn(Sampling(1.0), jnp.array([True, False, True, True]))[1] == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((-1.0, 1.0), "temperature is -1.0"),
        ((1.0, 0.0), "top_p is 0.0"),
        ((1.0, 1.0, -1), "top_k is -1"),
        ((1.0, 1.0, 0, 1.5), "min_p is 1.5"),
        ((1.0, 1.0, 0, 0.0, 0.0), "repetition_penalty is 0.0"),
    ],
)
def test_invalid_sampling_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        Sampling(*values)


@pytest.mark.parametrize(
    ("stop", "text", "ended"),
    [
        ((), "yes. And no\nUser: why?", False),
        (("Nobody",), "yes. And no\nUser: why?", False),
        (("User:", "\n"), "yes. And no", True),
        (("no", " And", "."), "yes", True),
        (("yes",), "", True),
    ],
)
def test_an_answer_ends_at_the_first_stop_string(stop, text, ended):
    assert Answer("yes. And no\nUser: why?", False).until(stop) == (text, ended)
