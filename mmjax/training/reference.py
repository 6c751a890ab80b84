"""The reference of `python -m mmjax.verify`: the whole model by plain `jax.value_and_grad` on one device.

It shares no executor, no packing and no accumulation with the layouts that it judges: every sample of a batch is read
again and stands in a row of its own, so that indices count from the sample's start and normalisers are counted anew.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from configs.architectures import ModelConfig
from data.batch import GlobalBatch
from data.pipeline import Batches, DataConfig
from data.samples import Sample
from mmjax.models.parameters import initial_module
from mmjax.models.pieces import model_modules
from mmjax.models.whole import run_model
from mmjax.training.differences import Errors, gradient_errors, loss_errors
from sharding.trees import Tree

Arrays = dict[str, dict[str, np.ndarray]]

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
        losses: Of the modules that have one.
        gradients: Like the parameters.
    """

    batch: GlobalBatch
    parameters: Tree
    losses: dict[str, float]
    gradients: Tree


@dataclasses.dataclass(frozen=True, eq=False)
class OwnErrors:
    """The largest errors that computing in the layouts' precision makes on one device.

    Attributes:
        losses: By module with a loss.
        gradients: By module and parameter.
    """

    losses: dict[str, float]
    gradients: Errors


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """Some steps, and the measure of what layouts may differ."""

    steps: tuple[ReferenceStep, ...]
    own: OwnErrors


@dataclasses.dataclass(frozen=True)
class Shape:
    """The most samples of a batch, and the most that one sample has of tokens, patches and generated images."""

    samples: int
    tokens: int
    patches: int
    images: int


def shape_of(batches: Sequence[Sequence[Sample]], cell: int) -> Shape:
    """The shape that holds every batch, so that one compiled program serves all; `cell` patches make one token."""

    def most(name: str, least: int) -> int:
        return max((sample.sizes[name] for samples in batches for sample in samples), default=least) or least

    return Shape(max(map(len, batches)), most("tokens", 1), most("patches", cell), most("images", 1))


def _rows(parts: Sequence[np.ndarray], shape: tuple[int, ...], fill: int = 0) -> np.ndarray:
    """Parts of different lengths as rows of one array, filled up; `shape` begins with (rows, longest part)."""
    rows = np.full(shape, fill, parts[0].dtype if parts else np.int32)
    for row, part in zip(rows, parts, strict=False):
        row[: len(part)] = part
    return rows


def unpacked(samples: Sequence[Sample], model: ModelConfig, data: DataConfig, shape: Shape) -> Arrays:
    """A batch with every sample in a row of its own: arrays by module, as `data.batch.GlobalBatch.arrays` has them."""
    (encoder,), (generator,) = model.encoders, model.generators
    n, tokens, patches, images = shape.samples, shape.tokens, shape.patches, shape.images
    target_count = sum(int(sample.layout.target_mask.sum()) for sample in samples)
    image_count = sum(len(sample.images) for sample in samples)

    def column(name: str, fill: int = 0) -> np.ndarray:
        return _rows([getattr(sample.layout, name) for sample in samples], (n, tokens), fill)

    def of_images(value: Callable[[Sample], float], dtype: type) -> np.ndarray:
        return _rows([np.full(len(sample.images), value(sample), dtype) for sample in samples], (n, images))

    ones = [np.ones(len(sample.layout.tokens), np.int32) for sample in samples]
    size = (generator.image_size, generator.image_size, generator.channels)
    return {
        encoder.name: {
            "patches": _rows([sample.patches for sample in samples], (n, patches, encoder.patch_width)),
            "segments": _rows([sample.patch_images for sample in samples], (n, patches)),
            "positions": _rows([sample.patch_positions for sample in samples], (n, patches, 2)),
        },
        model.backbone.name: {
            "tokens": column("tokens"),
            "segments": _rows(ones, (n, tokens)),
            "branches": column("branches"),
            "positions": column("positions"),
            f"{encoder.name}_index": column("vision_index", fill=-1),
            "targets": column("targets"),
            "weights": column("target_mask") * np.float32(data.language_weight / max(1, target_count)),
            f"{generator.name}_conditions": _rows(
                [sample.conditions for sample in samples], (n, images, generator.conditions)
            ),
        },
        generator.name: {
            "images": _rows([sample.images for sample in samples], (n, images, *size)),
            "weights": of_images(lambda _: data.generator_weight / max(1, image_count), np.float32),
            "samples": of_images(lambda sample: sample.id, np.int32),
        },
    }


def value_and_grad(config: ModelConfig) -> Gradients:
    """The model as one compiled program: `(parameters, arrays, [seed, step]) -> (losses by module, gradients)`."""
    modules, dtype = model_modules(config), jnp.dtype(config.dtype)

    def total(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> tuple[jax.Array, dict]:
        weights = jax.tree.map(lambda leaf: leaf.astype(dtype), parameters)
        batch = {name: {**of, "seed_and_step": seed_and_step} for name, of in arrays.items()}
        left = run_model(modules, weights, batch)
        losses = {name: of.loss for name, of in left.items() if of.loss is not None}
        return sum(losses.values(), start=jnp.zeros(())), losses

    compiled = jax.jit(jax.value_and_grad(total, has_aux=True))

    def run(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> tuple[dict, Tree]:
        (_, losses), gradients = compiled(parameters, arrays, seed_and_step)
        return {name: float(loss) for name, loss in losses.items()}, gradients

    return run


def initial_parameters(config: ModelConfig, seed: int) -> Tree:
    """Initial values with a little noise on each: what starts at zero would hide the gradients of all before it."""
    draw = np.random.default_rng(seed)

    def noisy(leaf: np.ndarray) -> np.ndarray:
        return leaf + np.float32(NOISE) * draw.standard_normal(leaf.shape, np.float32)

    return jax.tree.map(noisy, {module.name: initial_module(seed, module) for module in model_modules(config)})


def mixed(batch: GlobalBatch, seed: int) -> GlobalBatch:
    """The batch with its rows in a random order.

    First-fit packing puts what is small into the first rows, which are the first instance's: were its pictures the
    only ones, a generator that forgot to add up the others' gradients would go unnoticed.
    """
    order = np.random.default_rng(seed).permutation(len(batch.sample_ids))
    arrays = jax.tree.map(lambda array: array[order], batch.arrays)
    return dataclasses.replace(batch, arrays=arrays, sample_ids=batch.sample_ids[order])


def run_reference(config: ModelConfig, data: DataConfig, batches: Batches, steps: int, seed: int) -> Reference:
    """Some steps of plain training on one device; Adam moves the parameters between them.

    Args:
        config: The model, in the precision that layouts compute in.
        data: What the batches were made with.
        batches: Where the batches come from, and the samples they are made of.
        steps: Number of steps.
        seed: Keys initial values and all randomness of the steps.
    """
    packed = [mixed(next(batches), number) for number in range(steps)]
    read = [batches.samples(batch.sample_ids[batch.sample_ids >= 0]) for batch in packed]
    shape = shape_of(read, config.encoders[0].merge ** 2)
    exact = value_and_grad(dataclasses.replace(config, dtype="float32"))
    measure = _Measure(config, exact if config.dtype == "float32" else value_and_grad(config))
    optimizer = optax.adam(LEARNING_RATE)

    @jax.jit
    def updated(parameters: Tree, moments: optax.OptState, gradients: Tree) -> tuple[Tree, optax.OptState]:
        changes, moments = optimizer.update(gradients, moments)
        return optax.apply_updates(parameters, changes), moments

    parameters = jax.device_put(initial_parameters(config, seed), jax.devices()[0])
    moments = jax.device_put(jax.jit(optimizer.init)(parameters), jax.devices()[0])
    done = []
    for number, (batch, samples) in enumerate(zip(packed, read, strict=True)):
        inputs = (unpacked(samples, config, data, shape), jnp.array([seed, number], jnp.int32))
        losses, gradients = exact(parameters, *inputs)
        done.append(ReferenceStep(batch, parameters, losses, gradients))
        measure.add(done[-1], *inputs)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
            parameters, moments = updated(parameters, moments, gradients)
    return Reference(tuple(done), OwnErrors(measure.losses, measure.gradients))


class _Measure:
    """Draws of the error of a precision on one device; the largest of all draws count.

    One draw says little where many roundings push the same way, so parameters are moved by about what the precision
    rounds away, and every value rounds anew: by a unit in the last place of float32, where they are not rounded
    themselves, else by a quarter of one.
    """

    def __init__(self, config: ModelConfig, compute: Gradients) -> None:
        self.losses: dict[str, float] = {}
        self.gradients: Errors = {}
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

    def _keep(self, losses: dict[str, float], gradients: Errors) -> None:
        self.losses = {name: max(error, self.losses.get(name, 0.0)) for name, error in losses.items()}
        self.gradients = {
            module: {path: max(error, self.gradients.get(module, {}).get(path, 0.0)) for path, error in errors.items()}
            for module, errors in gradients.items()
        }
