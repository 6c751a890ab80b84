"""Losses of a user's own: on a plan with tp, pp and dp the same as on one device, auxiliary losses by name included."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from mmjax.models.modalities.losses import LossTerms
from mmjax.training.engine.stage_layouts import trees_by_module
from mmjax.training.verification.error_measures import gradient_errors
from tests.mmjax.training.engines import STEP, noisy_parameters, noisy_state, reference, shared_engine
from tests.mmjax.training.short_runs import PLANS
from tests.tiny_model import GENERATOR, tiny_batch, tiny_model

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def smoothed(predictions):
    """Label smoothing over 24 tokens with a z-loss."""
    smoothed = predictions.log_normalizer - 0.9 * predictions.target_logits - 0.1 * predictions.mean_logits
    return LossTerms(smoothed, {"z_loss": 0.1 * jnp.square(predictions.log_normalizer)})


def min_snr(predictions):
    """Velocities weighted by min(SNR, 2) / (SNR + 1), with the noise that they say there is as a second loss."""
    ratio, errors = predictions.signal_to_noise, predictions.mean_squared_errors
    scales = (scale[:, None, None, None] for scale in (predictions.noise_scale, predictions.signal_scale))
    noise_scale, signal_scale = scales
    noisy = signal_scale * predictions.images + noise_scale * predictions.noise
    noise = noise_scale * noisy + signal_scale * predictions.predicted
    noise_errors = jnp.mean(jnp.abs(noise - predictions.noise), axis=(1, 2, 3))
    return LossTerms(jnp.minimum(ratio, 2.0) / (ratio + 1.0) * errors, {"noise": noise_errors})


def test_losses_and_gradients_on_a_plan_are_those_of_one_device():
    config = dataclasses.replace(tiny_model(loss=smoothed), generators=(dataclasses.replace(GENERATOR, loss=min_snr),))
    batch = tiny_batch(config)
    losses, gradients = reference(config)(noisy_parameters(config), batch)
    assert losses.keys() == {"backbone", "backbone/z_loss", "generator", "generator/noise"}
    engine = shared_engine(PLANS["spread"], config)
    actual_gradients, summary = engine.executor.gradients(noisy_state(engine), engine.place_batch(batch, STEP))
    actual = engine.losses_by_name(summary)
    assert actual.keys() == losses.keys() and min(actual.values()) > 0
    for name, loss in losses.items():
        np.testing.assert_allclose(actual[name], loss, rtol=1e-5, err_msg=name)
    errors = gradient_errors(trees_by_module(actual_gradients), gradients)
    assert {module: max(of.values()) < 1e-4 for module, of in errors.items()} == dict.fromkeys(errors, True)
