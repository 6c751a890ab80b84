"""Plans whose modules have rows of their own, against plain differentiation of the whole model on one device."""

import dataclasses

import jax
import numpy as np
import pytest

from configs.architectures import ModelConfig
from data.packing.dealt_phases import plan_phase_rows
from sharding.plans.plan import Plan
from tests.mmjax.training.engines import (
    SETTINGS,
    STEP,
    WITHOUT_GENERATOR,
    assert_step_of_one_device,
    gradients_and_summary,
    largest_error,
    noisy_parameters,
    noisy_state,
    reference,
    shared_engine,
)
from tests.tiers import first_in_default
from tests.tiny_model import AUDIO, BACKBONE, TRANSFORMER_GENERATOR, VISION, tiny_batch
from tests.unit_plans import module_unit

BACKBONE_UNIT = module_unit("backbone", (3, 4, 5, 6), layers=(3,), dp=2, tp=2)
TWO_ENCODERS = ModelConfig((VISION, AUDIO), dataclasses.replace(BACKBONE, depth=1), (TRANSFORMER_GENERATOR,))

PLANS = {
    "3 replicas to 2": (
        WITHOUT_GENERATOR,
        Plan(
            (
                module_unit("vision", (0, 1, 2), layers=(2,), phase_rows=3, capacities=(12,), dp=3),
                BACKBONE_UNIT,
            ),
            microbatches=2,
        ),
    ),
    "an encoder of two stages and tensor ranks, on devices of the backbone": (
        WITHOUT_GENERATOR,
        Plan(
            (
                module_unit(
                    "vision",
                    range(8),
                    layers=(1, 1),
                    recompute=("full", "none"),
                    phase_rows=8,
                    capacities=(4,),
                    dp=2,
                    tp=2,
                    collectives="sequence_parallel",
                ),
                BACKBONE_UNIT,
            ),
            microbatches=2,
        ),
    ),
    "two encoders, and a generator with more replicas than the batch has rows": (
        TWO_ENCODERS,
        Plan(
            (
                module_unit("vision", (0, 1, 2), layers=(2,), phase_rows=3, capacities=(12,), dp=3),
                module_unit("audio", (3,), layers=(2,), phase_rows=1, capacities=(32,)),
                module_unit("backbone", (4,), layers=(1,)),
                module_unit("generator", (5, 6, 7, 0, 1, 2), phase_rows=6, capacities=(1,), dp=6),
            ),
            microbatches=2,
        ),
    ),
}


@pytest.mark.parametrize(("config", "plan"), first_in_default(PLANS.values()), ids=list(PLANS))
def test_losses_and_gradients_are_those_of_one_device(config, plan):
    engine = shared_engine(plan, config)
    assert len(engine.exchanges.channels) == len(engine.phases) == sum(unit.phase_rows > 0 for unit in plan.units)
    assert_step_of_one_device(engine)


@pytest.mark.layouts
def test_losses_and_gradients_are_those_of_one_device_where_items_are_dealt_by_quadratic_cost():
    config, plan = PLANS["3 replicas to 2"]
    engine, batch = shared_engine(plan, config), tiny_batch(config)
    batch["vision"]["segments"][::2] = 1  # one image of both cells
    batch["backbone"]["vision_index"][::2, 4] = 1
    weighted = plan_phase_rows(plan, config, batch, quadratic_cost_weights=(("patches", 1.0),))
    by_length, by_cost = (phases.deal(batch) for phases in (engine.dealt_phases, weighted))
    assert (by_length["vision items"]["items"][:, 3] != by_cost["vision items"]["items"][:, 3]).any()
    losses, expected = reference(config)(noisy_parameters(config), batch)
    gradients, summary = gradients_and_summary(engine, by_cost)
    np.testing.assert_allclose(np.sum(summary.losses), sum(losses.values()), rtol=1e-5)
    error, name = largest_error(gradients, expected)
    assert error < 1e-3, name


@pytest.mark.layouts
def test_no_gradient_is_sent_to_an_encoder_that_does_not_train():
    config, plan = PLANS["3 replicas to 2"]
    engine = shared_engine(plan, config, dataclasses.replace(SETTINGS, trainable=("backbone",)))
    gradients, _ = gradients_and_summary(engine, tiny_batch(config))
    ((channel,),) = engine.exchanges.channels.values()
    assert set(gradients) == {"backbone"}
    assert channel.activation_hop.arrived is not None and channel.gradient_hop.arrived is None


def test_an_evaluation_answers_as_without_rows_of_its_own():
    config, plan = PLANS["3 replicas to 2"]
    whole = Plan(
        (
            dataclasses.replace(
                plan.units[0],
                phase_rows=0,
                capacities=(),
                devices=(0,),
                parallelism=dataclasses.replace(plan.units[0].parallelism, dp=1),
            ),
            BACKBONE_UNIT,
        ),
        2,
    )
    correct = []
    for phase_plan in (plan, whole):
        engine = shared_engine(phase_plan, config)
        batch = engine.place_batch(tiny_batch(config), STEP)
        weights = engine.executor.compute_weights(noisy_state(engine))
        results = engine.executor.evaluate(weights, batch)["backbone", 0].values()
        correct.append([np.asarray(result.auxiliary_metrics["backbone/correct"]) for result in results])
    for one, two in zip(*correct, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_batch_without_an_image_is_an_ordinary_one():
    config, plan = PLANS["3 replicas to 2"]
    engine, batch = shared_engine(plan, config), tiny_batch(config)
    batch["vision"]["segments"][:] = 0
    batch["backbone"]["vision_index"][:] = -1
    gradients, summary = engine.executor.gradients(noisy_state(engine), engine.place_batch(batch, STEP))
    assert float(summary.all_finite) == 1
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients["vision", 0]))


@pytest.mark.layouts
def test_items_with_a_class_token_keep_its_cell():
    config = dataclasses.replace(WITHOUT_GENERATOR, encoders=(dataclasses.replace(VISION, class_token=True),))
    plan = Plan(
        (
            module_unit("vision", (0, 1, 2), layers=(2,), phase_rows=3, capacities=(16,), dp=3),
            BACKBONE_UNIT,
        ),
        microbatches=2,
    )
    engine, batch = shared_engine(plan, config), tiny_batch(config)
    batch["backbone"]["vision_index"][1::3] = -1  # these rows have no image
    assert_step_of_one_device(engine, batch=batch)
