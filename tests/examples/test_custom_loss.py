"""The example of losses: its formulas in float64, and the configuration that its gin file makes."""

import jax.numpy as jnp
import numpy as np
import pytest

from mmjax import cli
from mmjax.models.layers.chunked_logits import chunked_logits
from mmjax.models.modalities.losses import DenoisingPredictions, token_predictions
from mmjax.training.config import TrainConfig
from sharding.axes import Axes
from tests.examples.loading import EXAMPLES, load_example


def test_label_smoothing_and_z_loss_equal_their_definitions():
    random = np.random.default_rng(0)
    logits, targets = 3 * random.normal(size=(2, 4, 6)), random.integers(0, 6, (2, 4))
    loss = load_example("custom_loss").SmoothedCrossEntropy(smoothing=0.2, z_weight=0.5)
    chunks = chunked_logits(jnp.asarray(logits, jnp.float32), jnp.eye(6), 6, Axes())
    terms = loss(token_predictions(chunks, jnp.asarray(targets, jnp.int32), Axes()))
    log_normalizer = np.log(np.sum(np.exp(logits), axis=-1))
    smoothed_targets = 0.8 * np.eye(6)[targets] + 0.2 / 6
    expected = -np.sum(smoothed_targets * (logits - log_normalizer[..., None]), axis=-1)
    np.testing.assert_allclose(terms.values, expected, rtol=1e-5)
    assert [*terms.auxiliary] == ["z_loss"]
    np.testing.assert_allclose(terms.auxiliary["z_loss"], 0.5 * log_normalizer**2, rtol=1e-5)


@pytest.mark.parametrize("prediction", ["velocity", "epsilon"])
def test_min_snr_weights_the_error_of_the_image_by_the_clipped_ratio(prediction):
    """An error of the prediction is one of the image, times its SNR (noise) or SNR + 1 (velocity)."""
    signal = np.array([0.99, 0.7, 0.2], np.float32)
    noise = np.sqrt(1 - signal**2)
    errors_of_images = np.array([0.5, 1.0, 2.0])
    ratio = (signal / noise) ** 2
    errors = errors_of_images * (ratio + 1 if prediction == "velocity" else ratio)
    images = jnp.zeros((3, 1, 1, 1))
    predictions = DenoisingPredictions(
        predicted=images,
        target=images,
        prediction=prediction,
        images=images,
        noise=images,
        signal_scale=jnp.asarray(signal),
        noise_scale=jnp.asarray(noise),
        mean_squared_errors=jnp.asarray(errors, jnp.float32),
    )
    values = load_example("custom_loss").MinSNR(gamma=5.0)(predictions)
    np.testing.assert_allclose(values, np.minimum(ratio, 5.0) * errors_of_images, rtol=1e-5)


def test_the_gin_file_gives_the_losses_to_the_model(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)
    cli.parse_gin(["custom_loss.gin"])
    model = cli.configured(TrainConfig).model
    assert repr(model.backbone.loss) == "SmoothedCrossEntropy(smoothing=0.05, z_weight=0.0001)"
    assert repr(model.generators[0].loss) == "MinSNR(gamma=5.0)"
