"""Pictures of descriptions by a trained model."""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from configs.errors import UserError
from data.datasets.prompts import image_prompt_metadata, prompt_record
from data.samples.sample import Sample
from mmjax.generation.trained_model import TrainedModel
from mmjax.models.modalities.backbone import hidden_states_at
from mmjax.models.modalities.generator import generate_images
from mmjax.models.structure.parameters import layer_name, piece_definition
from sharding.axes import Axes
from sharding.trees import Tree


class ImageGenerator:
    """Draws by the generator of a model.

    Args:
        model: A model with one generator.

    Attributes:
        config: The generator's.

    Raises:
        UserError: It has none.
    """

    def __init__(self, model: TrainedModel) -> None:
        if not model.config.generators:
            raise UserError("the model has no generator, so it draws nothing; leave --output out to ask it")
        self._model, self.config = model, model.config.generators[0]
        (self._module,) = (module for module in model.modules if module.name == self.config.name)

    def generate(
        self, descriptions: Sequence[str], seeds: Sequence[int], steps: int = 50, guidance: float = 1.0
    ) -> np.ndarray:
        """Pictures of descriptions by DDIM, all in one program.

        Args:
            descriptions: One a picture.
            seeds: One a picture; keys its noise, so that a picture depends on its own description and seed only.
            steps: DDIM steps, at least 1.
            guidance: Scale of classifier-free guidance (arXiv 2207.12598); 1 for none. Above 1 it wants a model that
                was trained with GeneratorConfig.condition_dropout.

        Returns:
            float32[pictures, z, z, c] in [-1, 1].

        Raises:
            UserError: A description has no word, or is longer than the row.
        """
        different = list(dict.fromkeys(descriptions))
        conditions = self._conditions(different)[[different.index(of) for of in descriptions]]
        keys = np.asarray(seeds, np.int32)
        return np.asarray(self._sample(self._model.parameters, conditions, keys, steps, guidance))

    def _conditions(self, descriptions: Sequence[str]) -> Float[np.ndarray, "b q c"]:
        """What the U-Net takes for each description."""
        model = self._model
        prompts = [self._outlined(text, number) for number, text in enumerate(descriptions)]
        arrays = model.batch_arrays(prompts, model.capacity.tokens)
        lengths = np.asarray([len(prompt.layout.tokens) for prompt in prompts], np.int32)
        places = np.stack([prompt.condition_positions for prompt in prompts])
        return np.asarray(self._project(model.parameters, arrays, lengths, places))

    def _outlined(self, text: str, number: int) -> Sample:
        model = self._model
        sample = image_prompt_metadata(prompt_record(text), model.prompting, model.tokenizer, model.form).load(number)
        model.require_fit(sample)
        return sample

    @functools.cached_property
    def _project(self):
        """The program `(parameters, arrays of rows, lengths, places [b, 1, q]) -> [b, q, c]`."""
        backbone, piece = self._model.backbone, self._module.pieces[0]

        def project(
            parameters: Tree, arrays: Tree, lengths: Int[Array, " b"], places: Int[Array, "b 1 q"]
        ) -> jax.Array:
            _, hidden = backbone.prefill(parameters, arrays, lengths)
            own = parameters[self._module.name][piece.name][layer_name(0)]
            inputs = {backbone.name: hidden_states_at(hidden, places)}
            return piece_definition(piece).apply(own, inputs, {}, Axes())[:, 0]

        return jax.jit(project)

    @functools.cached_property
    def _sample(self):
        """The program `(parameters, conditions [b, q, c], seeds [b], steps, guidance) -> [b, z, z, c]`."""
        pieces = {piece.name: piece for piece in self._module.pieces}

        def draw(parameters: Tree, conditions: jax.Array, seeds: jax.Array, steps: int, guidance: float) -> jax.Array:
            own = parameters[self._module.name]
            parts = {name: piece_definition(piece).bind(own[name][layer_name(0)]) for name, piece in pieces.items()}
            autoencoder = parts["vae"].autoencoder if "vae" in parts else None
            keys = jax.vmap(jax.random.key)(seeds)
            return generate_images(self.config, parts["unet"].unet, autoencoder, conditions, keys, steps, guidance)

        return jax.jit(draw, static_argnums=(3, 4))
