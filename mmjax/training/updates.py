"""AdamW with warm-up and cosine decay, per layer, sharded like the masters (ZeRO-1)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from mmjax.training.optimizer import OptimizerConfig
from sharding.runtime.agreement import Decision
from sharding.trees import Tree

State = Any


def learning_rates(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate by step, for a run of `steps`."""
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=config.warmup,
        decay_steps=max(steps, config.warmup + 1),
        end_value=config.learning_rate * config.final_share,
    )


def adamw(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """The optimizer of one layer; nothing in it looks across layers, so that any cut into stages is the same."""
    return optax.adamw(
        learning_rates(config, steps),
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=lambda parameters: jax.tree.map(lambda leaf: leaf.ndim >= 2, parameters),
    )


def optimizer_shardings(
    transformation: optax.GradientTransformation, parameters: Tree, shardings: Tree, scalar: Any
) -> State:
    """Shardings of a layer's optimizer state: moments like their parameters, counts like `scalar`."""
    state = jax.eval_shape(transformation.init, parameters)
    return optax.tree.map_params(
        transformation, lambda _, sharding: sharding, state, shardings, transform_non_params=lambda _: scalar
    )


def squared_norm(gradients: Tree) -> jax.Array:
    """Sum of squares of all leaves, in float32."""
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients)), start=jnp.zeros(()))


def stage_stats(gradients: Tree, losses: dict[str, jax.Array]) -> jax.Array:
    """`[1, 1 + losses]`: squared norm of a stage's gradients, and its losses by name, summed over instances."""
    return jnp.stack([squared_norm(gradients), *(jnp.sum(losses[name]) for name in sorted(losses))])[None]


def stage_update(
    transformation: optax.GradientTransformation,
) -> Callable[[Tree, Tree, Tree, Decision], tuple[Tree, Tree]]:
    """The update of all trained layers of a stage: `{key: {layer: ...}}`; frozen keys have no optimizer state.

    Where the decision is not ok, everything stays as it was, on the device.
    """

    def update(masters: Tree, states: Tree, gradients: Tree, decision: Decision) -> tuple[Tree, Tree]:
        ok = decision.ok > 0

        def one(master: Tree, state: State, gradient: Tree) -> tuple[Tree, State]:
            clipped = jax.tree.map(lambda leaf: leaf * decision.scale, gradient)
            with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
                changes, new_state = transformation.update(clipped, state, master)
            new_master = optax.apply_updates(master, changes)
            kept = jax.tree.map(lambda new, old: jnp.where(ok, new, old), (new_master, new_state), (master, state))
            return kept

        new_masters, new_states = dict(masters), {}
        for key, layers in gradients.items():
            done = {layer: one(masters[key][layer], states[key][layer], layers[layer]) for layer in layers}
            new_masters[key] = {layer: master for layer, (master, _) in done.items()}
            new_states[key] = {layer: state for layer, (_, state) in done.items()}
        return new_masters, new_states

    return update
