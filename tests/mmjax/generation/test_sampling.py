"""Sampling: only allowed and likely tokens, with the frequencies of their probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import UserError
from mmjax.generation.sampling import Sampling, sample_tokens, top_p_mask

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
def test_top_p_mask_is_the_smallest_set_with_that_probability(top_p, kept):
    assert top_p_mask(LOGITS, top_p).tolist() == [[number < kept for number in range(4)]]


def test_samples_follow_the_probabilities():
    error = 4 * np.sqrt(0.25 / DRAWS)
    np.testing.assert_allclose(drawn(Sampling(1.0)), [0.5, 0.3, 0.15, 0.05], atol=error)
    np.testing.assert_allclose(drawn(Sampling(1.0, 0.8)), [0.625, 0.375, 0, 0], atol=error)
    squares = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    np.testing.assert_allclose(drawn(Sampling(0.5)), squares / squares.sum(), atol=error)
    assert drawn(Sampling(1.0), jnp.array([True, False, True, True]))[1] == 0


@pytest.mark.parametrize(("values", "message"), [((-1.0, 1.0), "temperature is -1.0"), ((1.0, 0.0), "top_p is 0.0")])
def test_invalid_sampling_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        Sampling(*values)
