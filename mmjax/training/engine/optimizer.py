"""AdamW with warm-up and cosine decay, applied layer by layer, its state sharded like the master weights (ZeRO-1)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.optimizer import OptimizerConfig
from sharding.runtime.global_reduction import StepSummary
from sharding.runtime.master_weights import StageMasterWeights
from sharding.trees import Tree

OptimizerState = Any


def learning_rate_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate by step, for a run of so many steps: linear warm-up from 0, then a cosine to the final rate."""
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=config.warmup_steps,
        decay_steps=max(steps, config.warmup_steps + 1),
        end_value=config.learning_rate * config.final_learning_rate_fraction,
    )


def adamw(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """The optimizer of one layer. No statistic spans layers, so results do not depend on the division into stages.

    Weight decay applies to parameters of two or more dimensions.
    """
    return optax.adamw(
        learning_rate_schedule(config, steps),
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=lambda parameters: jax.tree.map(lambda leaf: leaf.ndim >= 2, parameters),
    )


def layer_optimizer_shardings(
    transformation: optax.GradientTransformation, shapes: Tree, shardings: Tree, scalar_sharding: Any
) -> OptimizerState:
    """Shardings of a layer's optimizer state: moments as their parameters, step counts as `scalar_sharding`."""
    state = jax.eval_shape(transformation.init, shapes)
    return optax.tree.map_params(
        transformation, lambda _, sharding: sharding, state, shardings, transform_non_params=lambda _: scalar_sharding
    )


def stage_optimizer_shardings(
    transformation: optax.GradientTransformation, master_weights: StageMasterWeights, trained_keys: frozenset[str]
) -> Tree:
    """Shardings of a stage's optimizer state: `{key: {layer: ...}}` of the keys that train."""
    replicated = NamedSharding(master_weights.mesh, P())
    return {
        key: {
            layer: layer_optimizer_shardings(
                transformation, master_weights.layer_stacks[key].shapes, shardings, replicated
            )
            for layer, shardings in master_weights.shardings[key].items()
        }
        for key in sorted(trained_keys)
    }


def squared_norm(gradients: Tree) -> jax.Array:
    """Sum of the squares of all leaves, in float32."""
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients)), start=jnp.zeros(()))


def squared_norm_and_losses(gradients: Tree, losses: dict[str, jax.Array]) -> jax.Array:
    """[1, 1 + losses]: the squared norm of a stage's gradients, then its losses by name, summed over replicas."""
    return jnp.stack([squared_norm(gradients), *(jnp.sum(losses[name]) for name in sorted(losses))])[None]


def init_stage(transformation: optax.GradientTransformation, masters: Tree) -> Tree:
    """The optimizer state of a stage's trained master weights, `{key: {layer: ...}}`, before the first step."""
    return {
        key: {layer: transformation.init(parameters) for layer, parameters in layers.items()}
        for key, layers in masters.items()
    }


def make_stage_update(
    transformation: optax.GradientTransformation,
) -> Callable[[Tree, Tree, Tree, StepSummary], tuple[Tree, Tree]]:
    """The update of all trained layers of a stage, each tree `{key: {layer: ...}}`.

    If the step was not finite, master weights and optimizer state keep their values; the devices choose, not the host.

    Returns:
        `(masters, optimizer state, gradients, step summary) -> (masters, optimizer state)`.
    """

    def update_layer(
        masters: Tree, state: OptimizerState, gradients: Tree, summary: StepSummary
    ) -> tuple[Tree, OptimizerState]:
        clipped = jax.tree.map(lambda leaf: leaf * summary.clip_scale, gradients)
        with jax.numpy_dtype_promotion("standard"):  # optax computes float ** integer
            updates, new_state = transformation.update(clipped, state, masters)
        new_masters = optax.apply_updates(masters, updates)
        return jax.tree.map(
            lambda new, old: jnp.where(summary.all_finite > 0, new, old), (new_masters, new_state), (masters, state)
        )

    def update(masters: Tree, states: Tree, gradients: Tree, summary: StepSummary) -> tuple[Tree, Tree]:
        new_masters, new_states = dict(masters), {}
        for key, layers in gradients.items():
            updated = {
                layer: update_layer(masters[key][layer], states[key][layer], layer_gradients, summary)
                for layer, layer_gradients in layers.items()
            }
            new_masters[key] = {layer: layer_masters for layer, (layer_masters, _) in updated.items()}
            new_states[key] = {layer: state for layer, (_, state) in updated.items()}
        return new_masters, new_states

    return update
