"""Prompts cut from held-out samples: a question up to its answer, a description up to its target image.

`sample_log.py` answers them at every evaluation of a run.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from data.data_config import RowCapacity
from data.datasets.dataset import Dataset, RandomAccessSamples
from data.errors import BadSampleError
from data.samples.image_format import PatchFormat, first_frame
from data.samples.sample import Sample
from data.samples.sample_format import SampleFormat
from data.samples.token_layout import TokenLayout
from data.text.tokenizer import Tokenizer

_TRIES = 8  # samples that are tried for every prompt that is wanted


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HeldOutPrompt:
    """A prompt, and the answer that the data set has for it.

    Attributes:
        sample: The sample, cut where the model continues.
        text: Its text, without placeholders of media.
        answer: The answer of the data set; empty for an image.
        images: uint8[height, width, 3], the images that the encoder reads.
    """

    sample: Sample
    text: str
    answer: str = ""
    images: Sequence[np.ndarray] = ()


def held_out_questions(
    dataset: Dataset, sample_format: SampleFormat, capacity: RowCapacity, count: int
) -> list[HeldOutPrompt]:
    """Questions of the kinds that are scored, the same at every call, spread over the data set.

    Returns:
        At most `count`; fewer where samples have no text answer, cannot be read or do not fit a row.
    """
    kinds = dataset.samples_by_kind(sample_format)
    scored = [kinds[kind] for kind in dataset.evaluated_kinds if kind in kinds]
    prompts = []
    for number, sample in enumerate(_spread(scored, capacity, count)):
        if (prompt := _question(sample, number, dataset.tokenizer, sample_format)) is not None:
            prompts.append(prompt)
        if len(prompts) == count:
            break
    return prompts


def held_out_descriptions(
    dataset: Dataset, sample_format: SampleFormat, capacity: RowCapacity, count: int
) -> list[HeldOutPrompt]:
    """Descriptions with the image to generate, the same at every call; otherwise as `held_out_questions`."""
    if sample_format.target_images is None:
        return []
    kinds = [samples for samples in dataset.samples_by_kind(sample_format).values() if _has_target_image(samples)]
    prompts = []
    for sample in _spread(kinds, capacity, count):
        if len(sample.target_images):
            prompts.append(_description(sample, dataset.tokenizer, sample_format))
        if len(prompts) == count:
            break
    return prompts


def _spread(kinds: Sequence[RandomAccessSamples], capacity: RowCapacity, count: int) -> Iterator[Sample]:
    """Yields samples of all kinds in turn, spread evenly over each kind; passes over samples that cannot be used."""
    if not kinds or not count:
        return
    tries = _TRIES * count
    for number in range(tries):
        samples = kinds[number % len(kinds)]
        # Steps of the golden ratio are spread evenly, however many of them are taken.
        index = int(math.modf(number * (math.sqrt(5) - 1) / 2)[0] * len(samples))
        try:
            sample = samples[index].load(index)
        except BadSampleError:
            continue  # training lists it
        if not capacity.excess_reason(sample.sizes):
            yield sample


def _has_target_image(samples: RandomAccessSamples) -> bool:
    try:
        return bool(samples[0].target_images)
    except BadSampleError:
        return False


def _question(sample: Sample, number: int, tokenizer: Tokenizer, sample_format: SampleFormat) -> HeldOutPrompt | None:
    """Cuts a sample before its first answer, or before the answer of one branch; None if it has no answer in text."""
    layout = sample.layout
    branches = np.unique(layout.branches[layout.target_mask > 0])
    if not len(branches):
        return None
    branch = branches[number % len(branches)]
    column = np.flatnonzero((layout.branches == 0) | (layout.branches == branch))
    wanted = layout.target_mask[column] > 0
    first = int(np.argmax(wanted & (layout.branches[column] == branch)))
    ends = np.flatnonzero(~wanted[first:])
    last = first + int(ends[0]) if len(ends) else len(column)
    return HeldOutPrompt(
        sample=_cut(sample, column[: first + 1]),
        text=_text(layout.tokens[column[: first + 1]], tokenizer),
        answer=_text(layout.targets[column[first:last]], tokenizer),
        images=_encoder_images(sample, sample_format),
    )


def _description(sample: Sample, tokenizer: Tokenizer, sample_format: SampleFormat) -> HeldOutPrompt:
    """Cuts a sample behind the positions that condition its first target image."""
    last = int(sample.condition_positions[0].max())
    cut = _cut(sample, np.flatnonzero(sample.layout.branches[: last + 1] == 0), images=1)
    return HeldOutPrompt(
        sample=cut, text=_text(cut.layout.tokens, tokenizer), images=_encoder_images(sample, sample_format)
    )


def _cut(sample: Sample, column: np.ndarray, images: int = 0) -> Sample:
    """Returns a sample with some of its tokens as the trunk, none of them a target, and its first target images."""
    layout = sample.layout
    zeros = np.zeros(len(column), np.int32)
    return dataclasses.replace(
        sample,
        layout=TokenLayout(
            tokens=layout.tokens[column],
            branches=zeros,
            positions=layout.positions[column],
            targets=zeros,
            target_mask=zeros,
            blocks=layout.blocks[column],
            encoder_indices={field: indices[column] for field, indices in layout.encoder_indices.items()},
        ),
        target_images=sample.target_images[:images],
        condition_positions=sample.condition_positions[:images],
    )


def _text(tokens: np.ndarray, tokenizer: Tokenizer) -> str:
    """Decodes tokens to text, without special tokens."""
    special = tokenizer.special_tokens
    shown = ~np.isin(tokens, sorted(special.ids - {special.unknown}))
    return tokenizer.decode(tokens[shown]).strip()


def _encoder_images(sample: Sample, sample_format: SampleFormat) -> list[np.ndarray]:
    """Images that the vision encoder reads, uint8[height, width, 3]; of a video the first frame of each patch."""
    patch_format = sample_format.encoder_of(PatchFormat)
    if patch_format is None:
        return []
    inputs = sample.encoder_inputs[patch_format.field]
    return [first_frame(inputs, item, patch_format) for item in range(1, int(inputs.item_ids.max(initial=0)) + 1)]
