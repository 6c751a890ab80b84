"""What verification must notice: faults injected into the programs of an engine, each found in the right modules.

The vision stage is partly frozen: its encoder has no gradients, its projector trains.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mmjax.training.engine.engine import Engine
from mmjax.training.verification.comparison import ALL_MODULES, LIMITS, compare_with_reference
from sharding.plans.plan import Plan
from tests.faults.engine_faults import (
    first_replica_only,
    larger_weights,
    next_microbatch,
    scaled_hop,
    stage_function,
    stage_programs,
    without_last_microbatch,
)
from tests.unit_plans import module_unit
from tests.verified_run import MODEL, SETTINGS

pytestmark = pytest.mark.layouts

PLAN = Plan(
    (
        module_unit("vision", (0, 1), layers=(2,), dp=2),
        module_unit("backbone", (2, 3, 4, 5), layers=(1, 2), dp=2),
    ),
    microbatches=3,
)
LAST = PLAN.microbatches - 1


@pytest.fixture(scope="module")
def engine(reference):
    return Engine(MODEL, PLAN, reference.batch_spec, reference.settings)


def test_without_a_fault_a_layout_with_a_partly_frozen_stage_agrees(engine, reference):
    reports = compare_with_reference(engine, reference, "float32")
    assert all(report.ok for report in reports.values()), reports
    assert set(reports) == {"vision", "backbone", ALL_MODULES}
    assert set(reference.steps[0].gradients["vision"]) == {"projector"}
    assert reports["vision"].gradient.error > 0
    (step,) = reference.steps
    compared = step.margins > LIMITS["float32"].margin
    assert 0.3 < step.correct[compared].mean() < 0.7 and compared.sum() > 0.9 * (step.margins >= 0).sum()
    assert 0.3 < step.score.accuracy < 0.7


# ---------------------------------------------------------------------- faults of a step


def doubled(reduce, gradients):
    return jax.tree.map(lambda leaf: 2 * leaf, reduce(gradients))


def without_norm(loss_and_norm, gradients, losses):
    return loss_and_norm(gradients, losses).at[:, 0].set(0)


# ---------------------------------------------------------------------- faults of the update and of the evaluation


def clipped_by_its_own_norm(update, masters, states, gradients, decision, hyperparameters):
    squares = jax.tree.map(lambda leaf: jnp.sum(jnp.square(leaf)), gradients)
    own_norm = jnp.sqrt(sum(jax.tree.leaves(squares)))
    scale = np.minimum(1, SETTINGS.optimizer.max_grad_norm / own_norm)
    return update(masters, states, gradients, decision.at[0, 0].set(scale), hyperparameters)


def twice(update, masters, states, gradients, decision, hyperparameters):
    return update(*update(masters, states, gradients, decision, hyperparameters), gradients, decision, hyperparameters)


def higher_learning_rate(update, masters, states, gradients, decision, hyperparameters):
    before = jax.tree.map(jnp.copy, masters)
    after, states = update(masters, states, gradients, decision, hyperparameters)
    return jax.tree.map(lambda old, new: new + 0.01 * (new - old), before, after), states


def changed_states(change):
    def changed(update, *arguments):
        masters, states = update(*arguments)
        return masters, jax.tree.map(change, states)

    return changed


def next_shard(leaf):
    return jax.device_put(jnp.roll(leaf, leaf.shape[0] // 2, 0), leaf.sharding) if leaf.ndim else leaf


def next_count(leaf):
    return leaf if leaf.ndim else leaf + 1


def without_first_row(evaluate, parameters, inputs, batch, index):
    backbone = batch.arrays["backbone"]
    kept = {**backbone, "weights": backbone["weights"].at[:, 0].set(0)}
    return evaluate(parameters, inputs, dataclasses.replace(batch, arrays={**batch.arrays, "backbone": kept}), index)


def without_last_answers(evaluate, *arguments):
    output = evaluate(*arguments)
    return output._replace(auxiliary_metrics={}) if int(arguments[-1]) == LAST else output


def changed_correct(change):
    """Changes which targets of a microbatch, [r, s], an evaluation calls the likeliest tokens."""

    def changed(evaluate, *arguments):
        output = evaluate(*arguments)
        metrics = {
            name: jax.device_put(change(array), array.sharding) for name, array in output.auxiliary_metrics.items()
        }
        return output._replace(auxiliary_metrics=metrics)

    return changed


VISION_STAGE, FIRST, SECOND = ("vision", 0), ("backbone", 0), ("backbone", 1)

FAULTS = {
    "sum over replicas dropped": (stage_function(FIRST, "reduce", first_replica_only), {"backbone"}),
    "gradient doubled beside a frozen part": (stage_function(VISION_STAGE, "reduce", doubled), {"vision"}),
    "activations scaled by 1.01 between stages": (scaled_hop("backbone#1", "activation_hop"), {"vision", "backbone"}),
    "activations scaled by 1.01 between modules": (
        scaled_hop("vision>backbone", "activation_hop"),
        {"vision", "backbone"},
    ),
    "gradients scaled by 1.01 between stages": (scaled_hop("backbone#1", "gradient_hop"), {"vision", "backbone"}),
    "gradients scaled by 1.01 between modules": (scaled_hop("vision>backbone", "gradient_hop"), {"vision"}),
    "microbatches swapped": (
        stage_programs(
            VISION_STAGE, forward=next_microbatch(PLAN.microbatches), backward=next_microbatch(PLAN.microbatches)
        ),
        {"vision", "backbone"},
    ),
    "last microbatch dropped in one stage": (
        stage_programs(SECOND, backward=without_last_microbatch(PLAN.microbatches)),
        {"backbone"},
    ),
    "last microbatch dropped beside a frozen part": (
        stage_programs(VISION_STAGE, backward=without_last_microbatch(PLAN.microbatches)),
        {"vision"},
    ),
    "normaliser off by 0.05%": (larger_weights, {"vision", "backbone"}),
    "clipped by the norm of one stage": (stage_function(FIRST, "update", clipped_by_its_own_norm), {"backbone"}),
    "update applied twice": (stage_function(VISION_STAGE, "update", twice), {"vision"}),
    "learning rate off by 1%": (stage_function(SECOND, "update", higher_learning_rate), {"backbone"}),
    "moments on the wrong replica": (stage_function(SECOND, "update", changed_states(next_shard)), {"backbone"}),
    "step count off by one": (stage_function(VISION_STAGE, "update", changed_states(next_count)), {"vision"}),
    "row dropped in the evaluation": (stage_programs(SECOND, evaluate=without_first_row), {"backbone"}),
    "microbatches swapped in the evaluation": (
        stage_programs(VISION_STAGE, evaluate=next_microbatch(PLAN.microbatches)),
        {"backbone", ALL_MODULES},
    ),
    "answers of a microbatch not scored": (stage_programs(SECOND, evaluate=without_last_answers), {ALL_MODULES}),
    "no token called correct": (stage_programs(SECOND, evaluate=changed_correct(jnp.zeros_like)), {ALL_MODULES}),
    "rows of correct tokens swapped": (
        stage_programs(SECOND, evaluate=changed_correct(lambda correct: jnp.roll(correct, 1, axis=0))),
        {ALL_MODULES},
    ),
    "stage left out of the global norm": (
        stage_function(SECOND, "loss_and_norm", without_norm),
        {"vision", "backbone", ALL_MODULES},  # all are clipped by it
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_in_the_modules_it_changes_and_in_no_other(fault, engine, reference, monkeypatch):
    inject, modules = FAULTS[fault]
    inject(engine, monkeypatch)
    reports = compare_with_reference(engine, reference, "float32")
    assert {name for name, report in reports.items() if not report.ok} == modules, reports
