"""The configured optimizer applied to the whole model on one device; clipping is optax's own.

`reference.py` updates by it; the engine's own optimizer is `engine/optimizers/optimizer.py`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from configs.architectures import ModelConfig
from mmjax.models.model import model_modules
from mmjax.training.engine.optimizers.layer_optimizer import LayerOptimizer
from mmjax.training.engine.optimizers.part_optimizers import make_part_optimizers
from mmjax.training.engine.settings import EngineSettings
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.modules import module_graph
from sharding.trees import Tree


class ReferenceOptimizer:
    """The optimizer of every layer that trains, on one device.

    All trees are `{module: {piece: {layer: ...}}}`.

    Args:
        config: The model.
        settings: The optimizer, which parts train, and the steps of the run.
    """

    def __init__(self, config: ModelConfig, settings: EngineSettings) -> None:
        graph = module_graph(config)
        trained = trained_parts(graph, settings.trainable)
        parts = make_part_optimizers(settings.optimizer, graph, trained, settings.steps)
        self._optimizer = LayerOptimizer(settings.optimizer.algorithm)
        self._hyperparameters = parts.hyperparameters(model_modules(config)).by_piece
        self._warmup = max((part.resolve_warmup(settings.steps) for part in parts.by_part.values()), default=0)

    def initial_state(self, parameters: Tree) -> Tree:
        """Zero moments, and step counts at the end of the warm-up, in which learning rates may be zero.

        Args:
            parameters: Parameters of the pieces that train.
        """

        def state(layers: Tree) -> Tree:
            initial = {layer: self._optimizer.init(tree) for layer, tree in layers.items()}
            return jax.tree.map(self._after_warmup, initial)

        return {
            module: {piece: state(layers) for piece, layers in pieces.items()} for module, pieces in parameters.items()
        }

    def _after_warmup(self, leaf: jax.Array) -> jax.Array:
        return jnp.full_like(leaf, self._warmup) if jnp.issubdtype(leaf.dtype, jnp.integer) else leaf

    @functools.partial(jax.jit, static_argnums=0)
    def update(
        self, parameters: Tree, state: Tree, gradients: Tree, max_norm: jax.typing.ArrayLike
    ) -> tuple[Tree, Tree]:
        """Returns parameters and optimizer state after one update.

        Args:
            parameters: Parameters of all pieces.
            state: Optimizer state of the pieces that train; moments of another type are converted.
            gradients: Gradients of the pieces that train.
            max_norm: Global norm to which gradients are clipped.
        """
        kept = {module: {piece: parameters[module][piece] for piece in pieces} for module, pieces in state.items()}
        stored = jax.eval_shape(self.initial_state, kept)
        state = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), state, stored)
        with jax.numpy_dtype_promotion("standard"):  # optax computes float ** integer
            clip: Any = optax.clip_by_global_norm(max_norm)
            clipped, _ = clip.update(gradients, clip.init(gradients))
            new_parameters = {module: dict(pieces) for module, pieces in parameters.items()}
            new_state: Tree = {}
            for module, pieces in clipped.items():
                new_state[module] = {}
                for piece, layers in pieces.items():
                    updated = {
                        layer: self._optimizer.update(
                            tree,
                            state[module][piece][layer],
                            parameters[module][piece][layer],
                            self._hyperparameters[f"{module}/{piece}"],
                            f"{module}/{piece}/{layer}",
                        )
                        for layer, tree in layers.items()
                    }
                    new_parameters[module][piece] = {
                        layer: optax.apply_updates(parameters[module][piece][layer], change)
                        for layer, (change, _) in updated.items()
                    }
                    new_state[module][piece] = {layer: after for layer, (_, after) in updated.items()}
        return new_parameters, new_state
