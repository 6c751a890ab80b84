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
from sharding.trees import Tree

Arrays = dict[str, dict[str, np.ndarray]]

NOISE = 0.05
LEARNING_RATE = 1e-2


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """One evaluation of the reference.

    Attributes:
        losses: Of the modules that have one.
        gradients: `{module: {piece: {layer: {...}}}}`, float32.
    """

    losses: dict[str, float]
    gradients: Tree


@dataclasses.dataclass(frozen=True, eq=False)
class ReferenceStep:
    """What every layout is given in a step, and what it should find.

    Attributes:
        batch: The packed batch.
        parameters: `{module: {piece: {layer: {...}}}}`, float32.
        expected: In float32.
        coarse: In the precision that layouts compute in, on one device; `expected` itself for float32.
    """

    batch: GlobalBatch
    parameters: Tree
    expected: Outcome
    coarse: Outcome


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


def value_and_grad(config: ModelConfig) -> Callable[[Tree, Mapping[str, Any], jax.Array], Outcome]:
    """The model's losses and gradients as one compiled program: `(parameters, arrays, [seed, step])`."""
    modules, dtype = model_modules(config), jnp.dtype(config.dtype)

    def total(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> tuple[jax.Array, dict]:
        weights = jax.tree.map(lambda leaf: leaf.astype(dtype), parameters)
        batch = {name: {**of, "seed_and_step": seed_and_step} for name, of in arrays.items()}
        left = run_model(modules, weights, batch)
        losses = {name: of.loss for name, of in left.items() if of.loss is not None}
        return sum(losses.values(), start=jnp.zeros(())), losses

    compiled = jax.jit(jax.value_and_grad(total, has_aux=True))

    def outcome(parameters: Tree, arrays: Mapping[str, Any], seed_and_step: jax.Array) -> Outcome:
        (_, losses), gradients = compiled(parameters, arrays, seed_and_step)
        return Outcome({name: float(loss) for name, loss in losses.items()}, gradients)

    return outcome


def initial_parameters(config: ModelConfig, seed: int) -> Tree:
    """Initial values with a little noise on each: what starts at zero would hide the gradients of all before it."""
    draw = np.random.default_rng(seed)

    def noisy(leaf: np.ndarray) -> np.ndarray:
        return leaf + np.float32(NOISE) * draw.standard_normal(leaf.shape, np.float32)

    return jax.tree.map(noisy, {module.name: initial_module(seed, module) for module in model_modules(config)})


def reference_steps(
    config: ModelConfig, data: DataConfig, batches: Batches, steps: int, seed: int
) -> list[ReferenceStep]:
    """Steps of plain training on one device; Adam moves the parameters between them.

    Args:
        config: The model, in the precision that layouts compute in.
        data: What the batches were made with.
        batches: Where the batches come from, and the samples they are made of.
        steps: Number of steps.
        seed: Keys initial values and all randomness of the steps.
    """
    packed = [next(batches) for _ in range(steps)]
    read = [batches.samples(batch.sample_ids[batch.sample_ids >= 0]) for batch in packed]
    shape = shape_of(read, config.encoders[0].merge ** 2)
    fine = value_and_grad(dataclasses.replace(config, dtype="float32"))
    coarse = fine if config.dtype == "float32" else value_and_grad(config)
    optimizer = optax.adam(LEARNING_RATE)
    parameters = jax.device_put(initial_parameters(config, seed), jax.devices()[0])
    moments = optimizer.init(parameters)
    done = []
    for number, (batch, samples) in enumerate(zip(packed, read, strict=True)):
        operands = (parameters, unpacked(samples, config, data, shape), jnp.array([seed, number], jnp.int32))
        expected = fine(*operands)
        done.append(ReferenceStep(batch, parameters, expected, expected if coarse is fine else coarse(*operands)))
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
            changes, moments = optimizer.update(expected.gradients, moments)
        parameters = optax.apply_updates(parameters, changes)
    return done
