"""Loss functions: the same values and gradients for whole and split vocabularies; wrong ones are refused by name."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from configs.architectures import BackboneConfig, UNetConfig
from configs.common.errors import UserError
from mmjax.models.layers.chunked_logits import chunked_logits
from mmjax.models.modalities.losses import (
    DenoisingPredictions,
    LossTerms,
    cross_entropy,
    mean_squared_error,
    token_predictions,
    weighted_loss,
)
from mmjax.training.engine.stage_functions import RECOMPUTATION_POLICIES
from sharding.axes import Axes
from tests.tiers import first_in_default

TENSOR = Axes(tensor=("model",))
WEIGHT, SMOOTHING, RARE = 0.3, 0.1, (1, 4)


@dataclasses.dataclass(frozen=True)
class EveryTerm:
    """Label smoothing, with a term for each of the other quantities that a loss function may use."""

    weight: float = WEIGHT

    def __call__(self, predictions):
        smoothed = -(1 - SMOOTHING) * predictions.target_logits - SMOOTHING * predictions.mean_logits

        def entropy(chunk):
            return -jnp.exp(chunk.log_probabilities) * chunk.log_probabilities

        def rare(chunk):
            return jnp.where(jnp.isin(chunk.token_ids, jnp.array(RARE)), jnp.exp(chunk.log_probabilities), 0.0)

        def scaled(chunk):
            return jnp.square(chunk.logits) * predictions.target_logits[..., None]

        return LossTerms(
            smoothed + predictions.log_normalizer,
            {
                "z_loss": self.weight * jnp.square(predictions.log_normalizer),
                "entropy": predictions.sum_over_vocabulary(entropy),
                "rare": predictions.sum_over_vocabulary(rare),
                "scaled": predictions.sum_over_vocabulary(scaled),
                "focal": jnp.square(1 - jnp.exp(predictions.log_likelihood)) * cross_entropy(predictions),
            },
        )


def formulas(logits, targets, weights, xp=np):
    """What `EveryTerm` should give, by its definition on the whole vocabulary."""
    log_normalizer = xp.log(xp.sum(xp.exp(logits), axis=-1))
    log_probabilities = logits - log_normalizer[..., None]
    likelihood = xp.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    terms = {
        "loss": -(1 - SMOOTHING) * likelihood - SMOOTHING * xp.mean(log_probabilities, axis=-1),
        "z_loss": WEIGHT * log_normalizer**2,
        "entropy": -xp.sum(xp.exp(log_probabilities) * log_probabilities, axis=-1),
        "rare": xp.sum(xp.exp(log_probabilities)[..., xp.array(RARE)], axis=-1),
        "scaled": xp.sum(logits**2, axis=-1) * xp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0],
        "focal": -((1 - xp.exp(likelihood)) ** 2) * likelihood,
    }
    return {name: xp.sum(weights * values) for name, values in terms.items()}


def operands(vocabulary=8):
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 5, vocabulary)) * 4
    targets = random.integers(0, vocabulary, (2, 5)).astype(np.int32)
    weights = random.random((2, 5))
    weights[0, 1] = 0.0
    return logits.astype(np.float32), targets, weights.astype(np.float32)


def predictions_of(logits, targets, axes, vocabulary=None, chunk=0, rows=None):
    """Predictions of given logits, `[r, s, v]` on all ranks, in chunks of so many tokens: hidden states @ identity."""
    vocabulary = vocabulary or logits.shape[-1]
    table = jnp.eye(logits.shape[-1]) if rows is None else rows
    chunks = chunked_logits(logits, table, vocabulary, axes)
    if chunk:
        options = dataclasses.replace(chunks.options, chunk=min(chunk, table.shape[0]))
        chunks = dataclasses.replace(chunks, options=options)
    return token_predictions(chunks, targets, axes)


def losses_of(loss, logits, targets, weights, rows, axes, vocabulary=None, chunk=0):
    predictions = predictions_of(logits, targets, axes, vocabulary, chunk, rows)
    total, auxiliary = weighted_loss(loss, predictions, weights, axes)
    return {"loss": total, **auxiliary}


def split(loss, devices, chunk=0):
    """`(logits, targets, weights) -> losses by name`; on so many devices that divide the vocabulary, or on one.

    Where they do not divide it evenly, padding of large logits follows it.
    """
    if not devices:
        one = functools.partial(losses_of, loss, axes=Axes(), chunk=chunk)
        return jax.jit(lambda logits, *others: one(logits, *others, jnp.eye(logits.shape[-1])))
    mesh = jax.make_mesh((devices,), ("model",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:devices])

    @jax.jit
    def run(logits, targets, weights):
        vocabulary = logits.shape[-1]
        padding = -vocabulary % devices
        padded = jnp.pad(logits, [(0, 0), (0, 0), (0, padding)], constant_values=50.0)
        rank_losses = functools.partial(losses_of, loss, axes=TENSOR, vocabulary=vocabulary, chunk=chunk)
        in_specs = P(), P(), P(), P("model")
        sharded = jax.shard_map(rank_losses, mesh=mesh, in_specs=in_specs, out_specs=P())
        return sharded(padded, targets, weights, jnp.eye(vocabulary + padding))

    return run


CHUNKS = [0, 3]
"""Tokens of a chunk; 0 for the whole vocabulary of a rank."""
DIVISIONS = [(7, 2), (8, None), (8, 1), (8, 2), (8, 4), pytest.param(5, 4, id="a rank of padding alone")]
"""Vocabulary and devices."""


@pytest.mark.parametrize(("vocabulary", "devices"), first_in_default(DIVISIONS))
@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_users_loss_over_a_split_vocabulary_equals_its_formula_with_gradients(vocabulary, devices, chunk):
    logits, targets, weights = operands(vocabulary)
    run = split(EveryTerm(), devices, chunk)
    losses = run(logits, targets, weights)
    expected = formulas(
        *(array.astype(float) if array.dtype == np.float32 else array for array in operands(vocabulary))
    )
    assert losses.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(losses[name], value, rtol=1e-5, err_msg=name)
    gradient = jax.grad(lambda logits: sum(run(logits, targets, weights).values()))(jnp.asarray(logits))
    wanted = jax.grad(lambda logits: sum(formulas(logits, targets, weights, jnp).values()))(jnp.asarray(logits))
    np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("devices", [None, 4])
@pytest.mark.parametrize("policy", RECOMPUTATION_POLICIES)
def test_a_sum_over_the_vocabulary_may_use_whole_numbers_and_roots_under_every_policy(policy, devices):
    """The function takes the targets from outside, and its derivative is infinite at probability 0."""
    logits, targets, weights = operands(7)

    def loss(predictions):
        def root_of_target(chunk):
            is_target = chunk.token_ids == predictions.targets[..., None]
            return jnp.where(is_target, jnp.sqrt(jnp.exp(chunk.log_probabilities)), 0.0).astype(jnp.bfloat16)

        return predictions.sum_over_vocabulary(root_of_target)

    def total(logits):
        run = RECOMPUTATION_POLICIES[policy](lambda logits: split(loss, devices, 3)(logits, targets, weights)["loss"])
        return run(logits)

    def expected(logits):
        likelihood = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
        return jnp.sum(weights * jnp.exp(0.5 * likelihood))

    value, gradient = jax.jit(jax.value_and_grad(total))(jnp.asarray(logits))
    wanted, wanted_gradient = jax.value_and_grad(expected)(jnp.asarray(logits))
    np.testing.assert_allclose(value, wanted, rtol=1e-2)  # of values in bfloat16
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=2e-2, atol=1e-3)


def reference_loss(logits, targets, weights):
    likelihood = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return -jnp.sum(weights * likelihood)


@pytest.mark.parametrize(("vocabulary", "devices"), DIVISIONS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_cross_entropy_over_a_split_vocabulary_equals_log_softmax_with_gradients(vocabulary, devices, chunk):
    logits, targets, weights = map(jnp.asarray, operands(vocabulary))
    run = split(cross_entropy, devices, chunk)
    loss, gradient = jax.value_and_grad(lambda logits: run(logits, targets, weights)["loss"])(logits)
    expected, wanted = jax.value_and_grad(reference_loss)(logits, targets, weights)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-6)


def test_large_logits_do_not_overflow_and_the_most_likely_targets_are_marked():
    logits, targets, weights = map(jnp.asarray, operands())
    assert np.isfinite(split(cross_entropy, None, 3)(logits * 1e4, targets, weights)["loss"])
    predictions = predictions_of(logits, targets, Axes(), chunk=3)
    np.testing.assert_array_equal(predictions.is_most_likely, jnp.argmax(logits, axis=-1) == targets)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda p: jnp.sum(p.log_likelihood), r"returns shape \(\); give each token or image one value: \(2, 5\)"),
        (lambda p: p.targets, "returns int32; return an array of floating-point values"),
        (lambda p: 0.5, "returns float; return an array of floating-point values, or LossTerms"),
        (lambda p: LossTerms(p.log_likelihood, {"z": p.chunks.whole()}), r"returns as 'z' shape \(2, 5, 8\)"),
        (lambda p: LossTerms(p.log_likelihood, {"balance": p.log_likelihood}), "the name of the experts' loss"),
        (lambda p: p.sum_over_vocabulary(lambda c: p.targets), r"shape \(2, 5\); give one value .*, \(2, 5, 8\)"),
    ],
)
def test_a_loss_that_gives_no_value_for_each_token_is_refused(loss, message):
    with pytest.raises(UserError, match=message):
        split(loss, None)(*map(jnp.asarray, operands()))


def test_a_loss_of_one_ranks_part_of_the_vocabulary_is_refused():
    """On one device it cannot be told from a right one; with tensor ranks every rank would have another loss."""
    with pytest.raises(UserError, match="values that differ between tensor ranks; sum over the vocabulary by"):
        split(lambda predictions: jnp.max(predictions.chunks.whole(), axis=-1), 2)(*map(jnp.asarray, operands()))


def test_a_loss_of_images_is_weighted_by_image():
    random = np.random.default_rng(1)
    x = {
        name: random.normal(size=(3, 2, 2, 1)).astype(np.float32) for name in ("predicted", "target", "images", "noise")
    }
    signal = np.array([0.9, 0.6, 0.1], np.float32)
    noise = np.sqrt(1 - signal**2)
    predictions = DenoisingPredictions(
        **{name: jnp.asarray(array) for name, array in x.items()},
        prediction="velocity",
        signal_scale=jnp.asarray(signal),
        noise_scale=jnp.asarray(noise),
        mean_squared_errors=jnp.mean(jnp.square(x["predicted"] - x["target"]), axis=(1, 2, 3)),
    )
    weights = jnp.array([0.5, 0.0, 0.25])
    errors = np.mean((x["predicted"] - x["target"]) ** 2, axis=(1, 2, 3))
    loss, auxiliary = weighted_loss(mean_squared_error, predictions, weights, Axes())
    np.testing.assert_allclose(loss, np.sum(weights * errors), rtol=1e-6)
    assert auxiliary == {}

    def min_snr(predictions):  # arXiv 2303.09556, with gamma = 2
        ratio = predictions.signal_to_noise
        return jnp.minimum(ratio, 2.0) / (ratio + 1.0) * predictions.mean_squared_errors

    ratio = (signal / noise) ** 2
    loss, _ = weighted_loss(min_snr, predictions, weights, Axes())
    np.testing.assert_allclose(loss, np.sum(weights * np.minimum(ratio, 2) / (ratio + 1) * errors), rtol=1e-5)


@pytest.mark.parametrize("config", [BackboneConfig, UNetConfig])
@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (EveryTerm, r"loss is the class EveryTerm; give an instance of it \(in gin, @EveryTerm\(\)\)"),
        ("z_loss", "loss is 'z_loss'; give a function, or an instance of a class with __call__"),
        (dataclasses.make_dataclass("Unhashable", [("x", int)], namespace={"__call__": cross_entropy})(1), "no hash"),
    ],
)
def test_a_configuration_refuses_what_is_no_loss(config, loss, message):
    with pytest.raises(ValueError, match=message):
        config(loss=loss)
