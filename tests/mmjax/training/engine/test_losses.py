"""A loss of a user's own: with tensor, pipeline and data parallelism the same as on one device, gradients too."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig
from mmjax.models.modalities.losses import LossTerms
from mmjax.training.engine.stage_layouts import trees_by_module
from mmjax.training.verification.error_measures import gradient_errors
from sharding.plans.plan import Plan
from tests.mmjax.training.engines import STEP, noisy_parameters, noisy_state, reference, shared_engine
from tests.tiny_model import BACKBONE, tiny_batch
from tests.unit_plans import module_unit

PLAN = Plan(
    (module_unit("backbone", range(8), layers=(1, 1), recompute=("none", "full"), dp=2, tp=2),),
    2,
)


def smoothed(predictions):
    """Label smoothing with a z-loss."""
    values = predictions.log_normalizer - 0.9 * predictions.target_logits - 0.1 * predictions.mean_logits
    return LossTerms(values, {"z_loss": 0.1 * jnp.square(predictions.log_normalizer)})


def test_losses_and_gradients_on_a_plan_are_those_of_one_device():
    config = ModelConfig((), dataclasses.replace(BACKBONE, depth=2, loss=smoothed), ())
    batch = tiny_batch(config)
    losses, gradients = reference(config)(noisy_parameters(config), batch)
    engine = shared_engine(PLAN, config)
    actual_gradients, summary = engine.executor.gradients(noisy_state(engine), engine.place_batch(batch, STEP))
    actual = engine.losses_by_name(summary)
    assert actual.keys() == losses.keys() == {"backbone", "backbone/z_loss"}
    for name, loss in losses.items():
        np.testing.assert_allclose(actual[name], loss, rtol=1e-5, err_msg=name)
    errors = gradient_errors(trees_by_module(actual_gradients), gradients)["backbone"]
    assert {path: error for path, error in errors.items() if error > 1e-4} == {}
