"""The optimizer applied layer by layer, its state sharded like the master weights (ZeRO-1).

The last op of a step: the executor runs it on each stage when the global norm is known. Gradients are clipped here, by
the scale that `sharding/runtime/global_reduction.py` computes of that norm; the learning rate is applied in
`layer_optimizer.py`.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from mmjax.training.engine.optimizers.hyperparameters import Hyperparameters
from mmjax.training.engine.optimizers.layer_optimizer import LayerOptimizer
from mmjax.training.engine.optimizers.moments import by_path, of_parameter
from sharding.runtime.stages.host_memory import is_on_host, load, store
from sharding.runtime.stages.master_weights import StageMasterWeights
from sharding.trees import Tree

OptimizerState = Any


def layer_optimizer_shardings(
    optimizer: LayerOptimizer, shapes: Tree, shardings: Tree, scalar_sharding: Any
) -> OptimizerState:
    """Shardings of a layer's optimizer state.

    State with a parameter's path and shape, such as a moment, is sharded like the parameter. All other state is
    replicated: step counts, and the row and column statistics of Adafactor.
    """
    parameters = {
        path: (shape.shape, sharding)
        for (path, shape), sharding in zip(by_path(shapes).items(), jax.tree.leaves(shardings), strict=True)
    }

    def sharding_of(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Any:
        shape, sharding = of_parameter(path, parameters) or (None, None)
        return sharding if leaf.shape == shape else scalar_sharding

    return jax.tree_util.tree_map_with_path(sharding_of, jax.eval_shape(optimizer.init, shapes))


def stage_optimizer_shardings(
    optimizer: LayerOptimizer, master_weights: StageMasterWeights, trained_keys: Collection[str]
) -> Tree:
    """Shardings of a stage's optimizer state: `{key: {layer: ...}}` of the keys that train.

    Args:
        optimizer: The optimizer of a layer.
        master_weights: The master weights of the stage.
        trained_keys: The keys.
    """
    replicated = NamedSharding(master_weights.mesh, P())
    return {
        key: {
            layer: layer_optimizer_shardings(optimizer, master_weights.layer_stacks[key].shapes, shardings, replicated)
            for layer, shardings in layers.items()
        }
        for key, layers in sorted(master_weights.shardings.items())
        if key in trained_keys
    }


def squared_norm(gradients: Tree) -> jax.Array:
    """Sum of the squares of all leaves, in float32."""
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients)), start=jnp.zeros(()))


def squared_norm_and_losses(gradients: Tree, losses: dict[str, jax.Array]) -> jax.Array:
    """[1, 1 + losses]: the squared norm of a stage's gradients, then its losses by name, summed over replicas."""
    return jnp.stack([squared_norm(gradients), *(jnp.sum(losses[name]) for name in sorted(losses))])[None]


def init_stage(optimizer: LayerOptimizer, masters: Tree) -> Tree:
    """The optimizer state of a stage's trained master weights, `{key: {layer: ...}}`, before the first step.

    It depends on their shapes alone, so that none are read from the host's memory.
    """

    def init(parameters: Tree) -> OptimizerState:
        return optimizer.init(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), parameters))

    return {key: {layer: init(parameters) for layer, parameters in layers.items()} for key, layers in masters.items()}


def abstract_optimizer_state(
    optimizer: LayerOptimizer, master_weights: StageMasterWeights, trained_keys: Collection[str]
) -> Tree:
    """Shapes, types and shardings of a stage's optimizer state; takes the arguments of `stage_optimizer_shardings`."""
    if not trained_keys:
        return {}
    masters = master_weights.abstract_weights()
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(functools.partial(init_stage, optimizer), {key: masters[key] for key in sorted(trained_keys)}),
        stage_optimizer_shardings(optimizer, master_weights, trained_keys),
    )


def make_stage_update(
    optimizer: LayerOptimizer, pieces: Mapping[str, str], shardings: tuple[Tree, Tree]
) -> Callable[[Tree, Tree, Tree, jax.Array, jax.Array], tuple[Tree, Tree]]:
    """Makes the update of all trained layers of a stage, each tree `{key: {layer: ...}}`.

    If the step was not finite, master weights and optimizer state keep their values; the devices choose, not the host.
    Layers that lie in the host's memory are loaded one after another, and what they become is stored there. Layers
    whose moments are rounded are updated one after another too: XLA would fuse the masters of one with those of others,
    apart from their moments, and so read everything twice.

    Args:
        optimizer: The optimizer of a layer.
        pieces: By key, the piece of its layers as `module/piece`.
        shardings: Shardings of the trained master weights and of the optimizer state, `{key: {layer: ...}}`.

    Returns:
        `(masters, optimizer state, gradients, decision, hyperparameters) -> (masters, optimizer state)`, by
        `StepSummary.decision` and a row of `Hyperparameters` for each key, in sorted order.
    """
    take_turns = optimizer.rounds_moments or is_on_host(shardings)

    def update_layer(
        masters: Tree,
        state: OptimizerState,
        gradients: Tree,
        decision: jax.Array,
        hyperparameters: Hyperparameters,
        name: str,
    ) -> tuple[Tree, OptimizerState]:
        clip_scale, all_finite = decision[0]
        clipped = jax.tree.map(lambda leaf: leaf * clip_scale, gradients)
        updates, new_state = optimizer.update(clipped, state, masters, hyperparameters, name)
        new_masters = optax.apply_updates(masters, updates)
        return jax.tree.map(
            lambda new, old: jnp.where(all_finite > 0, new, old), (new_masters, new_state), (masters, state)
        )

    def update(
        masters: Tree, states: Tree, gradients: Tree, decision: jax.Array, hyperparameters: jax.Array
    ) -> tuple[Tree, Tree]:
        new_masters, new_states = dict(masters), {}
        before = ()  # the updated layer before, where layers take turns
        for row, key in zip(hyperparameters, sorted(gradients), strict=True):
            new_masters[key], new_states[key] = {}, {}
            for layer, layer_gradients in gradients[key].items():
                memory = shardings[0][key][layer], shardings[1][key][layer]
                loaded = load((masters[key][layer], states[key][layer]), memory, after=before)
                updated = update_layer(
                    *loaded, layer_gradients, decision, Hyperparameters(*row), f"{pieces[key]}/{layer}"
                )
                new_masters[key][layer], new_states[key][layer] = store(updated, memory)
                before = updated if take_turns else ()
        return new_masters, new_states

    return update
