"""A trained model asked on one device, whatever plan trained it: answers by greedy decoding, pictures by DDIM.

The whole prompt is computed again for every word, padded to a full row, so that one compiled program serves all.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig
from configs.errors import UserError
from data.batch import batch_capacity, global_batch
from data.formats import SampleFormat
from data.packing import Capacity, pack_samples
from data.questions import description_prompt, question_prompt, text_prompt
from data.samples import Sample
from data.tokenizer import EOS, SPECIAL_TOKENS, WordTokenizer, split_words
from data.tokenizers.stored import tokenizer_from_json
from mmjax.models.generator import draw_images
from mmjax.models.module import Module
from mmjax.models.parameters import define, layer_name
from mmjax.models.pieces import model_modules
from mmjax.models.whole import run_model, with_borrowed
from mmjax.training.checkpoint import Checkpoints, saved_steps
from mmjax.training.config import TrainConfig
from sharding.axes import Axes
from sharding.trees import Tree

VOCABULARY = "vocabulary.json"

Arrays = Mapping[str, Mapping[str, np.ndarray | jax.Array]]


class Answer(NamedTuple):
    """The words of an answer, and whether the model ended it; it did not where the row was full before."""

    text: str
    ended: bool


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model and its parameters, to be asked.

    Attributes:
        config: The model; one encoder, one generator.
        capacity: Of the rows it was trained on; a prompt fits one row.
        tokenizer: Its vocabulary.
        parameters: `{module: {piece: {layer: {...}}}}` in the precision of the compute, on one device.
        step: Steps it was trained for.
    """

    config: ModelConfig
    capacity: Capacity
    tokenizer: WordTokenizer
    parameters: Tree
    step: int

    def __post_init__(self) -> None:
        rows = self.config.backbone.vocabulary
        if self.tokenizer.size > rows:
            raise UserError(
                f"the vocabulary has {self.tokenizer.size} words and BackboneConfig.vocabulary is {rows}: "
                f"{VOCABULARY} and the configuration are of different models"
            )

    # ------------------------------------------------------------------ answering

    def answer(self, question: str, image: np.ndarray | None = None) -> Answer:
        """Greedy decoding: the likeliest word after the words so far, until the model ends or the row is full.

        Args:
            question: Words outside the vocabulary are read as unknown.
            image: uint8[height, width, 3], or None for a question without a picture.

        Raises:
            UserError: The question has no word, or is longer than the row.
        """
        _require_words(question)
        said: list[int] = []
        self._require_fit(self._asked(question, image, said))
        while not self.capacity.excess((prompt := self._asked(question, image, said)).sizes):
            word = int(self._next_word(self.parameters, self._looking_at_the_end(self._arrays([prompt]), prompt)))
            if word == EOS:
                return Answer(self.tokenizer.decode(said), True)
            said.append(word)
        return Answer(self.tokenizer.decode(said), False)

    def _asked(self, question: str, image: np.ndarray | None, said: Sequence[int]) -> Sample:
        if image is None:
            return text_prompt(question, self.tokenizer, self._form, said).load(0)
        return question_prompt(image, question, self.tokenizer, self._form, said).load(0)

    def _looking_at_the_end(self, arrays: Arrays, prompt: Sample) -> Arrays:
        """The head hands out hidden states where an image is conditioned on them; an answer wants the last token's."""
        backbone, name = self._modules[-2].name, f"{self._modules[-1].name}_conditions"
        last = np.full_like(arrays[backbone][name], len(prompt.layout.tokens) - 1)
        return {**arrays, backbone: {**arrays[backbone], name: last}}

    @functools.cached_property
    def _next_word(self):
        """The program `(parameters, arrays of one row) -> id`.

        Only words and the end can be said: the other ids are for prompts, or beyond the vocabulary.
        """
        backbone = self._modules[-2]
        piece = backbone.pieces[-1]
        ids = np.arange(self.config.backbone.vocabulary)
        sayable = (ids == EOS) | ((ids >= len(SPECIAL_TOKENS)) & (ids < self.tokenizer.size))

        def next_word(parameters: Tree, arrays: Arrays) -> jax.Array:
            own = parameters[backbone.name]
            head = define(piece).module(with_borrowed(own, piece, own[piece.name][layer_name(0)]))
            logits = head.logits(self._hidden(parameters, arrays)[:, 0])
            return jnp.argmax(jnp.where(sayable, logits[0, 0], -jnp.inf))

        return jax.jit(next_word)

    # ------------------------------------------------------------------ drawing

    def draw(
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
        return np.asarray(self._sample(self.parameters, conditions, keys, steps, guidance))

    def _conditions(self, descriptions: Sequence[str]) -> np.ndarray:
        """What the U-Net takes for each description, `[descriptions, q, c]`."""
        prompts = []
        for number, text in enumerate(descriptions):
            _require_words(text)
            prompts.append(description_prompt(text, self.tokenizer, self._form).load(number))
            self._require_fit(prompts[-1])
        arrays = self._arrays(prompts)
        generator = arrays[self._modules[-1].name]
        conditions = np.asarray(self._project(self.parameters, arrays))
        real = generator["weights"] > 0
        return conditions[real][np.argsort(generator["samples"][real])]

    @functools.cached_property
    def _project(self):
        """The program `(parameters, arrays of rows) -> [r, g, q, c]`."""
        backbone, generator = self._modules[-2:]
        piece = generator.pieces[0]

        def project(parameters: Tree, arrays: Arrays) -> jax.Array:
            own = parameters[generator.name][piece.name][layer_name(0)]
            return define(piece).call(own, {backbone.name: self._hidden(parameters, arrays)}, {}, Axes())

        return jax.jit(project)

    @functools.cached_property
    def _sample(self):
        """The program `(parameters, conditions [b, q, c], seeds [b], steps, guidance) -> [b, z, z, c]`."""
        config, generator = self.config.generators[0], self._modules[-1]
        pieces = {piece.name: piece for piece in generator.pieces}

        def draw(parameters: Tree, conditions: jax.Array, seeds: jax.Array, steps: int, guidance: float) -> jax.Array:
            own = parameters[generator.name]
            parts = {name: define(piece).module(own[name][layer_name(0)]) for name, piece in pieces.items()}
            autoencoder = parts["vae"].autoencoder if "vae" in parts else None
            keys = jax.vmap(jax.random.key)(seeds)
            return draw_images(config, parts["unet"].unet, autoencoder, conditions, keys, steps, guidance)

        return jax.jit(draw, static_argnums=(3, 4))

    # ------------------------------------------------------------------ what both need

    @functools.cached_property
    def _modules(self) -> tuple[Module, ...]:
        """The encoder, the backbone, the generator."""
        return model_modules(self.config)

    @functools.cached_property
    def _form(self) -> SampleFormat:
        return SampleFormat.of(self.config, self.capacity.patches, self.capacity.frames)

    def _hidden(self, parameters: Tree, arrays: Arrays) -> jax.Array:
        """The backbone's last hidden states at the condition positions, `[r, g, q, d]`."""
        backbone, generator = self._modules[-2:]
        return run_model(self._modules[:-1], parameters, arrays)[backbone.name].outputs[generator.name]

    def _arrays(self, prompts: Sequence[Sample]) -> Arrays:
        """The prompts packed in as many rows."""
        packed = pack_samples(prompts, len(prompts), batch_capacity(self.capacity, self._form), self._form)
        return global_batch(packed, self.config, self._form).arrays

    def _require_fit(self, prompt: Sample) -> None:
        if self.capacity.excess(prompt.sizes):
            raise UserError(
                f"the prompt takes {prompt.sizes['tokens']} tokens, its picture included, and a row of this model "
                f"holds {self.capacity.tokens} (DataConfig.tokens of its training); shorten the prompt"
            )


def _require_words(prompt: str) -> None:
    if not split_words(prompt):
        raise UserError(f"the prompt {prompt!r} has no word; write a question or a description")


def load_trained(workdir: pathlib.Path, config: TrainConfig) -> TrainedModel:
    """The model of the newest whole checkpoint of a workdir, on this process's first device.

    Args:
        workdir: Of `mmjax.train`.
        config: What it was trained with.

    Raises:
        UserError: The workdir lacks checkpoints or the vocabulary, or they are another model's.
    """
    directory, vocabulary = workdir / "checkpoints", workdir / VOCABULARY
    if not saved_steps(directory):
        raise UserError(f"{directory} holds no checkpoint; train first: python -m mmjax.train --workdir={workdir}")
    if not vocabulary.is_file():
        raise UserError(f"there is no {vocabulary}, which mmjax.train writes beside its checkpoints; copy it there")
    tokenizer = tokenizer_from_json(vocabulary.read_text())
    if not isinstance(tokenizer, WordTokenizer):
        raise UserError(
            f"{vocabulary} is a {type(tokenizer).__name__}; so far only models of the word tokenizer, such as the "
            "quickstart's, answer and draw"
        )
    masters, step = Checkpoints(directory, config.model).restore_parameters(jax.local_devices()[0])
    dtype = jnp.dtype(config.model.dtype)
    weights = jax.tree.map(lambda leaf: leaf.astype(dtype), masters)
    return TrainedModel(config.model, config.data.capacity, tokenizer, weights, step)
