"""Activations by layer and their gradients, against what the loss and the gradients of parameters say of them."""

import dataclasses

import jax
import numpy as np
import pytest

import mmjax
from configs.common.errors import UserError
from mmjax.training.activations import layer_activations, select_names
from tests.mmjax.training.engines import SEED, STEP, WITHOUT_GENERATOR, noisy_parameters, reference
from tests.mmjax.training.trainer_runs import CONFIG, PLAN
from tests.tiny_model import tiny_batch
from tests.unit_plans import changed_unit

NAMES = (
    "vision/embed/000",
    "vision/blocks/000",
    "vision/blocks/001",
    "vision/norm/000",
    "vision/projector/000>backbone",
    "backbone/embed/000",
    "backbone/blocks/000",
    "backbone/blocks/001",
    "backbone/blocks/002",
)


def tiny_activations(*patterns: str, gradients: bool = False) -> dict[str, np.ndarray]:
    key = {"seed_and_step": np.array([SEED, STEP], np.int32)}
    batch = {name: {**arrays, **key} for name, arrays in tiny_batch(WITHOUT_GENERATOR).items()}
    parameters = noisy_parameters(WITHOUT_GENERATOR)
    return layer_activations(WITHOUT_GENERATOR, parameters, batch, patterns, gradients=gradients)


def test_the_loss_follows_from_the_last_blocks_activations():
    activations, batch = tiny_activations("*"), tiny_batch(WITHOUT_GENERATOR)["backbone"]
    assert tuple(activations) == NAMES, "in the order in which layers compute"
    assert activations["vision/embed/000"].shape == (*batch["tokens"].shape[:1], 8, 8)
    head = noisy_parameters(WITHOUT_GENERATOR)["backbone"]["head"]["000"]
    x = activations["backbone/blocks/002"]
    epsilon = WITHOUT_GENERATOR.backbone.norm_epsilon
    normed = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon) * head["norm"]["scale"]
    logits = normed @ head["embedding"].T
    chosen = np.take_along_axis(logits, np.maximum(batch["targets"], 0)[..., None], axis=-1)[..., 0]
    loss = np.sum(batch["weights"] * (np.log(np.sum(np.exp(logits), axis=-1)) - chosen))
    losses, _ = reference(WITHOUT_GENERATOR)(noisy_parameters(WITHOUT_GENERATOR), tiny_batch(WITHOUT_GENERATOR))
    np.testing.assert_allclose(loss, losses["backbone"], rtol=1e-5)


def test_gradients_of_biases_and_scales_follow_from_those_of_activations():
    """A bias that is added last has the sum of the gradients, a scale that of the gradients times what it scales."""
    parameters = noisy_parameters(WITHOUT_GENERATOR)
    _, expected = reference(WITHOUT_GENERATOR)(parameters, tiny_batch(WITHOUT_GENERATOR))
    gradients, activations = tiny_activations("vision/*", gradients=True), tiny_activations("vision/norm/*")
    for name, path in (
        ("vision/blocks/000", ("blocks", "000", "mlp", "down")),
        ("vision/blocks/001", ("blocks", "001", "mlp", "down")),
        ("vision/norm/000", ("norm", "000", "norm")),
        ("vision/projector/000>backbone", ("projector", "000", "mlp", "down")),
    ):
        layer_gradients = expected["vision"]
        for key in path:
            layer_gradients = layer_gradients[key]
        np.testing.assert_allclose(gradients[name].sum(axis=(0, 1)), layer_gradients["bias"], rtol=1e-4, atol=1e-8)
    norm = parameters["vision"]["norm"]["000"]["norm"]
    unscaled = (activations["vision/norm/000"] - norm["bias"]) / norm["scale"]
    np.testing.assert_allclose(
        np.sum(gradients["vision/norm/000"] * unscaled, axis=(0, 1)),
        expected["vision"]["norm"]["000"]["norm"]["scale"],
        rtol=1e-4,
        atol=1e-8,
    )


def test_names_are_patterns_and_one_that_matches_nothing_is_refused_with_the_nearest():
    assert select_names(("*/blocks/*1", "vision/norm/000"), NAMES) == (
        "vision/blocks/001",
        "vision/norm/000",
        "backbone/blocks/001",
    )
    with pytest.raises(
        UserError, match="no layer is named backbone/block/002; the nearest is backbone/blocks/002, and"
    ):
        select_names(("vision/*", "backbone/block/002"), NAMES)
    with pytest.raises(UserError, match=r"the layers are vision/embed/\*, vision/blocks/\*, vision/norm/\*, "):
        select_names(("?",), NAMES)


@pytest.mark.runs
def test_a_trainer_gives_those_of_its_next_batch_on_any_plan_and_leaves_the_batch():
    own_rows = {"vision": {"phase_rows": 1}, "generator": {"phase_rows": 3, "capacities": (3,)}}
    units = tuple(changed_unit(unit, **own_rows.get(unit.name, {})) for unit in PLAN.units)
    values_by_plan = {}
    for name, plan in (("own rows", dataclasses.replace(PLAN, units=units)), ("plain", PLAN)):
        with mmjax.Trainer(CONFIG, plan) as trainer:
            before = trainer.activations("*blocks/*")
            trainer.step()
            values_by_plan[name] = (before, trainer.activations("*blocks/*"), trainer.activation_gradients("*blocks/*"))
            batch = next(trainer.batches)
            if name == "plain":
                again = trainer.activations(["backbone/blocks/001", "vision/*"], batch)
                np.testing.assert_array_equal(
                    again["backbone/blocks/001"], values_by_plan[name][1]["backbone/blocks/001"]
                )
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5),
        values_by_plan["plain"],
        values_by_plan["own rows"],
    )
    before, after, _ = values_by_plan["plain"]
    assert all(np.any(before[name] != after[name]) for name in before)
