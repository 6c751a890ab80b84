"""What trains and what is frozen: DistTrain's four settings, and sets by name."""

import dataclasses

import jax
import numpy as np
import pytest

from configs.architectures import ModelConfig
from configs.common.errors import UserError
from mmjax.training.engine.engine import Engine
from sharding.plans.plan import Plan
from sharding.plans.resolved.trained_parts import RequiredGradients, trained_parts
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from tests.mmjax.training.engines import (
    SETTINGS,
    STEP,
    TIED_EMBEDDINGS,
    TWO_UNITS,
    VISION_UNIT,
    assert_step_of_one_device,
    noisy_parameters,
    noisy_state,
    reference,
    shared_engine,
    single_unit_plan,
)
from tests.tiers import first_in_default
from tests.tiny_model import BACKBONE, LATENT_GENERATOR, tiny_batch, tiny_model

# Embeddings are tied over the two stages, and both stages train by the projectors that are placed on them.
TINY = tiny_model(tie_embeddings=True)
CHAIN = Plan((UnitPlan("all", ("vision", "backbone", "generator"), (0, 1), layers=(3, 3), recompute=("none", "none")),))
APART = Plan(
    (
        VISION_UNIT,
        UnitPlan("backbone", ("backbone",), (2, 3), layers=(1, 2), recompute=("none", "none")),
        UnitPlan("generator", ("generator",), (4,)),
    )
)


def training(*trainable, plan=CHAIN, config=TINY) -> Engine:
    return shared_engine(plan, config, dataclasses.replace(SETTINGS, trainable=trainable))


def schedule_of(engine, kind):
    return {op.stage_id for op in engine.executor.training_schedule.ops if op.kind == kind}


def pieces(trees):
    """(module/piece) of trees by stage."""
    return {key for tree in trees.values() for key in tree}


@pytest.mark.parametrize(
    ("trainable", "plan", "config", "trained"),
    first_in_default(
        [
            (
                ("projectors", "vision"),
                TWO_UNITS,
                TIED_EMBEDDINGS,
                {"vision": {"embed", "blocks", "norm", "projector"}},
            ),
            (
                ("projectors", "backbone"),
                TWO_UNITS,
                TIED_EMBEDDINGS,
                {"vision": {"projector"}, "backbone": {"embed", "blocks", "head"}},
            ),
            (("projectors",), CHAIN, TINY, {"vision": {"projector"}, "generator": {"projector"}}),
            (("projectors", "generator"), CHAIN, TINY, {"vision": {"projector"}, "generator": {"projector", "unet"}}),
        ]
    ),
    ids=["and the encoder", "and the backbone", "projectors", "and the generator"],
)
def test_gradients_in_disttrains_frozen_training_settings(trainable, plan, config, trained):
    """Gradients of what trains are the reference's, and they alone count in the norm."""
    gradients, _ = assert_step_of_one_device(training(*trainable, plan=plan, config=config))
    assert {module: set(tree) for module, tree in gradients.items()} == trained


@pytest.mark.layouts
def test_frozen_parts_have_no_optimizer_state_and_stay_as_they_are():
    engine = training("projectors")
    state = noisy_state(engine)
    before = {
        node: {key: jax.tree.map(np.array, tree) for key, tree in node_trees.items()}
        for node, node_trees in state.master_weights.items()
    }
    assert pieces(state.optimizer_state) == {"vision/projector", "generator/projector"}
    for step in range(2):
        state, _ = engine.executor.step(state, engine.place_batch(tiny_batch(TINY), step))
    moved = set()
    for node, tree in before.items():
        for key, layers in tree.items():
            pairs = zip(jax.tree.leaves(layers), jax.tree.leaves(state.master_weights[node][key]), strict=True)
            moved |= {key for one, other in pairs if np.any(one != np.asarray(other))}
    assert moved == {"vision/projector", "generator/projector"}


@pytest.mark.layouts
def test_nothing_runs_backward_where_nothing_before_it_trains():
    """The schedule, the programs and the hops; built, not run."""
    everything = {("vision", 0), ("backbone", 0), ("backbone", 1), ("generator", 0)}
    for trainable, backward in (
        (("all",), everything),
        (("projectors",), everything),  # the input projector stands first
        (("backbone",), everything - {("vision", 0)}),
        (("generator_projector", "generator"), {("generator", 0)}),
    ):
        engine = training(*trainable, plan=APART)
        stages = engine.executor.stages
        assert schedule_of(engine, "backward") == backward
        assert {node for node, stage in stages.items() if stage.programs.backward is not None} == backward
        assert schedule_of(engine, "update") == {node for node, stage in stages.items() if stage.update is not None}
        for op in engine.executor.training_schedule.ops:
            assert op.kind != "gradient_hop" or {op.stage_id, op.target_id} <= backward
    assert training("backbone", plan=APART).executor.stages["backbone", 0].programs.differentiated_inputs == frozenset()
    assert training("all", plan=APART).executor.stages["backbone", 0].programs.differentiated_inputs == {
        "vision>backbone"
    }


@pytest.mark.layouts
def test_a_stage_without_a_backward_keeps_no_residuals():
    engine = training("generator", plan=APART)
    programs = engine.executor.stages["backbone", 1].programs
    loss = jax.eval_shape(programs.zero_losses)
    _, kept, _ = jax.eval_shape(programs.forward, *programs.operand_shapes, loss)
    assert kept == []


def test_parts_by_name():
    assert trained_parts(module_graph(TINY), ("all",)) == {
        "vision",
        "vision_projector",
        "backbone",
        "generator_projector",
        "generator",
    }
    assert trained_parts(module_graph(TINY), ("projectors",)) == {"vision_projector", "generator_projector"}
    assert trained_parts(module_graph(TINY), ("vision", "generator_projector")) == {"vision", "generator_projector"}
    assert trained_parts(module_graph(TINY), ()) == frozenset()


@pytest.mark.layouts
def test_an_autoencoder_trains_only_by_its_name():
    """Its gradients are then the reference's, and it has no backward as long as it is frozen."""
    config = ModelConfig((), dataclasses.replace(BACKBONE, depth=1), (LATENT_GENERATOR,))
    graph = module_graph(config)
    everything = {"backbone", "painter_projector", "painter"}
    assert trained_parts(graph, ("all",)) == everything
    assert trained_parts(graph, ("all", "painter_vae")) == everything | {"painter_vae"}
    both = ("dgrad", "wgrad")
    for trainable, expected_gradients in ((("all",), ()), (("all", "painter_vae"), both), (("painter_vae",), both)):
        layer_gradients = RequiredGradients(graph, trained_parts(graph, trainable)).of_layers("painter", 0, 1)
        assert {layer.name: gradients for layer, _, gradients in layer_gradients}["vae"] == expected_gradients

    engine = training("painter_vae", plan=single_unit_plan(config, dp=1), config=config)
    gradients, _ = assert_step_of_one_device(engine)
    assert {module: set(tree) for module, tree in gradients.items()} == {"painter": {"vae"}}


@pytest.mark.parametrize("unknown", ["encoder", "vision_", "head"])
def test_an_unknown_part_is_refused_with_those_there_are(unknown):
    with pytest.raises(UserError, match=f"'{unknown}'.*all, projectors, vision, vision_projector, backbone"):
        trained_parts(module_graph(TINY), ("projectors", unknown))
    with pytest.raises(UserError, match=unknown):
        Engine(TINY, APART, tiny_batch(TINY), dataclasses.replace(SETTINGS, trainable=(unknown,)))


def test_training_nothing_is_an_evaluation():
    engine = training(plan=TWO_UNITS, config=TIED_EMBEDDINGS)
    _, decision = engine.executor.step(noisy_state(engine), engine.place_batch(tiny_batch(TIED_EMBEDDINGS), STEP))
    losses, _ = reference(TIED_EMBEDDINGS)(noisy_parameters(TIED_EMBEDDINGS), tiny_batch(TIED_EMBEDDINGS))
    np.testing.assert_allclose(np.sum(decision.losses), losses["backbone"], rtol=1e-5)
    assert (float(decision.gradient_norm), float(decision.all_finite)) == (0, 1)
