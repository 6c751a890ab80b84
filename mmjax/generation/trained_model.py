"""A trained model on one device, loaded from a checkpoint or taken from a trainer, and its answers to prompts.

`mmjax.load_model` and `mmjax.generate`, the command `mmjax.generate` and the sample log of a run call it.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig
from configs.common.errors import UserError
from configs.common.short_repr import short_repr
from data.data_config import RowCapacity
from data.datasets.prompts import prompt_metadata, prompt_record
from data.packing.global_batch import build_global_batch, capacity_for_model
from data.packing.rows.packed_rows import pack_samples
from data.records import MEDIA_PARTS, Media
from data.samples.sample import Sample
from data.samples.sample_format import SampleFormat
from data.text.prompt_format import PromptFormat
from data.text.templates.find_template import find_template
from data.text.tokenizer import Tokenizer, tokenizer_from_json
from mmjax.generation.decoding import DecodedTokens, decode_answers
from mmjax.generation.kv_cache import CachedBackbone
from mmjax.generation.sampling import Sampling
from mmjax.models.layers.lora import merge_model_adapters
from mmjax.models.model import model_modules
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import on_first_device
from mmjax.training.checkpoints.discovery import saved_steps
from mmjax.training.checkpoints.restoring import restore_parameters
from mmjax.training.config import TrainConfig
from mmjax.training.run_files import PROMPT_FORMAT_FILE, TOKENIZER_FILE
from mmjax.training.trainer import Trainer
from sharding.trees import Tree

MIN_ROW_TOKENS = 32
"""Rows are as long as powers of two from here on, so that few programs serve prompts of all lengths."""

FEW_IMAGES = 10_000
"""Images of training below which even the quickstart's generator, of small pictures of one shape, draws noise."""

Arrays = dict[str, dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A question to a model.

    Attributes:
        text: Text with placeholders such as `<image>` where media stand; media without any come first.
        media: `image`, `audio`, `video` and fields of other encoders, with the media of each in the order of their
            placeholders.
        seed: Seed of tokens that are sampled.
    """

    text: str
    media: Mapping[str, Sequence[Media]] = dataclasses.field(default_factory=dict)
    seed: int = 0


class Answer(NamedTuple):
    """An answer to a prompt.

    Attributes:
        text: The answer.
        ended: Whether the model or a stop string ended it; else the row was full, or the limit of tokens was reached.
    """

    text: str
    ended: bool

    def until(self, stop: Sequence[str]) -> "Answer":
        """Returns the answer up to the first of the stop strings."""
        positions = [at for text in stop if (at := self.text.find(text)) >= 0]
        return Answer(self.text[: min(positions)].strip(), True) if positions else self


@dataclasses.dataclass(eq=False, kw_only=True)
class TrainedModel:
    """A model with its parameters on one device.

    Parameters and step may be replaced by the parameters of another step of the same run; compiled programs stay.

    Attributes:
        config: The model, without adapters: they are merged into its parameters.
        capacity: Capacity of the rows that it was trained on; a prompt and its answer fit one row.
        tokenizer: Its tokenizer.
        prompt_format: Layout of its training samples.
        parameters: `{module: {piece: {layer: {...}}}}` in compute precision.
        step: Number of steps that it was trained for.
        generator_images: Upper bound of the images that its generators were trained on: the capacity of all rows so
            far; None where they started from published weights.
    """

    config: ModelConfig
    capacity: RowCapacity
    tokenizer: Tokenizer
    prompt_format: PromptFormat
    parameters: Tree
    step: int
    generator_images: int | None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        ids, vocabulary = self.tokenizer.vocabulary_size, self.config.backbone.vocabulary
        if ids > vocabulary:
            raise UserError(
                f"the tokenizer has {ids} ids and BackboneConfig.vocabulary is {vocabulary}: "
                f"{TOKENIZER_FILE} and the configuration belong to different models"
            )

    def answers(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> list[Answer]:
        """Answers several prompts in one program; each answer depends on its own prompt alone.

        Args:
            prompts: At least one prompt.
            sampling: Settings of the choice of tokens; None for the most likely ones.
            max_tokens: Largest number of tokens of an answer; None for as many as a row has room for.
            stop: Texts at the first of which an answer ends; the answer does not contain them.

        Raises:
            UserError: A prompt is empty, cannot be read, or is longer than a row; a stop string is empty.
        """
        if "" in stop:
            raise UserError("a stop string is empty; give a text that ends an answer")
        samples = [self.prompt_sample(prompt, number) for number, prompt in enumerate(prompts)]
        answers = self.continue_samples(samples, [prompt.seed for prompt in prompts], sampling, max_tokens)
        return [answer.until(stop) for answer in answers]

    def continue_samples(
        self,
        samples: Sequence[Sample],
        seeds: Sequence[int] | None = None,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
    ) -> list[Answer]:
        """Decodes the continuation of each of several samples that fit a row; see `answers` for the other arguments."""
        lengths = [len(sample.layout.tokens) for sample in samples]
        max_tokens = min(max_tokens or self.capacity.tokens, self.capacity.tokens)
        next_power_of_two = 1 << (max(lengths) + max_tokens - 2).bit_length()
        row_tokens = min(self.capacity.tokens, max(MIN_ROW_TOKENS, next_power_of_two))
        decoded = self._decode_program(
            self.parameters,
            self.batch_arrays(samples, row_tokens),
            np.asarray(lengths, np.int32),
            np.asarray(seeds or [0] * len(samples), np.int32),
            max_tokens=min(max_tokens, row_tokens),
            sampling=sampling or Sampling(),
        )
        tokens, counts, ended = map(np.asarray, decoded)
        return [
            Answer(self.tokenizer.decode(ids[:count]).strip(), bool(has_ended))
            for ids, count, has_ended in zip(tokens, counts, ended, strict=True)
        ]

    def answer(self, text: str, media: Mapping[str, Sequence[Media]] | None = None) -> Answer:
        """The most likely answer to one prompt; errors as of `answers`."""
        return self.answers([Prompt(text, media or {})])[0]

    def prompt_sample(self, prompt: Prompt, number: int) -> Sample:
        """Lays out a prompt as a sample with this number.

        Raises:
            UserError: The prompt is empty, cannot be read, or is longer than a row.
        """
        record = prompt_record(prompt.text, dict.fromkeys(self._other_fields, ()) | dict(prompt.media))
        sample = prompt_metadata(record, self.prompt_format, self.tokenizer, self.sample_format).load(number)
        self.require_fit(sample)
        return sample

    def require_fit(self, prompt: Sample) -> None:
        """Raises UserError if a prompt is longer than a row."""
        if excess := self.capacity.excess_reason(prompt.sizes):
            raise UserError(
                f"the prompt is too long: {excess.partition(';')[0]} (DataConfig of its training); shorten the prompt"
            )

    def batch_arrays(self, prompts: Sequence[Sample], tokens: int) -> Arrays:
        """Arrays of a batch by module, with each prompt in a row of its own of this many tokens."""
        capacity = capacity_for_model(dataclasses.replace(self.capacity, tokens=tokens), self.sample_format)
        rows = [
            build_global_batch(
                pack_samples([prompt], 1, capacity, self.sample_format), self.config, self.sample_format
            ).arrays
            for prompt in prompts
        ]
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *rows)

    @property
    def drawing_warning(self) -> str:
        """A warning if the generator has trained on too few images to generate more than noise; empty otherwise."""
        if self.generator_images is None or self.generator_images >= FEW_IMAGES:
            return ""
        return (
            f"the generator has trained on at most {self.generator_images:,} images in {self.step} steps; even small "
            f"pictures are noise below some {FEW_IMAGES:,}: train for more steps, or with more DataConfig.images"
        )

    @functools.cached_property
    def modules(self) -> tuple[Module, ...]:
        """The modules in topological order."""
        return model_modules(self.config)

    @functools.cached_property
    def backbone(self) -> CachedBackbone:
        """The backbone with its KV cache."""
        return CachedBackbone(self.config, self.modules)

    @functools.cached_property
    def sample_format(self) -> SampleFormat:
        """The format that the model's modules need samples in."""
        return SampleFormat.for_model(self.config, self.capacity.lengths)

    @property
    def _other_fields(self) -> list[str]:
        """Fields of encoders that read none of `MEDIA_PARTS`: placeholders of prompts."""
        return [
            field
            for field in self.sample_format.encoder_formats
            if field not in {part.field for part in MEDIA_PARTS.values()}
        ]

    @functools.cached_property
    def _decode_program(self) -> Callable[..., DecodedTokens]:
        """The compiled `decode_answers`, which allows text tokens and the end token, but no other special tokens."""
        end_token = find_template(self.prompt_format.template, self.tokenizer).end_token(self.tokenizer)
        ids = np.arange(self.config.backbone.vocabulary)
        special = self.tokenizer.special_tokens
        forbidden = special.ids - {special.unknown}
        is_text = (ids < self.tokenizer.vocabulary_size) & ~np.isin(ids, sorted(forbidden))
        decode = functools.partial(
            decode_answers, self.backbone, allowed_tokens=jnp.asarray((ids == end_token) | is_text), end_token=end_token
        )
        return jax.jit(decode, static_argnames=("max_tokens", "sampling"))


def load_trained_model(workdir: pathlib.Path, config: TrainConfig, step: int | None = None) -> TrainedModel:
    """Loads the newest complete checkpoint of a run, or a given step's, onto this process's first device.

    Args:
        workdir: Working directory of `mmjax.train`.
        config: Configuration of the run.
        step: Take this step's checkpoint and no other.

    Raises:
        UserError: The directory has no such checkpoint or no tokenizer, or they belong to another model.
    """
    directory = workdir / "checkpoints"
    if not saved_steps(directory):
        raise UserError(f"{directory} holds no checkpoint; train first: python -m mmjax.train --workdir={workdir}")
    masters, saved_step = restore_parameters(directory, config.model, jax.local_devices()[0], step)
    return _merged_model(
        config,
        masters,
        tokenizer_from_json(_read_file(workdir, TOKENIZER_FILE)),
        PromptFormat.from_json(_read_file(workdir, PROMPT_FORMAT_FILE)),
        saved_step,
    )


def model_of_trainer(trainer: Trainer) -> TrainedModel:
    """Copies the model that a trainer has at hand to this process's first device.

    Raises:
        UserError: Other processes hold some of its parameters.
    """
    return _merged_model(
        trainer.config,
        on_first_device(trainer.parameters()),
        trainer.tokenizer,
        trainer.prompt_format,
        trainer.steps_done,
    )


def _merged_model(
    config: TrainConfig, masters: Tree, tokenizer: Tokenizer, prompt_format: PromptFormat, step: int
) -> TrainedModel:
    """Makes the model of master weights: merges adapters, then casts to compute precision."""
    dtype = jnp.dtype(config.model.dtype)
    merged = merge_model_adapters(masters, model_modules(config.model), config.model.lora)
    return TrainedModel(
        config=dataclasses.replace(config.model, lora=()),
        capacity=config.data.capacity,
        tokenizer=tokenizer,
        prompt_format=prompt_format,
        parameters=jax.tree.map(lambda leaf: leaf.astype(dtype), merged),
        step=step,
        generator_images=_generator_images(config, step),
    )


def _generator_images(config: TrainConfig, step: int) -> int | None:
    published = {part for part, _ in config.pretrained_weights}
    if not published.isdisjoint({"model", *(generator.name for generator in config.model.generators)}):
        return None
    return step * config.data.rows * config.data.images


def _read_file(workdir: pathlib.Path, name: str) -> str:
    if not (workdir / name).is_file():
        raise UserError(
            f"there is no {workdir / name}, which mmjax.train writes next to its checkpoints; copy it there"
        )
    return (workdir / name).read_text()
