"""A trained model, to be asked."""

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
from data.data_config import RowCapacity
from data.datasets.prompts import prompt_metadata, prompt_record
from data.packing.global_batch import build_global_batch, capacity_for_model
from data.packing.packed_rows import pack_samples
from data.records import Media
from data.samples.sample import Sample
from data.samples.sample_format import SampleFormat
from data.text.chat_template import CHAT_TEMPLATES
from data.text.prompt_format import PromptFormat
from data.text.tokenizer import Tokenizer, tokenizer_from_json
from mmjax.generation.decoding import decode_answers
from mmjax.generation.kv_cache import CachedBackbone
from mmjax.generation.sampling import Sampling
from mmjax.models.layers.lora import merge_model_adapters
from mmjax.models.model import model_modules
from mmjax.models.structure.module import Module
from mmjax.training.checkpoints.manager import CheckpointManager, saved_steps
from mmjax.training.config import TrainConfig
from sharding.trees import Tree

VOCABULARY = "vocabulary.json"
PROMPTING = "prompting.json"
LEAST_ROW = 32  # tokens; rows are as long as powers of two, so that few programs serve prompts of all lengths

Arrays = Mapping[str, Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Prompt:
    """What is asked.

    Attributes:
        text: With `<image>` and `<audio>` where the pictures and clips stand, or without for all in front.
        pictures, clips: In the order of the marks.
        seed: Keys what is drawn at random.
    """

    text: str
    pictures: tuple[Media, ...] = ()
    clips: tuple[Media, ...] = ()
    seed: int = 0


class Answer(NamedTuple):
    """An answer, and whether the model ended it; else the row or the number of tokens asked for was full before."""

    text: str
    ended: bool


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model and its parameters on one device.

    Attributes:
        config: The model, without adapters: they are merged into its parameters.
        capacity: Of the rows it was trained on; a prompt and its answer fit one row.
        tokenizer: Its vocabulary.
        prompting: How its samples were laid out.
        parameters: `{module: {piece: {layer: {...}}}}` in the precision of the compute.
        step: Steps it was trained for.
    """

    config: ModelConfig
    capacity: RowCapacity
    tokenizer: Tokenizer
    prompting: PromptFormat
    parameters: Tree
    step: int

    def __post_init__(self) -> None:
        rows = self.config.backbone.vocabulary
        if self.tokenizer.vocabulary_size > rows:
            raise UserError(
                f"the tokenizer has {self.tokenizer.vocabulary_size} ids and BackboneConfig.vocabulary is {rows}: "
                f"{VOCABULARY} and the configuration are of different models"
            )

    def answers(
        self, prompts: Sequence[Prompt], sampling: Sampling | None = None, max_tokens: int | None = None
    ) -> list[Answer]:
        """Answers each prompt by itself, all in one program.

        Args:
            prompts: At least one.
            sampling: How tokens are chosen; None for the likeliest.
            most: Tokens of an answer at most; None for as many as a row has room for.

        Raises:
            UserError: A prompt asks nothing, cannot be read, or is longer than a row.
        """
        samples = [self.prompt_sample(prompt, number) for number, prompt in enumerate(prompts)]
        lengths = [len(sample.layout.tokens) for sample in samples]
        max_tokens = min(max_tokens or self.capacity.tokens, self.capacity.tokens)
        row = min(self.capacity.tokens, max(LEAST_ROW, 1 << (max(lengths) + max_tokens - 2).bit_length()))
        written = self._write(
            self.parameters,
            self.batch_arrays(samples, row),
            np.asarray(lengths, np.int32),
            np.asarray([prompt.seed for prompt in prompts], np.int32),
            most=min(max_tokens, row),
            sampling=sampling or Sampling(),
        )
        tokens, counts, ended = map(np.asarray, written)
        return [
            Answer(self.tokenizer.decode(ids[:count]).strip(), bool(end))
            for ids, count, end in zip(tokens, counts, ended, strict=True)
        ]

    def answer(self, text: str, pictures: Sequence[Media] = (), clips: Sequence[Media] = ()) -> Answer:
        """The likeliest answer to one prompt; errors as of `answers`."""
        return self.answers([Prompt(text, tuple(pictures), tuple(clips))])[0]

    def prompt_sample(self, prompt: Prompt, number: int) -> Sample:
        """A prompt as a sample.

        Raises:
            UserError: It asks nothing, cannot be read, or is longer than a row.
        """
        record = prompt_record(prompt.text, prompt.pictures, prompt.clips)
        sample = prompt_metadata(record, self.prompting, self.tokenizer, self.form).load(number)
        self.require_fit(sample)
        return sample

    def require_fit(self, prompt: Sample) -> None:
        """Raises UserError if a prompt is longer than a row."""
        if excess := self.capacity.excess_reason(prompt.sizes):
            raise UserError(
                f"the prompt is too long: {excess.partition(';')[0]} (DataConfig of its training); shorten the prompt"
            )

    def batch_arrays(self, prompts: Sequence[Sample], tokens: int) -> Arrays:
        """The prompts, each in a row of its own of so many tokens."""
        capacity = capacity_for_model(dataclasses.replace(self.capacity, tokens=tokens), self.form)
        rows = [
            build_global_batch(pack_samples([prompt], 1, capacity, self.form), self.config, self.form).arrays
            for prompt in prompts
        ]
        return jax.tree.map(lambda *each: np.concatenate(each), *rows)

    @functools.cached_property
    def modules(self) -> tuple[Module, ...]:
        """In topological order."""
        return model_modules(self.config)

    @functools.cached_property
    def backbone(self) -> CachedBackbone:
        """The backbone, token by token."""
        return CachedBackbone(self.config, self.modules)

    @functools.cached_property
    def form(self) -> SampleFormat:
        """What the model asks of a prompt."""
        return SampleFormat.for_model(self.config, self.capacity.patches, self.capacity.frames)

    @functools.cached_property
    def _write(self):
        """The program of `answers`; only texts and the end can be said: other ids stand for what is no text."""
        end = CHAT_TEMPLATES[self.prompting.template].end_token(self.tokenizer)
        ids = np.arange(self.config.backbone.vocabulary)
        special = self.tokenizer.special_tokens
        silent = special.ids - {special.unknown}
        sayable = (ids == end) | ((ids < self.tokenizer.vocabulary_size) & ~np.isin(ids, sorted(silent)))
        write = functools.partial(decode_answers, self.backbone, allowed_tokens=jnp.asarray(sayable), end_token=end)
        return jax.jit(write, static_argnames=("most", "sampling"))


def load_trained_model(workdir: pathlib.Path, config: TrainConfig) -> TrainedModel:
    """The model of the newest whole checkpoint of a workdir, on this process's first device.

    Args:
        workdir: Of `mmjax.train`.
        config: What it was trained with.

    Raises:
        UserError: The workdir lacks checkpoints or the vocabulary, or they are another model's.
    """
    directory = workdir / "checkpoints"
    if not saved_steps(directory):
        raise UserError(f"{directory} holds no checkpoint; train first: python -m mmjax.train --workdir={workdir}")
    tokenizer = tokenizer_from_json(_beside(workdir, VOCABULARY))
    prompting = PromptFormat.from_json(_beside(workdir, PROMPTING))
    masters, step = CheckpointManager(directory, config.model).restore_parameters(jax.local_devices()[0])
    dtype = jnp.dtype(config.model.dtype)
    merged = merge_model_adapters(masters, model_modules(config.model), config.model.lora)
    weights = jax.tree.map(lambda leaf: leaf.astype(dtype), merged)
    alone = dataclasses.replace(config.model, lora=())
    return TrainedModel(alone, config.data.capacity, tokenizer, prompting, weights, step)


def _beside(workdir: pathlib.Path, name: str) -> str:
    if not (workdir / name).is_file():
        raise UserError(f"there is no {workdir / name}, which mmjax.train writes beside its checkpoints; copy it there")
    return (workdir / name).read_text()
