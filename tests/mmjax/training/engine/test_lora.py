"""Adapters train on every layout as on one device, and nothing but them does."""

import dataclasses

import jax
import numpy as np
import pytest

from configs.architectures import LoraConfig
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.mmjax.training.engines import (
    BACKBONE_UNIT,
    SETTINGS,
    VISION_UNIT,
    WITHOUT_GENERATOR,
    assert_step_of_one_device,
    noisy_state,
    shared_engine,
)
from tests.tiers import first_in_default
from tests.tiny_model import tiny_batch

CONFIG = dataclasses.replace(WITHOUT_GENERATOR, lora=(LoraConfig("backbone", rank=2), LoraConfig("vision", rank=2)))
TRAINED = ("backbone_lora", "vision_lora", "vision_projector")
SPLIT_VISION = UnitPlan("vision", ("vision",), (0, 1), layers=(2,), parallelism=Parallelism(tp=2))
PLANS = {
    "data, tensor around a ring, pipeline": Plan(
        (VISION_UNIT, BACKBONE_UNIT.with_parallelism(collectives="ring")), microbatches=2
    ),
    "tensor ranks next to one device": Plan((SPLIT_VISION, UnitPlan("backbone", ("backbone",), (2,), layers=(3,)))),
}


def training(plan: Plan, *trainable: str):
    return shared_engine(plan, CONFIG, dataclasses.replace(SETTINGS, trainable=trainable))


@pytest.mark.parametrize("plan", first_in_default(reversed(PLANS)))
def test_gradients_of_adapters_are_those_of_one_device(plan):
    gradients, _ = assert_step_of_one_device(training(PLANS[plan], *TRAINED))
    assert {module: set(tree) for module, tree in gradients.items()} == {
        "vision": {"blocks_lora", "projector"},
        "backbone": {"blocks_lora"},
    }


def test_a_step_moves_adapters_and_no_weight_that_they_adapt():
    engine = training(PLANS["tensor ranks next to one device"], *TRAINED)
    state = noisy_state(engine)
    before = jax.tree.map(np.array, state.master_weights)
    assert {key for tree in state.optimizer_state.values() for key in tree} == {
        "vision/blocks_lora",
        "vision/projector",
        "backbone/blocks_lora",
    }
    for step in range(2):  # the first one's learning rate is 0
        state, _ = engine.executor.step(state, engine.place_batch(tiny_batch(CONFIG), step))
    for node, keys in before.items():
        for key, layers in keys.items():
            pairs = list(zip(jax.tree.leaves(layers), jax.tree.leaves(state.master_weights[node][key]), strict=True))
            moved = [bool(np.any(one != np.asarray(other))) for one, other in pairs]
            assert all(moved) if key in state.optimizer_state.get(node, {}) else not any(moved), key
