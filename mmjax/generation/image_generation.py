"""Generation of images from descriptions by a trained model: the backbone's conditions, then the generator's sampler.

`mmjax.draw`, the command `mmjax.generate` and the sample log of a run call it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from configs.common.errors import UserError
from data.datasets.prompts import image_prompt_metadata, prompt_record
from data.samples.sample import Sample
from mmjax.generation.trained_model import TrainedModel
from mmjax.models.modalities.backbone import hidden_states_at
from mmjax.models.modalities.generators.generator import generate_images
from mmjax.models.structure.module import Piece
from mmjax.models.structure.parameters import layer_name, piece_definition
from sharding.axes import Axes
from sharding.trees import Tree


class ImageGenerator:
    """Generates images with the generator of a model.

    Attributes:
        config: The generator.
    """

    def __init__(self, model: TrainedModel) -> None:
        """Takes a model with a generator.

        Raises:
            UserError: It has none.
        """
        if not model.config.generators:
            raise UserError("the model has no generator and can't make images; leave --output out to ask it a question")
        self._model, self.config = model, model.config.generators[0]
        (self._module,) = (module for module in model.modules if module.name == self.config.name)

    def generate(
        self, descriptions: Sequence[str], seeds: Sequence[int], steps: int = 50, guidance: float = 1.0
    ) -> np.ndarray:
        """Generates images by DDIM (of a rectified flow, by Euler's method), all in one program.

        Args:
            descriptions: Description of each image.
            seeds: Seed of each image's noise. An image depends on its own description and seed alone.
            steps: Number of sampling steps, at least 1.
            guidance: Scale of classifier-free guidance (arXiv 2207.12598); 1 for none. Another scale needs a model that
                was trained with GeneratorConfig.condition_dropout.

        Returns:
            float32[images, z, z, c] in [-1, 1].

        Raises:
            UserError: A description is empty, or longer than a row.
        """
        distinct = list(dict.fromkeys(descriptions))
        samples = [self._sample(description, number) for number, description in enumerate(distinct)]
        rows = [distinct.index(description) for description in descriptions]
        return self._generate(self._conditions(samples)[rows], seeds, steps, guidance)

    def generate_for_samples(
        self, samples: Sequence[Sample], seeds: Sequence[int], steps: int = 50, guidance: float = 1.0
    ) -> np.ndarray:
        """As `generate`, for samples that end with the positions that condition one image, and that fit a row."""
        return self._generate(self._conditions(samples), seeds, steps, guidance)

    def _generate(
        self, conditions: Float[np.ndarray, "b q c"], seeds: Sequence[int], steps: int, guidance: float
    ) -> np.ndarray:
        return np.asarray(
            self._sample_program(self._model.parameters, conditions, np.asarray(seeds, np.int32), steps, guidance)
        )

    def _conditions(self, samples: Sequence[Sample]) -> Float[np.ndarray, "b q c"]:
        """Computes the conditions of each sample's image."""
        model = self._model
        arrays = model.batch_arrays(samples, model.capacity.tokens)
        lengths = np.asarray([len(sample.layout.tokens) for sample in samples], np.int32)
        positions = np.stack([sample.condition_positions for sample in samples])
        return np.asarray(self._conditions_program(model.parameters, arrays, lengths, positions))

    def _sample(self, description: str, number: int) -> Sample:
        """Lays out a description as a sample that ends with the positions of the image's conditions."""
        model = self._model
        record = prompt_record(description)
        sample = image_prompt_metadata(record, model.prompt_format, model.tokenizer, model.sample_format).load(number)
        model.require_fit(sample)
        return sample

    @functools.cached_property
    def _conditions_program(self) -> Callable[..., jax.Array]:
        """The compiled function `(parameters, arrays, lengths, condition positions [b, 1, q]) -> [b, q, c]`."""
        backbone, projector = self._model.backbone, self._module.pieces[0]

        def conditions(
            parameters: Tree, arrays: Tree, lengths: Int[Array, " b"], positions: Int[Array, "b 1 q"]
        ) -> jax.Array:
            _, hidden = backbone.prefill(parameters, arrays, lengths)  # [b, s, d]
            layer = parameters[self._module.name][projector.name][layer_name(0)]
            inputs = {backbone.name: hidden_states_at(hidden, positions, hidden.shape[1], Axes())}
            return piece_definition(projector).apply(layer, inputs, {}, Axes())[:, 0]

        return jax.jit(conditions)

    @functools.cached_property
    def _sample_program(self) -> Callable[..., jax.Array]:
        """The compiled function `(parameters, conditions [b, q, c], seeds [b], steps, guidance) -> [b, z, z, c]`."""
        pieces = {piece.name: piece for piece in self._module.pieces}

        def sample(parameters: Tree, conditions: jax.Array, seeds: jax.Array, steps: int, guidance: float) -> jax.Array:
            layers = parameters[self._module.name]
            bound = {name: bound_piece(piece, layers[name]) for name, piece in pieces.items()}
            return generate_images(self.config, bound, conditions, jax.vmap(jax.random.key)(seeds), steps, guidance)

        return jax.jit(sample, static_argnums=(3, 4))


def bound_piece(piece: Piece, layers: Tree) -> Any:
    """The Flax module of a piece with its parameters; of a stack, one for each layer."""
    bound = [piece_definition(piece).bind(layers[layer_name(layer)]) for layer in range(piece.layers or 1)]
    return bound if piece.layers else bound[0]
