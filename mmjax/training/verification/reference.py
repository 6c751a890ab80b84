"""The reference of `python -m mmjax.verify`: the whole model by plain `jax.value_and_grad` on one device.

It shares no executor, no packing and no accumulation with the layouts that are compared with it: every sample of a
batch is read again and has a row of its own, so indices start at the sample and normalisers are counted again.

The targets of about every second answer are replaced by the likeliest tokens, so that some answers are right.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig
from configs.optimizer import OptimizerConfig
from data.data_config import DataConfig
from data.packing.batch_iterator import BatchIterator
from data.packing.batch_spec import BatchSpec
from data.packing.global_batch import GlobalBatch
from data.packing.row_order import reorder_rows
from mmjax.models.layers.reference_implementations import use_reference_implementations
from mmjax.models.model import losses_by_name, model_modules, run_model
from mmjax.models.structure.parameters import init_module_parameters
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.evaluation import AnswerScore, count_answers
from mmjax.training.verification.error_measures import (
    ParameterErrors,
    global_norm,
    gradient_errors,
    gradient_scales,
    loss_errors,
)
from mmjax.training.verification.layout_results import Leaves, StepInputs, host_leaves, leaves_by_name, perturb
from mmjax.training.verification.layouts.precisions import PERTURBATIONS, Precision
from mmjax.training.verification.likely_targets import in_packed_rows, likely_tokens, replace_packed_targets
from mmjax.training.verification.reference_optimizer import ReferenceOptimizer
from mmjax.training.verification.unpacked_batches import unpacked_batch, unpacked_shape
from mmjax.training.verification.whole_arrays import share_from_first_process
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.modules import module_graph
from sharding.trees import Tree


class ModelResults(NamedTuple):
    """The results of one device for a batch.

    Attributes:
        losses: Losses by name, of modules and of layers that have losses.
        gradients: Gradients of the pieces that train, `{module: {piece: {layer: ...}}}`.
        correct: [samples, s], whether each target token is the likeliest.
    """

    losses: dict[str, float]
    gradients: Tree
    correct: np.ndarray


ModelFunction = Callable[[Tree, Mapping[str, Any], jax.Array], ModelResults]
"""`(parameters, arrays by module, [seed, step]) -> results`."""

INITIAL_NOISE = 0.05
CLIPPED_SHARE = 0.1  # gradients are clipped to this share of the global norm of the first step
MATMUL_PRECISION = "highest"  # the platform's default may be lower than float32
AVERAGED = 24  # perturbations over which gradients are averaged in lower precisions, of all steps together


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceStep:
    """One step on one device; trees are `{module: {piece: {layer: ...}}}`.

    Attributes:
        parameters: Parameters in float32; numbers of the layouts' precision, so that casting them adds no error.
        optimizer_state: Optimizer state of the pieces that train, before the step.
        losses: Losses by name.
        gradients: Gradients of the pieces that train.
        perturbed_gradients: Gradients at parameters perturbed in a lower precision (`perturb`), if the model has one.
        score: Score of the questions of the batch.
        targets: Targets of the packed rows, [n, s].
        correct: [n, s], whether each target is the likeliest token.
        margins: [n, s], margin of that comparison (`LikelyTokens`); below zero without a target.
    """

    parameters: Tree
    optimizer_state: Tree
    losses: dict[str, float]
    gradients: Tree
    perturbed_gradients: tuple[Leaves, ...]
    score: AnswerScore
    targets: np.ndarray
    correct: np.ndarray
    margins: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class RoundingErrors:
    """The largest errors that rounding to a precision makes on one device.

    Attributes:
        precision: The precision.
        losses: Errors of losses by name.
        gradients: Errors of gradients by module and parameter.
        scales: Scales of the gradients of all perturbations (`gradient_scales`), by module.
    """

    precision: Precision
    losses: dict[str, float]
    gradients: ParameterErrors
    scales: dict[str, list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """Some steps in float32, and the rounding errors that layouts may have in them, by precision.

    Attributes:
        inputs: Inputs of every step, for the layouts.
        steps: The steps; none in other processes than the first, which alone compares.
        rounding: Rounding errors by precision.
        settings: Settings of the layouts' engines; their gradients are clipped in every step.
        optimizer: The optimizer on one device.
    """

    inputs: tuple[StepInputs, ...]
    steps: tuple[ReferenceStep, ...]
    rounding: Mapping[Precision, RoundingErrors]
    settings: EngineSettings
    optimizer: ReferenceOptimizer

    def with_optimizer(self, config: ModelConfig, optimizer: OptimizerConfig) -> "Reference":
        """The same steps updated by another optimizer, whose state differs in types and places alone."""
        if optimizer == self.settings.optimizer:
            return self
        settings = dataclasses.replace(self.settings, optimizer=optimizer)
        same_types = optimizer.algorithm == self.settings.optimizer.algorithm
        on_one_device = self.optimizer if same_types else ReferenceOptimizer(config, settings)
        return dataclasses.replace(self, settings=settings, optimizer=on_one_device)

    @property
    def batch_spec(self) -> BatchSpec:
        """Shapes and dtypes of the batches."""
        return self.inputs[0].batch.arrays


def reference_value_and_grad(config: ModelConfig, trainable: tuple[str, ...]) -> ModelFunction:
    """Makes the jitted function of the whole model, which returns gradients of the parts that train alone."""
    modules, dtype = model_modules(config), jnp.dtype(config.dtype)
    trained = trained_parts(module_graph(config), trainable)
    part_of_piece = {module.name: {piece.name: piece.part for piece in module.pieces} for module in modules}

    def total_loss(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> tuple[jax.Array, Any]:
        weights = jax.tree.map(lambda leaf: leaf.astype(dtype), parameters)
        batch = {name: {**module_arrays, "seed_and_step": seed_and_step} for name, module_arrays in arrays.items()}
        # Every layout is compared with the definitions, whichever implementations it uses itself.
        with use_reference_implementations():
            outputs = run_model(modules, weights, batch)
        losses = losses_by_name(outputs)
        correct = outputs[config.backbone.name].auxiliary_metrics["correct"]
        return sum(losses.values(), start=jnp.zeros(())), (losses, correct)

    @jax.jit
    def compiled(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> tuple[Any, ...]:
        (_, (losses, correct)), gradients = jax.value_and_grad(total_loss, has_aux=True)(
            parameters, arrays, seed_and_step
        )
        trained_gradients = {
            name: {piece: tree for piece, tree in pieces.items() if part_of_piece[name][piece] in trained}
            for name, pieces in gradients.items()
        }
        return losses, trained_gradients, correct

    def run(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> ModelResults:
        losses, gradients, correct = compiled(parameters, arrays, seed_and_step)
        return ModelResults({name: float(loss) for name, loss in losses.items()}, gradients, np.asarray(correct))

    return run


def noisy_initial_parameters(config: ModelConfig, seed: int) -> Tree:
    """Initial values with a little noise on each: a zero kernel would hide the gradients of all layers before it."""
    random = np.random.default_rng(seed)

    def with_noise(leaf: np.ndarray) -> np.ndarray:
        return leaf + np.float32(INITIAL_NOISE) * random.standard_normal(leaf.shape, np.float32)

    parameters = {module.name: init_module_parameters(seed, module) for module in model_modules(config)}
    return jax.tree.map(with_noise, parameters)


def shuffle_rows(batch: GlobalBatch, seed: int) -> GlobalBatch:
    """Returns the batch with its rows in a random order.

    First-fit packing puts small samples into the first rows, which belong to the first replica. If all images were
    there, a generator that failed to add up the gradients of the other replicas would go unnoticed.
    """
    order = np.random.default_rng(seed).permutation(len(batch.sample_ids))
    return reorder_rows(batch, order)


def repeats(precision: Precision, steps: int) -> int:
    """Number of perturbations of each of `steps` steps that are averaged in a precision."""
    return math.ceil(AVERAGED / steps) if precision == "bfloat16" else 0


def run_reference(
    config: ModelConfig, data: DataConfig, batches: BatchIterator, steps: int, settings: EngineSettings
) -> Reference:
    """Runs some steps of plain training on one device, with the configured optimizer.

    In a run of several processes the first one computes them, and the others get their inputs: all call this together.

    Args:
        config: The model. Steps are computed in float32; rounding errors are measured in the model's own precision.
        data: The data configuration of the batches.
        batches: The batches, and the samples that they are made of.
        steps: Number of steps.
        settings: The seed, the optimizer, which parts train, and the transport of hops.
    """
    packed = [shuffle_rows(next(batches), number) for number in range(steps)]
    optimizer = ReferenceOptimizer(config, settings)
    done, rounding, shared = [], {}, {}
    if jax.process_index() == 0:
        done, rounding, max_norm = _train(config, data, batches, packed, settings, optimizer)
        shared["max_norm",] = np.array(max_norm, np.float32)
        for number, step in enumerate(done):
            shared[str(number), "targets"] = step.targets
            for kind, tree in (("parameters", step.parameters), ("optimizer_state", step.optimizer_state)):
                shared |= {(str(number), kind, *name): leaf for name, leaf in leaves_by_name(tree).items()}
    shared = share_from_first_process(shared)
    clipping = dataclasses.replace(settings.optimizer, max_grad_norm=float(shared.pop(("max_norm",))))
    backbone = config.backbone.name
    packed = [
        replace_packed_targets(batch, backbone, shared.pop((str(number), "targets")))
        for number, batch in enumerate(packed)
    ]
    leaves: list[dict[str, Leaves]] = [{"parameters": {}, "optimizer_state": {}} for _ in packed]
    for (number, kind, *name), leaf in shared.items():
        leaves[int(number)][kind][tuple(name)] = leaf
    return Reference(
        inputs=tuple(StepInputs(batch, **each) for batch, each in zip(packed, leaves, strict=True)),
        steps=tuple(done),
        rounding=rounding,
        settings=dataclasses.replace(settings, optimizer=clipping),
        optimizer=optimizer,
    )


def _train(
    config: ModelConfig,
    data: DataConfig,
    batches: BatchIterator,
    packed: Sequence[GlobalBatch],
    settings: EngineSettings,
    optimizer: ReferenceOptimizer,
) -> tuple[list[ReferenceStep], dict[Precision, RoundingErrors], float]:
    """Computes the steps, the rounding errors by precision, and the norm to which gradients are clipped."""
    samples_of_steps = [batches.load_samples(batch.sample_ids[batch.sample_ids >= 0]) for batch in packed]
    shape = unpacked_shape(samples_of_steps, batches.sample_format)
    in_float32 = dataclasses.replace(config, dtype="float32")
    exact, predict = reference_value_and_grad(in_float32, settings.trainable), likely_tokens(in_float32)
    precision: Precision = "fp8" if config.uses_fp8 else "float32"
    measures = [_RoundingMeasure(precision, exact, exact, PERTURBATIONS[precision])]
    if config.dtype == "bfloat16":
        own = reference_value_and_grad(config, settings.trainable)
        measures.append(_RoundingMeasure("bfloat16", own, exact, repeats("bfloat16", len(packed))))
    parameters = jax.device_put(noisy_initial_parameters(config, settings.seed), jax.local_devices()[0])
    state, max_norm, steps = None, 0.0, []
    for number, samples in enumerate(samples_of_steps):
        arrays = unpacked_batch(samples, config, data, batches.sample_format, shape)
        seed_and_step = jnp.array([settings.seed, number], jnp.int32)
        parameters = jax.tree.map(lambda leaf: leaf.astype(config.dtype).astype(jnp.float32), parameters)
        answers = arrays[config.backbone.name]
        answers["targets"], margins = predict(parameters, arrays, seed_and_step).replace_targets(answers)
        losses, gradients, correct = exact(parameters, arrays, seed_and_step)
        if state is None:
            state = optimizer.initial_state(_with_gradients(gradients, parameters))
            max_norm = float(np.float32(CLIPPED_SHARE * global_norm(gradients)))
        in_rows = functools.partial(in_packed_rows, packed[number], config.backbone.name)
        packed_targets = packed[number].arrays[config.backbone.name]["targets"]
        step = ReferenceStep(
            parameters=parameters,
            optimizer_state=state,
            losses=losses,
            gradients=gradients,
            perturbed_gradients=(),
            score=count_answers(answers, correct, np.ones(len(correct), bool)),
            targets=in_rows(answers["targets"], packed_targets),
            correct=in_rows(correct, np.zeros(packed_targets.shape, bool)),
            margins=in_rows(margins, np.full(packed_targets.shape, -1.0)),
        )
        perturbed = [leaves for each in measures for leaves in each.add(number, step, arrays, seed_and_step)]
        steps.append(dataclasses.replace(step, perturbed_gradients=tuple(perturbed)))
        if number + 1 < len(packed):  # nothing compares the state after the last update
            parameters, state = optimizer.update(parameters, state, gradients, max_norm)
    return steps, {each.precision: each.errors() for each in measures}, max_norm


def _with_gradients(gradients: Tree, parameters: Tree) -> Tree:
    """Returns the parameters of the pieces that have gradients."""
    return {name: {piece: parameters[name][piece] for piece in pieces} for name, pieces in gradients.items()}


class _RoundingMeasure:
    """The rounding errors of a precision on one device: the largest over several perturbations of the parameters.

    Rounding errors can be correlated, so a single computation may underestimate them. In float32 and FP8 the
    errors are the differences from the step itself, in bfloat16 from float32 results for the same perturbed parameters.

    Args:
        precision: The precision.
        compute, exact: The model in this precision and in float32.
        count: Perturbations of each step.
    """

    def __init__(self, precision: Precision, compute: ModelFunction, exact: ModelFunction, count: int) -> None:
        self.precision: Precision = precision
        self._compute, self._exact, self._count = compute, exact, count
        self._losses: dict[str, float] = {}
        self._gradients: ParameterErrors = {}
        self._scales: dict[str, list[float]] = {}

    def errors(self) -> RoundingErrors:
        """The largest errors so far."""
        return RoundingErrors(self.precision, self._losses, self._gradients, self._scales)

    def add(
        self, number: int, step: ReferenceStep, arrays: Mapping[str, Any], seed_and_step: jax.Array
    ) -> list[Leaves]:
        """Adds the errors of a step; returns the float32 gradients at the perturbed parameters, for comparisons."""
        leaves, structure = host_leaves(step.parameters), jax.tree.structure(step.parameters)
        losses, gradients, compared = step.losses, step.gradients, []
        for repeat in range(self._count):
            perturbed = perturb(leaves, self.precision, (number, repeat))
            tree = jax.tree.unflatten(structure, [perturbed[name] for name in leaves])
            parameters = jax.device_put(tree, jax.local_devices()[0])
            found = self._compute(parameters, arrays, seed_and_step)
            if self.precision == "bfloat16":
                losses, gradients, _ = self._exact(parameters, arrays, seed_and_step)
                compared.append(host_leaves(gradients))
            self._losses = _largest(self._losses, loss_errors(found.losses, losses))
            for module, scale in gradient_scales(found.gradients, gradients).items():
                self._scales.setdefault(module, []).append(scale)
            for module, errors in gradient_errors(found.gradients, gradients).items():
                self._gradients[module] = _largest(self._gradients.get(module, {}), errors)
        return compared


def _largest(errors: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    return {name: max(error, errors.get(name, 0.0)) for name, error in others.items()}
