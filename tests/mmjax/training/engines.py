"""Engines on small plans, shared by the tests of a session, and the plain reference that they are compared with."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig
from configs.optimizer import OptimizerConfig
from mmjax.models.model import losses_by_name, model_modules, run_model
from mmjax.models.structure.parameters import init_module_parameters, place_host_array
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.engine.stage_layouts import trees_by_module, trees_by_stage
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.modules import module_graph
from tests.tiny_model import BACKBONE, VISION, tiny_batch
from tests.unit_plans import module_unit

SEED, STEP = 3, 7
SETTINGS = EngineSettings(OptimizerConfig(learning_rate=1e-2, warmup_steps=1), steps=20, seed=SEED)


def single_unit_plan(config, microbatches=1, recompute="none", dp=2, tp=2):
    """All modules in one unit of one stage."""
    graph = module_graph(config)
    layers = sum(module.layer_count for module in graph.modules)
    unit = UnitPlan(
        "all",
        graph.names,
        tuple(range(dp * tp)),
        layers=(layers,),
        recompute=(recompute,),
        parallelism=Parallelism(dp=dp, tp=tp),
    )
    return Plan((unit,), microbatches)


VISION_UNIT = module_unit("vision", (0, 1), layers=(2,), dp=2)
BACKBONE_UNIT = module_unit("backbone", (2, 3, 4, 5), layers=(1, 2), recompute=("selective", "full"), tp=2)
# Without a generator, whose U-Net takes most of the time to compile.
WITHOUT_GENERATOR = ModelConfig((VISION,), BACKBONE, ())
TIED_EMBEDDINGS = ModelConfig((VISION,), dataclasses.replace(BACKBONE, tie_embeddings=True), ())
TWO_UNITS = Plan((VISION_UNIT, BACKBONE_UNIT), microbatches=2)


@functools.cache
def noisy_parameters(config: ModelConfig):
    """Initial values with noise, so that no gradient is zero (some kernels start at 0): NumPy arrays."""
    random = np.random.default_rng(0)

    def noisy(leaf):
        return leaf + np.float32(0.05) * random.standard_normal(leaf.shape, np.float32)

    return jax.tree.map(noisy, {module.name: init_module_parameters(SEED, module) for module in model_modules(config)})


@functools.cache
def reference(config: ModelConfig):
    """`(parameters, batch) -> (losses by name, gradients)` of the whole model on one device."""
    modules = model_modules(config)

    def total(parameters, batch):
        weights = jax.tree.map(lambda leaf: leaf.astype(config.dtype), parameters)
        key = {"seed_and_step": jnp.array([SEED, STEP])}
        batch = batch | {generator.name: batch[generator.name] | key for generator in config.generators}
        losses = losses_by_name(run_model(modules, weights, batch))
        return sum(losses.values()), losses

    def run(parameters, batch):
        (_, losses), gradients = compiled(parameters, batch)
        return losses, gradients

    compiled = jax.jit(jax.value_and_grad(total, has_aux=True))
    return run


@functools.cache
def shared_engine(plan: Plan, config: ModelConfig, settings: EngineSettings = SETTINGS) -> Engine:
    """The engine of a plan; its programs are compiled once in a session."""
    return Engine(config, plan, tiny_batch(config), settings)


def state_of(engine: Engine, tree):
    """A state with these parameters, `{module: {piece: ...}}`, and fresh moments."""
    shardings = {node: stage.master_weights.shardings for node, stage in engine.stages.items()}
    layouts = {node: stage.layout for node, stage in engine.stages.items()}
    masters = jax.tree.map(place_host_array, trees_by_stage(tree, layouts), shardings)
    return engine.state_from_masters(masters)


def noisy_state(engine: Engine):
    """A state of `noisy_parameters` and fresh moments."""
    return state_of(engine, noisy_parameters(engine.config))


def largest_error(gradients, expected):
    """Largest error of a parameter's gradient over its norm, or over a small share of its module's; and which it is."""
    errors = {}
    for module, tree in gradients.items():
        leaves = jax.tree.leaves(expected[module])
        rms = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in leaves) / sum(leaf.size for leaf in leaves))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            expected_leaf = functools.reduce(lambda tree, key: tree[key.key], path, expected[module])
            difference = np.linalg.norm(np.asarray(leaf, np.float32) - expected_leaf)
            norm = max(np.linalg.norm(expected_leaf), 1e-3 * rms * np.sqrt(expected_leaf.size))
            errors[module + jax.tree_util.keystr(path)] = difference / (norm or 1)  # without items all are zero
    name = max(errors, key=lambda name: errors[name])
    return errors[name], name


def trained_pieces(engine: Engine, tree):
    """The pieces of a tree that an engine trains."""
    keys = {key for stage in engine.stages.values() for key in stage.trained_keys}
    trained = {
        name: {piece: leaves for piece, leaves in pieces.items() if f"{name}/{piece}" in keys}
        for name, pieces in tree.items()
    }
    return {name: pieces for name, pieces in trained.items() if pieces}


def gradients_and_summary(engine: Engine, batch, state=None):
    """Gradients `{module: {piece: {layer: ...}}}` and the step summary, for a state or for `noisy_state`."""
    gradients, decision = engine.executor.gradients(
        noisy_state(engine) if state is None else state, engine.place_batch(batch, STEP)
    )
    return trees_by_module(gradients), decision


def assert_step_of_one_device(engine: Engine, rows: int = 8, batch=None):
    """Losses, gradients and their norm are those of `reference`, for a batch or for `tiny_batch` of so many rows.

    Returns the gradients, and the losses by name.
    """
    batch = tiny_batch(engine.config, rows) if batch is None else batch
    losses, expected = reference(engine.config)(noisy_parameters(engine.config), batch)
    expected = trained_pieces(engine, expected)
    gradients, decision = gradients_and_summary(engine, batch)
    found = engine.losses_by_name(decision)
    assert set(found) == set(losses)
    np.testing.assert_allclose([found[name] for name in losses], list(losses.values()), rtol=1e-5)
    assert jax.tree.structure(gradients) == jax.tree.structure(expected)
    error, name = largest_error(gradients, expected)
    assert error < 1e-3, name
    squares = sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in jax.tree.leaves(expected))
    np.testing.assert_allclose(decision.gradient_norm, np.sqrt(squares), rtol=1e-4)
    assert float(decision.all_finite) == 1
    return gradients, found
