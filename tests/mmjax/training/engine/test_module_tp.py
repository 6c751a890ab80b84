"""Modules of one stage with unlike tensor-parallel sizes, against plain differentiation on one device."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from configs.architectures import ExpertsConfig, ModelConfig
from configs.optimizer import SGD
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.stage_layouts import trees_by_module
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from tests.mmjax.training.engines import (
    SETTINGS,
    TIED_EMBEDDINGS,
    WITHOUT_GENERATOR,
    assert_step_of_one_device,
    largest_error,
    noisy_parameters,
    noisy_state,
    shared_engine,
    single_unit_plan,
)
from tests.tiers import first_in_default
from tests.tiny_model import BACKBONE, VISION, tiny_batch
from tests.unit_plans import flat_unit

# Three tensor ranks divide the heads, and the projector's width, which is the backbone's.
THREE_HEADS = ModelConfig(
    (dataclasses.replace(VISION, width=12, heads=3),), dataclasses.replace(BACKBONE, width=24), ()
)

EXPERTS = ModelConfig(
    (VISION,), dataclasses.replace(BACKBONE, depth=3, experts=ExpertsConfig(count=4, top_k=2, ffn=16)), ()
)


def chain(vision, backbone, layers=(5,), microbatches=2, dp=1, schedule="1f1b", **fields):
    """Vision and backbone in one unit, with tensor ranks of their own, on as few devices as these need, `dp` times."""
    devices = dp * np.lcm(vision, backbone).item()
    stages = len(layers) // fields.get("chunks", 1)
    unit = flat_unit(
        "chain",
        ("vision", "backbone"),
        tuple(range(devices * stages)),
        layers=layers,
        **{"recompute": ("none",) * len(layers), **fields},
        parallelism=Parallelism(dp=devices // backbone, tp=backbone, module_tp=(vision, backbone)),
    )
    return Plan((unit,), microbatches, schedule)


@pytest.mark.parametrize(
    ("plan", "config"),
    first_in_default(
        [
            (chain(1, 2, dp=2, collectives="ring"), WITHOUT_GENERATOR),
            (chain(1, 2, layers=(1, 2, 2), collectives="sequence_parallel"), TIED_EMBEDDINGS),
            (chain(2, 1, layers=(3, 2), dp=2, recompute=("full", "selective")), TIED_EMBEDDINGS),
            (
                chain(1, 2, layers=(1, 2, 1, 1), chunks=2, collectives="ring", schedule="interleaved"),
                WITHOUT_GENERATOR,
            ),
            (chain(2, 1, dp=2, ep=2), EXPERTS),  # two of four replicas of the backbone in each expert rank
        ]
    ),
    ids=["vision 1 beside backbone 2", "cut in both", "vision 2 beside backbone 1", "chunks", "experts"],
)
def test_losses_and_gradients_are_those_of_one_device(plan, config):
    assert_step_of_one_device(shared_engine(plan, config))


@pytest.mark.layouts
def test_sizes_of_which_neither_divides_the_other():
    """Rows are gathered from two replicas of three ranks, and split over three replicas of two."""
    plan = chain(3, 2, recompute=("selective",))
    assert plan.device_count == 6
    assert_step_of_one_device(Engine(THREE_HEADS, plan, tiny_batch(THREE_HEADS, 12), SETTINGS), rows=12)


@pytest.mark.layouts
def test_a_frozen_encoder_gets_no_gradients_from_a_backbone_with_more_tensor_ranks():
    settings = dataclasses.replace(SETTINGS, trainable=("vision_projector", "backbone"))
    engine = shared_engine(chain(1, 2, layers=(1, 4)), WITHOUT_GENERATOR, settings)
    assert engine.executor.stages["chain", 0].programs.backward is None
    assert engine.stages["chain", 1].trained_keys == {
        "vision/projector",
        "backbone/embed",
        "backbone/blocks",
        "backbone/head",
    }
    assert_step_of_one_device(engine)


@pytest.mark.layouts
def test_a_step_changes_the_state_as_on_one_device():
    """By gradient descent with momentum, whose steps are proportional to the gradients."""
    settings = dataclasses.replace(SETTINGS, optimizer=dataclasses.replace(SETTINGS.optimizer, algorithm=SGD()))
    plans = chain(1, 2, layers=(1, 4)), single_unit_plan(WITHOUT_GENERATOR, dp=1, tp=1)
    batch, states = tiny_batch(WITHOUT_GENERATOR), []
    for plan in plans:
        engine = shared_engine(plan, WITHOUT_GENERATOR, settings)
        state = noisy_state(engine)
        for step in range(2):  # the learning rate of the first is 0
            state, _ = engine.executor.step(state, engine.place_batch(batch, step))
        states.append(trees_by_module(state.master_weights))
    changes = [
        jax.tree.map(lambda after, before: np.asarray(after) - before, state, noisy_parameters(WITHOUT_GENERATOR))
        for state in states
    ]
    error, name = largest_error(*changes)
    assert error < 1e-3, name


def test_each_module_divides_its_optimizer_state_over_its_own_replicas():
    stages = shared_engine(chain(1, 2, dp=2, collectives="ring"), WITHOUT_GENERATOR).stages
    shardings = stages["chain", 0].master_weights.shardings
    kernels = {
        "vision": shardings["vision/blocks"]["000"]["mlp"]["up"]["kernel"],
        "backbone": shardings["backbone/blocks"]["000"]["mlp"]["up"]["kernel"],
    }
    assert kernels["vision"].spec == P(("data", "fsdp", "expert", "tensor/backbone"), None)
    assert kernels["backbone"].spec == P(("data", "fsdp", "expert"), ("tensor/backbone",))


def residual_shapes(rows):
    """Shapes of the residuals of a microbatch, devices first, without running anything."""
    engine = Engine(WITHOUT_GENERATOR, chain(1, 2, microbatches=1), tiny_batch(WITHOUT_GENERATOR, rows), SETTINGS)
    programs = engine.executor.stages["chain", 0].programs
    result = jax.eval_shape(programs.forward, *programs.operand_shapes, jax.eval_shape(programs.zero_losses))
    return [leaf.shape for leaf in result.residuals]


def test_residuals_hold_no_weights():
    """What does not grow with the rows is smaller than any matrix: vectors that are broadcast over rows, and sums."""
    small, large = residual_shapes(4), residual_shapes(8)
    constant = [np.prod(shape[1:]) for shape, other in zip(small, large, strict=True) if shape == other]
    assert 0 < len(constant) < len(small) / 2
    assert max(constant) < VISION.width * VISION.width


def test_rows_that_the_replicas_of_a_module_do_not_divide_are_refused():
    plan = chain(1, 2, microbatches=4, dp=2)
    message = r"unit chain: 8 rows .* not divisible by 4 microbatches x dp 4 of vision = 16; use a multiple of 16 rows"
    with pytest.raises(PlanError, match=message):
        Engine(WITHOUT_GENERATOR, plan, tiny_batch(WITHOUT_GENERATOR), SETTINGS)


def test_a_projector_that_an_encoder_s_tensor_ranks_do_not_divide_is_refused():
    narrow = dataclasses.replace(THREE_HEADS, backbone=BACKBONE)
    with pytest.raises(PlanError, match=r"unit chain: tp 3 does not divide projector width = 16 of vision"):
        Engine(narrow, chain(3, 2), tiny_batch(narrow, 12), SETTINGS)


def test_heads_that_a_module_s_own_tensor_ranks_do_not_divide_are_refused():
    with pytest.raises(PlanError, match=r"unit chain: tp 3 does not divide heads = 2 of vision"):
        Engine(WITHOUT_GENERATOR, chain(3, 2), tiny_batch(WITHOUT_GENERATOR, 12), SETTINGS)


def test_positions_that_a_module_s_own_tensor_ranks_do_not_divide_are_refused():
    """Those of the backbone alone: the encoder has one tensor rank."""
    batch = tiny_batch(WITHOUT_GENERATOR)
    odd = {**batch, "backbone": {name: array[:, :11] for name, array in batch["backbone"].items()}}
    message = r'unit chain: its 2 tensor ranks do not divide the 11 positions of a row of backbone.*"ring"'
    with pytest.raises(PlanError, match=message):
        Engine(WITHOUT_GENERATOR, chain(1, 2, collectives="ring"), odd, SETTINGS)
