"""Every algorithm on sharded layers against optax's own on whole ones, and every schedule against its formula."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from optax import contrib

from configs.architectures import ModelConfig
from configs.common.errors import UserError
from configs.modules.experts import ExpertsConfig
from configs.optimizer import (
    SGD,
    Adafactor,
    AdamW,
    ConstantRate,
    CosineDecay,
    InverseSquareRootDecay,
    LinearDecay,
    Lion,
    Muon,
    OptimizerConfig,
    PartOptimizer,
)
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.optimizers.hyperparameters import learning_rate, make_hyperparameters
from mmjax.training.engine.optimizers.layer_optimizer import LayerOptimizer
from mmjax.training.engine.settings import EngineSettings
from sharding.plans.plan import Plan
from tests.mmjax.training.engines import noisy_state
from tests.tiers import first_in_default
from tests.tiny_model import BACKBONE, VISION, tiny_batch
from tests.unit_plans import module_unit

STEPS = 10
# Adafactor factors the second moments of matrices of 128 x 128 and more alone, so the backbone is wide.
CONFIG = ModelConfig(
    (VISION,), dataclasses.replace(BACKBONE, width=128, experts=ExpertsConfig(count=4, top_k=2, ffn=128)), ()
)
PLAN = Plan(
    (
        module_unit("vision", (0, 1), layers=(2,), dp=2),
        module_unit("backbone", range(8), layers=(1, 2), dp=2, tp=2, ep=2),
    ),
    microbatches=2,
)


def decayed(parameters):
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, parameters)


def random_like(tree, random):
    return jax.tree.map(lambda leaf: random.standard_normal(leaf.shape, np.float32), tree)


def muon_dimensions(parameters):
    """In a layer of the backbone `embedding` is the only table, and all kernels are [inputs, outputs]."""

    def dimensions(path, leaf):
        name, last = path[-1].key, leaf.ndim - 1
        matrix = leaf.ndim >= 2 and name not in ("embedding", "router")
        return contrib.MuonDimensionNumbers(last - 1, last) if matrix else None

    return jax.tree_util.tree_map_with_path(dimensions, parameters)


# Without weight decay where optax's own is another than the decoupled one of all algorithms here.
PLAIN = {
    AdamW(beta2=0.95): lambda rate, decay: optax.adamw(rate, 0.9, 0.95, 1e-8, weight_decay=decay, mask=decayed),
    Lion(): lambda rate, decay: optax.lion(rate, 0.9, 0.99, weight_decay=decay, mask=decayed),
    SGD(nesterov=True): lambda rate, decay: optax.sgd(rate, 0.9, nesterov=True),
    Adafactor(): lambda rate, decay: optax.adafactor(rate),
    Muon(): lambda rate, decay: contrib.muon(
        rate, adam_b2=0.98, muon_weight_dimension_numbers=muon_dimensions, consistent_rms=0.2
    ),
}
KEEP_DECAY = (AdamW, Lion)


def cosine(peak, warmup):
    return optax.warmup_cosine_decay_schedule(0.0, peak, warmup, STEPS, 0.05 * peak)


@pytest.mark.parametrize("algorithm", first_in_default(PLAIN), ids=lambda algorithm: type(algorithm).__name__)
def test_updates_of_sharded_layers_are_those_of_optax_on_whole_layers(algorithm):
    """On stages of data, tensor, expert and pipeline ranks; the projector has settings of its own."""
    decay = 0.1 if isinstance(algorithm, KEEP_DECAY) else 0.0
    projector_settings = PartOptimizer(
        learning_rate=0.03, weight_decay=2 * decay, warmup_steps=0, schedule=ConstantRate()
    )
    optimizer = OptimizerConfig(
        algorithm=algorithm,
        learning_rate=0.01,
        weight_decay=decay,
        warmup_fraction=0.2,
        parts=(("vision_projector", projector_settings),),
    )
    plain = PLAIN[algorithm](cosine(0.01, 2), decay)
    plain_projector = PLAIN[algorithm](optax.constant_schedule(0.03), 2 * decay)
    engine = Engine(CONFIG, PLAN, tiny_batch(CONFIG), EngineSettings(optimizer, steps=STEPS))
    state = noisy_state(engine)
    updates = {transformation: jax.jit(transformation.update) for transformation in (plain, plain_projector)}
    for stage_id, stage in engine.stages.items():
        mesh, masters, moments = stage.mesh, state.master_weights[stage_id], state.optimizer_state[stage_id]
        random = np.random.default_rng(0)
        expected, plain_state = jax.tree.map(np.array, masters), {}
        for _ in range(3):
            gradients = random_like(expected, random)
            for key, layers in expected.items():
                transformation = plain_projector if key == "vision/projector" else plain
                for layer, parameters in layers.items():
                    with jax.numpy_dtype_promotion("standard"):
                        kept = plain_state.get((key, layer)) or transformation.init(parameters)
                        changes, plain_state[key, layer] = updates[transformation](
                            gradients[key][layer], kept, jax.tree.map(jnp.asarray, parameters)
                        )
                    layers[layer] = jax.tree.map(np.array, optax.apply_updates(parameters, changes))
            replicated = NamedSharding(mesh, PartitionSpec())
            decision = jax.device_put(jnp.ones((1, 2)), replicated)  # a clip scale of 1, and all was finite
            placed = jax.tree.map(jax.device_put, gradients, stage.master_weights.shardings)
            hyperparameters = engine.executor.hyperparameters.by_stage[stage_id]
            masters, moments = engine.executor.stages[stage_id].update(
                masters, moments, placed, decision, hyperparameters
            )
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5), masters, expected)


def test_adafactor_keeps_rows_and_columns_of_large_matrices_and_muon_one_moment():
    shapes = {"mlp": {"up": {"kernel": jax.ShapeDtypeStruct((256, 512), jnp.float32)}}}

    def elements(algorithm):
        state = jax.eval_shape(LayerOptimizer(algorithm).init, shapes)
        return sum(leaf.size for leaf in jax.tree.leaves(state))

    matrix = 256 * 512
    assert elements(Adafactor()) < matrix / 100
    assert [elements(algorithm) // matrix for algorithm in (AdamW(), Lion(), SGD(), Muon())] == [2, 1, 1, 1]


@pytest.mark.parametrize("algorithm", PLAIN, ids=lambda algorithm: type(algorithm).__name__)
def test_weight_decay_alone_shrinks_matrices_and_leaves_vectors(algorithm):
    config = OptimizerConfig(algorithm=algorithm, learning_rate=0.1, warmup_steps=0, weight_decay=0.5)
    optimizer = LayerOptimizer(algorithm)
    layer = {"kernel": jnp.ones((2, 2)), "scale": jnp.ones(2), "down_bias": jnp.ones((2, 2))}
    zeros, hyperparameters = jax.tree.map(jnp.zeros_like, layer), make_hyperparameters(config, 10)
    changes, _ = optimizer.update(zeros, optimizer.init(layer), layer, hyperparameters, "")
    np.testing.assert_allclose(changes["kernel"], np.full((2, 2), -0.05), rtol=1e-5)
    np.testing.assert_array_equal(changes["scale"], np.zeros(2))
    np.testing.assert_array_equal(changes["down_bias"], np.zeros((2, 2)))


@pytest.mark.parametrize("algorithm", PLAIN, ids=lambda algorithm: type(algorithm).__name__)
def test_selection_biases_change_by_their_rate_against_the_excess_load(algorithm):
    hyperparameters = make_hyperparameters(OptimizerConfig(selection_bias_rate=0.25), 10)
    optimizer = LayerOptimizer(algorithm)
    layer = {"kernel": jnp.ones((2, 2)), "selection_bias": jnp.ones(4)}
    excess = {"kernel": jnp.ones((2, 2)), "selection_bias": 1e-9 * jnp.asarray([3.0, -0.5, 1e-5, -2.5])}
    state = optimizer.init(layer)
    for _ in range(2):
        changes, state = optimizer.update(excess, state, layer, hyperparameters, "")
        np.testing.assert_array_equal(changes["selection_bias"], [-0.25, 0.25, 0.0, 0.25])


@pytest.mark.parametrize(
    ("schedule", "after_warmup", "last"),
    [
        (ConstantRate(), 2.0, 2.0),
        (CosineDecay(0.1), 2.0 * (0.1 + 0.9 * 0.5), 0.2),
        (LinearDecay(0.1), 1.1, 0.2),
        (InverseSquareRootDecay(timescale=15.0), 2.0 / (1 + 45 / 15) ** 0.5, 2.0 / (1 + 90 / 15) ** 0.5),
    ],
)
def test_the_learning_rate_warms_up_and_follows_its_schedule(schedule, after_warmup, last):
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=10, schedule=schedule)
    rates = functools.partial(learning_rate, make_hyperparameters(config, 100))
    np.testing.assert_allclose([rates(step) for step in (0, 5, 10)], [0, 1, 2], atol=1e-6)
    np.testing.assert_allclose([rates(55), rates(100)], [after_warmup, last], rtol=1e-5)


def test_the_warmup_is_a_share_of_any_run_and_is_refused_where_it_is_all_of_it():
    share = OptimizerConfig(warmup_fraction=0.11)
    assert [share.resolve_warmup(steps) for steps in (450, 60, 10, 4, 1)] == [50, 7, 1, 0, 0]
    assert [OptimizerConfig(warmup_steps=9).resolve_warmup(steps) for steps in (10, 1000)] == [9, 9]
    for config in (
        OptimizerConfig(warmup_steps=100),
        OptimizerConfig(parts=(("vision", PartOptimizer(warmup_steps=100)),)),
    ):
        with pytest.raises(UserError, match=r"warmup_steps = 100\) is as long as the run.*set warmup_steps below 10, "):
            config.check_warmup(10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptimizerConfig(learning_rate=0.0), "learning_rate is 0.0; it must be above 0"),
        (lambda: OptimizerConfig(warmup_steps=-1), "warmup_steps is -1; it must be at least 0"),
        (lambda: OptimizerConfig(max_grad_norm=-1.0), "max_grad_norm is -1.0"),
        (lambda: OptimizerConfig(warmup_fraction=1.0), r"warmup_fraction is 1.0; it must be in \[0, 1\)"),
        (lambda: PartOptimizer(weight_decay=-0.1), "PartOptimizer.weight_decay is -0.1"),
        (lambda: PartOptimizer(learning_rate=-0.1), "PartOptimizer.learning_rate is -0.1"),
        (lambda: AdamW(beta1=1.5), "AdamW.beta1 is 1.5"),
        (lambda: Lion(beta2=-0.5), "Lion.beta2 is -0.5"),
        (lambda: SGD(momentum=1.0), "SGD.momentum is 1.0"),
        (lambda: Adafactor(clipping_threshold=0.0), "clipping_threshold is 0.0"),
        (lambda: Muon(iterations=0), "Muon.iterations is 0"),
        (lambda: AdamW(moment_dtype="int8"), r"AdamW.moment_dtype is 'int8'.*float32.*bfloat16"),  # pyright: ignore[reportArgumentType]
        (lambda: OptimizerConfig(state_memory="disk"), r"OptimizerConfig.state_memory is 'disk'.*device.*host"),  # pyright: ignore[reportArgumentType]
        (lambda: CosineDecay(2.0), "CosineDecay.final_fraction is 2.0"),
        (lambda: InverseSquareRootDecay(0.0), "timescale is 0.0"),
    ],
)
def test_invalid_settings_are_refused_by_name(make, message):
    with pytest.raises(UserError, match=message):
        make()
