"""The reference of `python -m mmjax.verify`: the whole model by plain `jax.value_and_grad` on one device.

It shares no executor, no packing and no accumulation with the layouts that are compared with it: every sample of a
batch is read again and has a row of its own, so indices start at the sample and normalisers are counted again.
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
from data.packing.batch_iterator import BatchIterator
from data.packing.global_batch import GlobalBatch
from data.packing.row_order import reorder_rows
from mmjax.models.model import losses_by_name, model_modules, run_model
from mmjax.models.structure.parameters import init_module_parameters
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.verification.error_measures import ParameterErrors, gradient_errors, loss_errors, scale_errors
from mmjax.training.verification.unpacked_batches import HostArrays, unpacked_batch, unpacked_shape
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.plans.trained_parts import trained_parts
from sharding.specs.modules import module_graph
from sharding.trees import Tree

LossesAndGradients = Callable[[Tree, Mapping[str, Any], jax.Array], tuple[dict[str, float], Tree]]
"""`(parameters, arrays by module, [seed, step]) -> (losses by name, gradients)`."""

INITIAL_NOISE = 0.05
LEARNING_RATE = 1e-2
MATMUL_PRECISION = "highest"  # that of the platform may be lower than float32
PERTURBATIONS = 4


@dataclasses.dataclass(frozen=True, eq=False)
class ReferenceStep:
    """The inputs of one step, which every layout gets, and the results that it should compute.

    Attributes:
        batch: The packed batch.
        parameters: `{module: {piece: {layer: {...}}}}`, in float32; numbers of the layouts' precision, so that casting
            them adds no error.
        losses: By name: of the modules that have a loss, and of layers that have their own.
        gradients: Like the parameters, of the pieces that train.
    """

    batch: GlobalBatch
    parameters: Tree
    losses: dict[str, float]
    gradients: Tree


@dataclasses.dataclass(frozen=True, eq=False)
class RoundingErrors:
    """The largest errors that rounding to a precision makes on one device.

    Attributes:
        dtype: The precision.
        losses: By name.
        gradients: By module and parameter.
        scales: By module (`scale_errors`).
    """

    dtype: str
    losses: dict[str, float]
    gradients: ParameterErrors
    scales: dict[str, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """Some steps in float32, and by precision the rounding errors that layouts may have in them."""

    steps: tuple[ReferenceStep, ...]
    rounding: Mapping[str, RoundingErrors]


def reference_value_and_grad(config: ModelConfig, trainable: tuple[str, ...]) -> LossesAndGradients:
    """The model as one compiled program, which gives gradients of the parts that train alone."""
    modules, dtype = model_modules(config), jnp.dtype(config.dtype)
    trained = trained_parts(module_graph(config), trainable)
    part_of_piece = {module.name: {piece.name: piece.part for piece in module.pieces} for module in modules}

    def total_loss(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> tuple[jax.Array, dict]:
        weights = jax.tree.map(lambda leaf: leaf.astype(dtype), parameters)
        batch = {name: {**module_arrays, "seed_and_step": seed_and_step} for name, module_arrays in arrays.items()}
        # Every layout is compared with dense attention, whichever implementation it uses itself.
        with use_attention_implementation("dense"):
            outputs = run_model(modules, weights, batch)
        losses = losses_by_name(outputs)
        return sum(losses.values(), start=jnp.zeros(())), losses

    @jax.jit
    def compiled(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> tuple[dict, Tree]:
        (_, losses), gradients = jax.value_and_grad(total_loss, has_aux=True)(parameters, arrays, seed_and_step)
        return losses, {
            name: {piece: tree for piece, tree in pieces.items() if part_of_piece[name][piece] in trained}
            for name, pieces in gradients.items()
        }

    def run(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> tuple[dict, Tree]:
        losses, gradients = compiled(parameters, arrays, seed_and_step)
        return {name: float(loss) for name, loss in losses.items()}, gradients

    return run


def noisy_initial_parameters(config: ModelConfig, seed: int) -> Tree:
    """Initial values with a little noise on each: a kernel that is zero would hide the gradients of all before it."""
    random = np.random.default_rng(seed)

    def with_noise(leaf: np.ndarray) -> np.ndarray:
        return leaf + np.float32(INITIAL_NOISE) * random.standard_normal(leaf.shape, np.float32)

    parameters = {module.name: init_module_parameters(seed, module) for module in model_modules(config)}
    return jax.tree.map(with_noise, parameters)


def shuffle_rows(batch: GlobalBatch, seed: int) -> GlobalBatch:
    """The batch with its rows in a random order.

    First-fit packing puts small samples into the first rows, which belong to the first replica. If all images were
    there, a generator that failed to add up the gradients of the other replicas would go unnoticed.
    """
    order = np.random.default_rng(seed).permutation(len(batch.sample_ids))
    return reorder_rows(batch, order)


def run_reference(
    config: ModelConfig, data: DataConfig, batches: BatchIterator, steps: int, settings: EngineSettings
) -> Reference:
    """Some steps of plain training on one device; Adam moves the parameters between them.

    Args:
        config: The model. Steps are computed in float32; of its own precision, rounding errors are measured.
        data: What the batches were made with.
        batches: The batches, and the samples that they are made of.
        steps: Number of steps.
        settings: The seed, and which parts train.
    """
    packed = [shuffle_rows(next(batches), number) for number in range(steps)]
    samples_of_steps = [batches.load_samples(batch.sample_ids[batch.sample_ids >= 0]) for batch in packed]
    shape = unpacked_shape(samples_of_steps, batches.sample_format)
    exact = reference_value_and_grad(dataclasses.replace(config, dtype="float32"), settings.trainable)
    measures = [_RoundingMeasure("float32", exact, exact)]
    if config.dtype != "float32":
        measures.append(_RoundingMeasure(config.dtype, reference_value_and_grad(config, settings.trainable), exact))
    optimizer = optax.adam(LEARNING_RATE)

    @jax.jit
    def update(parameters: Tree, moments: optax.OptState, gradients: Tree) -> tuple[Tree, optax.OptState]:
        updates, moments = optimizer.update(gradients, moments)
        trained: Any = optax.apply_updates(_with_gradients(gradients, parameters), updates)
        return {name: {**pieces, **trained[name]} for name, pieces in parameters.items()}, moments

    device = jax.devices()[0]
    parameters = jax.device_put(noisy_initial_parameters(config, settings.seed), device)
    moments = None
    reference_steps = []
    for number, (batch, samples) in enumerate(zip(packed, samples_of_steps, strict=True)):
        arrays = unpacked_batch(samples, config, data, batches.sample_format, shape)
        seed_and_step = jnp.array([settings.seed, number], jnp.int32)
        parameters = jax.tree.map(lambda leaf: leaf.astype(config.dtype).astype(jnp.float32), parameters)
        losses, gradients = exact(parameters, arrays, seed_and_step)
        step = ReferenceStep(batch, parameters, losses, gradients)
        reference_steps.append(step)
        for measure in measures:
            measure.add(step, arrays, seed_and_step)
        if moments is None:
            moments = jax.device_put(jax.jit(optimizer.init)(_with_gradients(gradients, parameters)), device)
        with jax.numpy_dtype_promotion("standard"):  # optax computes float ** integer
            parameters, moments = update(parameters, moments, gradients)
    rounding = {each.dtype: each.errors() for each in measures}
    return Reference(tuple(reference_steps), rounding)


def _with_gradients(gradients: Tree, parameters: Tree) -> Tree:
    """The parameters of the pieces that have gradients."""
    return {name: {piece: parameters[name][piece] for piece in pieces} for name, pieces in gradients.items()}


class _RoundingMeasure:
    """The rounding errors of a precision on one device: the largest over several perturbations of the parameters.

    Rounding errors can be correlated, so a single computation may underestimate them. Therefore every parameter is
    multiplied by 1 + u, with u uniform in [-eps, eps], where eps is that of the precision, and all intermediate results
    round differently. In float32 the errors are the differences from the step itself. In another precision the
    perturbed parameters are rounded to it, and the errors are those of its results for them.
    """

    def __init__(self, dtype: str, compute: LossesAndGradients, exact: LossesAndGradients) -> None:
        self.dtype = dtype
        self._losses: dict[str, float] = {}
        self._gradients: ParameterErrors = {}
        self._scales: dict[str, float] = {}
        self._eps = float(jnp.finfo(dtype).eps)
        self._compute, self._exact = compute, exact
        self._random = np.random.default_rng(0)

    def errors(self) -> RoundingErrors:
        """The largest errors so far."""
        return RoundingErrors(self.dtype, self._losses, self._gradients, self._scales)

    def add(self, step: ReferenceStep, arrays: HostArrays, seed_and_step: jax.Array) -> None:
        """Adds the errors of one step under `PERTURBATIONS` perturbations."""
        expected = step.losses, step.gradients
        for _ in range(PERTURBATIONS):
            perturbed = jax.device_put(jax.tree.map(self._perturb, step.parameters), jax.devices()[0])
            losses, gradients = self._compute(perturbed, arrays, seed_and_step)
            if self.dtype != "float32":
                expected = self._exact(perturbed, arrays, seed_and_step)
            self._losses = _largest(self._losses, loss_errors(losses, expected[0]))
            self._scales = _largest(self._scales, scale_errors(gradients, expected[1]))
            for module, errors in gradient_errors(gradients, expected[1]).items():
                self._gradients[module] = _largest(self._gradients.get(module, {}), errors)

    def _perturb(self, leaf: jax.Array) -> np.ndarray:
        relative = self._random.uniform(-self._eps, self._eps, leaf.shape)
        perturbed = np.asarray(leaf) * (1 + relative).astype(np.float32)
        return perturbed.astype(jnp.dtype(self.dtype)).astype(np.float32)


def _largest(errors: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    return {name: max(error, errors.get(name, 0.0)) for name, error in others.items()}
