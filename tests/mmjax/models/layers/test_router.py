"""Routers against loops over tokens: scores, selection biases, groups, weights."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.modules.experts import ExpertsConfig, RouterConfig
from mmjax.models.layers.router import route_tokens

COUNT, TOP = 8, 3
LOGITS = np.random.default_rng(0).normal(size=(2, 9, COUNT)).astype(np.float32)
BIAS = np.random.default_rng(1).normal(size=COUNT).astype(np.float32)
ROUTERS = [
    RouterConfig(scores=scores, normalise=normalise, selection_bias=bias, groups=groups, top_groups=top_groups)
    for scores, normalise, bias, (groups, top_groups) in itertools.product(
        ("softmax", "sigmoid"), (True, False), (True, False), ((1, 1), (4, 2), (2, 1))
    )
]


def plain_routing(logits, router, bias):
    """Experts and weights of one token."""
    scores = np.exp(logits) / np.exp(logits).sum() if router.scores == "softmax" else 1 / (1 + np.exp(-logits))
    criteria = scores + bias
    groups = np.arange(COUNT).reshape(router.groups, -1)
    best = sorted(groups, key=lambda group: -sum(sorted(criteria[group])[-2:]))[: router.top_groups]
    allowed = [expert for group in best for expert in group] if router.groups > 1 else range(COUNT)
    chosen = sorted(allowed, key=lambda expert: -criteria[expert])[:TOP]
    weights = scores[chosen] / scores[chosen].sum() if router.normalise else scores[chosen]
    return chosen, weights * router.weight_factor, scores / scores.sum()


@pytest.mark.parametrize("router", ROUTERS, ids=str)
def test_routing_equals_a_loop_over_tokens(router):
    bias = jnp.asarray(BIAS) if router.selection_bias else None
    routing = route_tokens(jnp.asarray(LOGITS), ExpertsConfig(count=COUNT, top_k=TOP, router=router), bias)
    for place in np.ndindex(LOGITS.shape[:2]):
        experts, weights, probabilities = plain_routing(LOGITS[place], router, BIAS * router.selection_bias)
        assert np.asarray(routing.experts)[place].tolist() == experts
        np.testing.assert_allclose(routing.weights[place], weights, rtol=1e-5)
        np.testing.assert_allclose(routing.probabilities[place], probabilities, rtol=1e-5)


def test_normalised_softmax_scores_are_the_softmax_of_the_chosen_logits():
    routing = route_tokens(jnp.asarray(LOGITS), ExpertsConfig(count=COUNT, top_k=TOP))
    chosen = np.take_along_axis(LOGITS, np.asarray(routing.experts), axis=-1)
    np.testing.assert_allclose(routing.weights, jax.nn.softmax(jnp.asarray(chosen)), rtol=1e-5)


@pytest.mark.parametrize("logit", [-60.0, -88.0, -104.0, -1e4])
def test_sigmoids_that_are_all_nearly_zero_give_the_published_weights_and_finite_gradients(logit):
    router = RouterConfig(scores="sigmoid", selection_bias=True, weight_factor=2.5)
    config = ExpertsConfig(count=COUNT, top_k=TOP, router=router)
    logits = jnp.full((1, 2, COUNT), logit)

    def total(logits):
        routing = route_tokens(logits, config, jnp.asarray(BIAS))
        return jnp.sum(routing.weights) + jnp.sum(routing.probabilities), routing

    gradients, routing = jax.grad(total, has_aux=True)(logits)
    score = np.exp(np.float64(logit))  # transformers divides by the sum of the chosen plus 1e-20
    np.testing.assert_allclose(routing.weights, 2.5 * score / (TOP * score + 1e-20), rtol=1e-5, atol=1e-15)
    np.testing.assert_allclose(routing.probabilities, score / (COUNT * score + 1e-20), rtol=1e-5, atol=1e-15)
    assert np.isfinite(gradients).all()


def test_weights_have_no_gradient_of_the_selection_bias_but_of_the_logits():
    config = ExpertsConfig(count=COUNT, top_k=TOP, router=RouterConfig(scores="sigmoid", selection_bias=True))

    def total(logits, bias):
        return jnp.sum(jnp.square(route_tokens(logits, config, bias).weights))

    logit_gradients, bias_gradients = jax.grad(total, (0, 1))(jnp.asarray(LOGITS), jnp.asarray(BIAS))
    assert np.all(np.asarray(bias_gradients) == 0) and np.any(np.asarray(logit_gradients) != 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_groups": 2}, "top_groups = 2 is more than groups = 1"),
        ({"weight_factor": 0.0}, "weight_factor is 0.0"),
    ],
)
def test_invalid_routers_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        RouterConfig(**fields)
