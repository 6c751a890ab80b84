"""Vocabularies that ranks do not divide: losses, gradients and updates are those of one device, of the real rows."""

import dataclasses

import jax
import numpy as np
import pytest

from configs.architectures import ModelConfig
from configs.optimizer import Adafactor, AdamW, OptimizerConfig
from mmjax.training.engine.stage_layouts import trees_by_module
from sharding.plans.plan import Plan
from tests.mmjax.training.engines import (
    SETTINGS,
    assert_step_of_one_device,
    noisy_parameters,
    noisy_state,
    shared_engine,
)
from tests.tiers import first_in_default
from tests.tiny_model import BACKBONE, tiny_batch
from tests.unit_plans import flat_unit


def text_model(vocabulary, *, tied):
    return ModelConfig((), dataclasses.replace(BACKBONE, vocabulary=vocabulary, depth=2, tie_embeddings=tied), ())


def unit(layers, **divisions):
    count = len(layers)
    for name in ("dp", "tp"):
        count *= divisions.get(name, 1)
    return flat_unit(
        "backbone", ("backbone",), tuple(range(count)), layers=layers, recompute=("none",) * len(layers), **divisions
    )


STAGES = Plan((unit((1, 1), tp=2),), 2)
"""Two stages of two tensor ranks: of tied embeddings the second borrows the padded rows of the first."""


@pytest.mark.parametrize(
    ("plan", "vocabulary", "tied"),
    first_in_default(
        [
            pytest.param(STAGES, 23, True, id="tied across stages"),
            pytest.param(STAGES, 23, False, id="stages"),
            pytest.param(Plan((unit((2,), dp=2, tp=2),), 1), 23, True, id="tied in a stage, replicas"),
            pytest.param(Plan((unit((2,), dp=2, tp=2, collectives="ring"),), 1), 23, False, id="ring, replicas"),
            pytest.param(Plan((unit((1, 1), dp=2, fsdp=2, tp=2),), 2), 23, True, id="fully sharded, tied"),
            pytest.param(Plan((unit((2,), dp=2, fsdp=2, tp=2),), 2), 21, False, id="fully sharded"),
            pytest.param(Plan((unit((1, 1), tp=2, executor="compiled"),), 2), 21, True, id="one program, tied"),
            pytest.param(Plan((unit((1, 1), tp=2, executor="compiled"),), 2), 5, False, id="a rank of padding alone"),
        ]
    ),
)
def test_losses_and_gradients_are_those_of_one_device(plan, vocabulary, tied):
    assert_step_of_one_device(shared_engine(plan, text_model(vocabulary, tied=tied)))


@pytest.mark.parametrize(
    ("algorithm", "tied"), first_in_default([pytest.param(AdamW(), True), pytest.param(Adafactor(), False)])
)
def test_steps_with_weight_decay_and_clipping_are_those_of_one_device(algorithm, tied):
    """Adafactor's statistics of rows and columns would see rows of padding."""
    config = text_model(27, tied=tied)
    optimizer = OptimizerConfig(
        learning_rate=1e-2, warmup_steps=1, weight_decay=0.3, max_grad_norm=0.05, algorithm=algorithm
    )
    settings = dataclasses.replace(SETTINGS, optimizer=optimizer)
    one_device = Plan((unit((2,)),), 1)
    ends = []
    for plan in (one_device, STAGES):
        engine = shared_engine(plan, config, settings)
        state = noisy_state(engine)
        for step in range(3):
            state, summary = engine.executor.step(state, engine.place_batch(tiny_batch(config, seed=step), step))
            assert float(summary.gradient_norm) > 0.05  # so that it is clipped
        ends.append(jax.tree.map(np.asarray, trees_by_module(state.master_weights)))
        shapes = {leaf.shape for leaf in jax.tree.leaves((state.master_weights, state.optimizer_state))}
        assert (27, 16) in shapes and not any(28 in shape for shape in shapes)
    for path, expected in jax.tree_util.tree_leaves_with_path(ends[0]):
        actual, start = (at(tree, path) for tree in (ends[1], noisy_parameters(config)))
        update = np.linalg.norm(expected - start)
        assert np.linalg.norm(actual - expected) < 1e-3 * update, jax.tree_util.keystr(path)


def at(tree, path):
    for key in path:
        tree = tree[key.key]
    return tree
