"""The measure of differences, by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from mmjax.training.verification.error_measures import (
    LARGEST_ERROR,
    change_error,
    gradient_errors,
    loss_errors,
    state_error,
)


def tree(*leaves):
    return {"vision": {"blocks": {f"{number:03d}": np.asarray(leaf) for number, leaf in enumerate(leaves)}}}


def test_gradient_errors_against_a_calculation_by_hand():
    # The module's root mean square is sqrt((9 + 16) / 4) = 2.5; the second parameter's own norm, 0, is below its floor.
    errors = gradient_errors(tree([3.0, 4.3], [0.0, 0.001]), tree([3.0, 4.0], [0.0, 0.0]))["vision"]
    assert errors["blocks/000"] == pytest.approx(0.3 / 5)
    assert errors["blocks/001"] == pytest.approx(0.001 / (1e-3 * 2.5 * np.sqrt(2)))


@pytest.mark.parametrize(
    ("found", "expected", "path"),
    [
        (tree([1.0, np.nan]), tree([1.0, 1.0]), "blocks/000"),
        (tree([1.0, 1.0], [1.0]), tree([1.0, 1.0]), "blocks/001"),
        (tree([1.0, 1.0]), tree([1.0, 1.0], [1.0]), "blocks/001"),
        (tree([1.0]), tree([1.0, 1.0]), "blocks/000"),
        (tree([1.0]), tree([0.0]), "blocks/000"),
        ({}, tree([1.0]), "blocks/000"),
    ],
)
def test_missing_misshapen_and_non_finite_parameters_have_the_largest_error(found, expected, path):
    assert gradient_errors(found, expected)["vision"][path] == LARGEST_ERROR


def test_losses_are_compared_relatively_except_where_zero_is_expected():
    found = {"a": 2.2, "b": 0.5, "c": float("nan")}
    assert loss_errors(found, {"a": 2.0, "b": 0.0, "c": 1.0}) == {"a": pytest.approx(0.1), "b": 0.5, "c": LARGEST_ERROR}
    assert gradient_errors(tree([0.0]), tree([0.0]))["vision"]["blocks/000"] == 0


def test_a_frozen_module_has_no_errors_but_if_a_layout_has_gradients_of_it():
    assert gradient_errors({}, {"vision": {}}) == {"vision": {}}
    assert gradient_errors(tree([0.0]), {"vision": {}}) == {"vision": {"blocks/000": LARGEST_ERROR}}


def test_a_change_counts_relative_to_what_it_should_be_and_to_the_rounding_of_the_parameter():
    before, expected = np.ones(4, np.float32), np.full(4, 1.001, np.float32)
    assert change_error(before, expected, expected, 1e-4) == 0
    assert change_error(before, np.full(4, 1.00101, np.float32), expected, 1e-4) == pytest.approx(0.01 / 2.19, rel=0.02)
    one_step = np.nextafter(expected, np.float32(2))
    assert change_error(before, one_step, expected, 1e-4) < 1e-4
    assert change_error(before, one_step + np.float32(1e-6), before, 1e-4) > 1e-4  # it should have stayed
    for missing in (None, expected[:2], np.full(4, np.nan, np.float32)):
        assert change_error(before, missing, expected, 1e-4) == LARGEST_ERROR


def test_optimizer_states_are_compared_relatively_and_counts_exactly():
    assert state_error(np.full(4, 1e-12, np.float32), np.full(4, 2e-12, np.float32)) == pytest.approx(0.5)
    assert state_error(np.array(3), np.array(3)) == 0 and state_error(np.array(4), np.array(3)) == LARGEST_ERROR
    assert state_error(np.zeros(2, np.float32), np.zeros(2, np.float32)) == 0


def test_few_numbers_in_bfloat16_may_be_rounded_to_the_other_neighbour():
    expected = np.ones(256, jnp.bfloat16)
    few, many, far = expected.copy(), expected.copy(), expected.copy()
    few[:3] = many[:4] = 1 + 2.0**-7
    far[0] = 1 + 2.0**-5
    assert state_error(few, expected) == 0
    assert state_error(many, expected) == pytest.approx(2.0**-7 * 2 / 16)
    assert state_error(far, expected) == pytest.approx((2.0**-5 - 2.0**-7) / 16)
    for missing in (None, np.zeros(3, np.float32), np.full(2, np.nan, np.float32)):
        assert state_error(missing, np.ones(2, np.float32)) == LARGEST_ERROR
