"""The reference of `python -m mmjax.verify`: the whole model by plain `jax.value_and_grad` on one device.

It shares no executor, no packing and no accumulation with the layouts that it judges: every sample of a batch is read
again and stands in a row of its own, so that indices count from the sample's start and normalisers are counted anew.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.packing.global_batch import GlobalBatch
from data.packing.pipeline import BatchIterator
from data.packing.row_order import reorder_rows
from mmjax.models.model import losses_by_name, model_modules, run_model
from mmjax.models.structure.parameters import init_module_parameters
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.verification.error_measures import ParameterErrors, gradient_errors, loss_errors
from mmjax.training.verification.unpacked_batches import Arrays, unpacked_batch, unpacked_shape
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.plans.trained_parts import trained_parts
from sharding.specs.modules import module_graph
from sharding.trees import Tree

Gradients = Callable[[Tree, Mapping[str, Any], jax.Array], tuple[dict[str, float], Tree]]

NOISE = 0.05
LEARNING_RATE = 1e-2
DRAWS = 4


@dataclasses.dataclass(frozen=True, eq=False)
class ReferenceStep:
    """What every layout is given in a step, and what it should find.

    Attributes:
        batch: The packed batch.
        parameters: `{module: {piece: {layer: {...}}}}`, float32.
        losses: By name: of the modules that have one, and of layers that have their own.
        gradients: Like the parameters.
    """

    batch: GlobalBatch
    parameters: Tree
    losses: dict[str, float]
    gradients: Tree


@dataclasses.dataclass(frozen=True, eq=False)
class RoundingErrors:
    """The largest errors that computing in the layouts' precision makes on one device.

    Attributes:
        losses: By name.
        gradients: By module and parameter.
    """

    losses: dict[str, float]
    gradients: ParameterErrors


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """Some steps, and the measure of what layouts may differ."""

    steps: tuple[ReferenceStep, ...]
    rounding: RoundingErrors


def reference_value_and_grad(config: ModelConfig) -> Gradients:
    """The model as one compiled program: `(parameters, arrays, [seed, step]) -> (losses by module, gradients)`.

    What is frozen unless it is named (an autoencoder) has no gradients.
    """
    modules, dtype = model_modules(config), jnp.dtype(config.dtype)
    trained = trained_parts(module_graph(config), EngineSettings().trainable)

    def total(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> tuple[jax.Array, dict]:
        weights = jax.tree.map(lambda leaf: leaf.astype(dtype), parameters)
        batch = {name: {**of, "seed_and_step": seed_and_step} for name, of in arrays.items()}
        with use_attention_implementation("dense"):  # whatever layouts attend by, they are judged by the plain form
            left = run_model(modules, weights, batch)
        losses = losses_by_name(left)
        return sum(losses.values(), start=jnp.zeros(())), losses

    @jax.jit
    def compiled(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> tuple[dict, Tree]:
        (_, losses), gradients = jax.value_and_grad(total, has_aux=True)(parameters, arrays, seed_and_step)
        owners = {module.name: {piece.name: piece.part for piece in module.pieces} for module in modules}
        return losses, {
            name: {piece: tree for piece, tree in of.items() if owners[name][piece] in trained}
            for name, of in gradients.items()
        }

    def run(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> tuple[dict, Tree]:
        losses, gradients = compiled(parameters, arrays, seed_and_step)
        return {name: float(loss) for name, loss in losses.items()}, gradients

    return run


def noisy_initial_parameters(config: ModelConfig, seed: int) -> Tree:
    """Initial values with a little noise on each: what starts at zero would hide the gradients of all before it."""
    draw = np.random.default_rng(seed)

    def noisy(leaf: np.ndarray) -> np.ndarray:
        return leaf + np.float32(NOISE) * draw.standard_normal(leaf.shape, np.float32)

    return jax.tree.map(noisy, {module.name: init_module_parameters(seed, module) for module in model_modules(config)})


def shuffle_rows(batch: GlobalBatch, seed: int) -> GlobalBatch:
    """The batch with its rows in a random order.

    First-fit packing puts what is small into the first rows, which are the first instance's: were its pictures the
    only ones, a generator that forgot to add up the others' gradients would go unnoticed.
    """
    order = np.random.default_rng(seed).permutation(len(batch.sample_ids))
    return reorder_rows(batch, order)


def run_reference(config: ModelConfig, data: DataConfig, batches: BatchIterator, steps: int, seed: int) -> Reference:
    """Some steps of plain training on one device; Adam moves the parameters between them.

    Args:
        config: The model, in the precision that layouts compute in.
        data: What the batches were made with.
        batches: Where the batches come from, and the samples they are made of.
        steps: Number of steps.
        seed: Keys initial values and all randomness of the steps.
    """
    packed = [shuffle_rows(next(batches), number) for number in range(steps)]
    read = [batches.load_samples(batch.sample_ids[batch.sample_ids >= 0]) for batch in packed]
    shape = unpacked_shape(read, batches.sample_format)
    exact = reference_value_and_grad(dataclasses.replace(config, dtype="float32"))
    measure = _Measure(config, exact if config.dtype == "float32" else reference_value_and_grad(config))
    optimizer = optax.adam(LEARNING_RATE)

    @jax.jit
    def updated(parameters: Tree, moments: optax.OptState, gradients: Tree) -> tuple[Tree, optax.OptState]:
        changes, moments = optimizer.update(gradients, moments)
        moved = optax.apply_updates(_like(gradients, parameters), changes)
        return {name: {**of, **moved[name]} for name, of in parameters.items()}, moments

    parameters = jax.device_put(noisy_initial_parameters(config, seed), jax.devices()[0])
    moments = None
    done = []
    for number, (batch, samples) in enumerate(zip(packed, read, strict=True)):
        inputs = (
            unpacked_batch(samples, config, data, batches.sample_format, shape),
            jnp.array([seed, number], jnp.int32),
        )
        losses, gradients = exact(parameters, *inputs)
        done.append(ReferenceStep(batch, parameters, losses, gradients))
        measure.add(done[-1], *inputs)
        if moments is None:
            moments = jax.device_put(jax.jit(optimizer.init)(_like(gradients, parameters)), jax.devices()[0])
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
            parameters, moments = updated(parameters, moments, gradients)
    return Reference(tuple(done), RoundingErrors(measure.losses, measure.gradients))


def _like(gradients: Tree, parameters: Tree) -> Tree:
    """The pieces that have gradients."""
    return {name: {piece: parameters[name][piece] for piece in of} for name, of in gradients.items()}


class _Measure:
    """Draws of the error of a precision on one device; the largest of all draws count.

    One draw says little where many roundings push the same way, so parameters are moved by about what the precision
    rounds away, and every value rounds anew: by a unit in the last place of float32, where they are not rounded
    themselves, else by a quarter of one.
    """

    def __init__(self, config: ModelConfig, compute: Gradients) -> None:
        self.losses: dict[str, float] = {}
        self.gradients: ParameterErrors = {}
        self._unit = float(jnp.finfo(config.dtype).eps) / (1 if config.dtype == "float32" else 4)
        self._compute = compute
        self._random = np.random.default_rng(0)

    def add(self, step: ReferenceStep, arrays: Arrays, seed_and_step: jax.Array) -> None:
        """Draws for one step."""
        for _ in range(DRAWS):
            moved = jax.device_put(jax.tree.map(self._moved, step.parameters), jax.devices()[0])
            losses, gradients = self._compute(moved, arrays, seed_and_step)
            self._keep(loss_errors(losses, step.losses), gradient_errors(gradients, step.gradients))

    def _moved(self, leaf: jax.Array) -> np.ndarray:
        by = self._random.uniform(-self._unit, self._unit, leaf.shape)
        return np.asarray(leaf) * (1 + by).astype(np.float32)

    def _keep(self, losses: dict[str, float], gradients: ParameterErrors) -> None:
        self.losses = {name: max(error, self.losses.get(name, 0.0)) for name, error in losses.items()}
        self.gradients = {
            module: {path: max(error, self.gradients.get(module, {}).get(path, 0.0)) for path, error in errors.items()}
            for module, errors in gradients.items()
        }
