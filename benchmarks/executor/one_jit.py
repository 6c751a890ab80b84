"""A whole training step as one plain `jax.jit` on one device: what the executor's steps are timed against.

It computes what the stages of an engine compute, with the same recomputation and the same optimizer. It has no stages
and no hops, its parameters are already stacked, and a step is one program.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mmjax.models.structure.parameters import init_layer_parameters
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.stage_functions import make_stage_function
from mmjax.training.engine.stage_layouts import PieceRun, piece_key
from sharding.axes import Axes
from sharding.trees import Tree

State = tuple[Tree, Tree]
"""(parameters, moments) by `PieceRun.parameter_key`; equal layers stacked."""


class OneJit:
    """The step of an engine's model as one program.

    Args:
        engine: The engine whose step is computed. Every module must be on one stage only.
        device: The device that computes it.
    """

    def __init__(self, engine: Engine, device: jax.Device) -> None:
        self._engine, self._device = engine, device
        self._stages = [
            (stage.layout, make_stage_function(stage.layout, stage.master_weights.compute_specs))
            for stage in engine.stages.values()
        ]
        self._runs: list[PieceRun] = [run for layout, _ in self._stages for run in layout.piece_runs]
        self._hyperparameters = engine.part_optimizers.hyperparameters(engine.modules).by_piece
        self._step = jax.jit(self._whole_step, donate_argnums=0)

    def initial_state(self) -> State:
        """The engine's initial values, and moments of zero."""
        parameters = jax.device_put({run.parameter_key: self._initial(run) for run in self._runs}, self._device)
        moments = {
            run.parameter_key: self._over_layers(run, self._engine.optimizer.init)(parameters[run.parameter_key])
            for run in self._runs
        }
        # counts are not tied to a device yet; they would be after a step, and the step would be compiled again
        return parameters, jax.device_put(moments, self._device)

    def place(self, batch: Mapping[str, Mapping[str, np.ndarray]], step: int) -> Tree:
        """Places the arrays that the model reads, `[m, r, ...]`, and the seed and step of its randomness."""
        m = self._engine.plan.microbatches
        rows = {
            module: {
                name: batch[module][name].reshape(m, -1, *batch[module][name].shape[1:])
                for name in names
                if name != "seed_and_step"
            }
            for layout, _ in self._stages
            for module, names in layout.batch_arrays().items()
        }
        key = np.array([self._engine.settings.seed, step], np.int32)
        return jax.device_put({"rows": rows, "key": key}, self._device)

    def step(self, state: State, placed: Tree) -> tuple[State, jax.Array, jax.Array]:
        """(new state, loss, norm of the gradients); the old state is donated."""
        return self._step(state, placed)

    def _whole_step(self, state: State, placed: Tree) -> tuple[State, jax.Array, jax.Array]:
        parameters, moments = state
        weights = jax.tree.map(lambda leaf: leaf.astype(jnp.dtype(self._engine.config.dtype)), parameters)
        start = jnp.zeros(()), jax.tree.map(jnp.zeros_like, parameters)

        def accumulate(total: tuple[jax.Array, Tree], rows: Tree) -> tuple[tuple[jax.Array, Tree], None]:
            loss, gradients = jax.value_and_grad(self._loss)(weights, rows, placed["key"])
            more = jax.tree.map(lambda sum_, new: sum_ + new.astype(jnp.float32), total[1], gradients)
            return (total[0] + loss, more), None

        # Unrolled: in a loop XLA's convolutions can take twice as long on the CPU, which would flatter the executor.
        (loss, gradients), _ = jax.lax.scan(accumulate, start, placed["rows"], unroll=True)
        norm = optax.tree.norm(gradients)
        limit = self._engine.settings.optimizer.max_grad_norm
        scale = jnp.minimum(1.0, limit / norm) if limit else jnp.ones(())
        clipped = jax.tree.map(lambda leaf: leaf * scale, gradients)
        done = {
            run.parameter_key: self._over_layers(run, self._updater(run.parameter_key))(
                clipped[run.parameter_key], moments[run.parameter_key], parameters[run.parameter_key]
            )
            for run in self._runs
        }
        state = ({key: new for key, (new, _) in done.items()}, {key: new for key, (_, new) in done.items()})
        return state, loss, norm

    def _loss(self, weights: Tree, rows: Tree, key: jax.Array) -> jax.Array:
        channels, losses = {}, []
        batch = {module: {**arrays, "seed_and_step": key} for module, arrays in rows.items()}
        for layout, apply in self._stages:
            inputs = {name: channels[name] for name in layout.inputs}
            axes = {run.module.name: Axes() for run in layout.piece_runs}
            outputs, more, _ = apply(weights, inputs, batch, axes)
            channels |= outputs
            losses += more.values()
        return sum(losses, start=jnp.zeros(()))

    def _updater(self, key: str) -> Callable[[Tree, Any, Any], tuple[Any, Any]]:
        hyperparameters = self._hyperparameters[piece_key(key)]

        def update(gradients: Tree, moments: Any, parameters: Any) -> tuple[Any, Any]:
            changes, moments = self._engine.optimizer.update(gradients, moments, parameters, hyperparameters, key)
            return optax.apply_updates(parameters, changes), moments

        return update

    def _initial(self, run: PieceRun) -> Tree:
        layers = [
            init_layer_parameters(self._engine.settings.seed, run.module, run.piece, layer)
            for layer in range(run.first, run.last)
        ]
        return jax.tree.map(lambda *arrays: np.stack(arrays), *layers) if run.piece.layers else layers[0]

    def _over_layers(self, run: PieceRun, function: Any) -> Any:
        """Maps a function of one layer over stacked layers, so that the optimizer can tell vectors from matrices."""
        return jax.vmap(function) if run.piece.layers else function
