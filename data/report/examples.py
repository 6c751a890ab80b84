"""Typical and extreme samples of a data set, decoded small enough to be shown: text, pictures, spectrograms."""

import dataclasses
import io
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float32, Int, UInt8
from PIL import Image

from data.datasets.dataset import SampleIndex
from data.media.patches import to_uint8
from data.packing.refusals import Refusal, call_or_refuse
from data.report.dataset_statistics import DatasetStatistics
from data.samples.encoder_format import EncoderFormat, EncoderInputs
from data.samples.image_format import PatchFormat, first_frame
from data.samples.sample import Sample
from data.samples.token_layout import TokenLayout
from data.text.tokenizer import Tokenizer

MAX_KINDS = 8
"""Kinds of which samples are shown, those with the most samples first."""

_MAX_MEDIA = 4  # of each sort in a sample
_MAX_CHARACTERS = 400  # of the text of a sample
_PICTURE_SIDE, _SMALLEST_SIDE = 144, 72
_SPECTROGRAM = (288, 72)


@dataclasses.dataclass(frozen=True)
class TextRun:
    """Consecutive text of a sample that is all learned, or all given.

    Attributes:
        branch: 0 for the trunk, or the number of the branch.
        text: The text.
        is_target: Whether predicting it counts in the loss.
    """

    branch: int
    text: str
    is_target: bool


@dataclasses.dataclass(frozen=True)
class MediaExamples:
    """Pictures of the media of one sort in a sample, as encoded files.

    Attributes:
        title: What they are, such as `input of vision`.
        files: PNG or JPEG files.
        left_out: Number of media of this sort that the sample has besides.
    """

    title: str
    files: tuple[bytes, ...]
    left_out: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleExample:
    """A sample to show.

    Attributes:
        kind: Its kind.
        role: Why it is shown: `typical`, `fewest tokens` or `most tokens`.
        sample_id: Its global id.
        sizes: What it takes of a row, by capacity; what it does not take is left out.
        text: Its text, shortened.
        media: Its media.
        problem: Why it cannot be decoded; else empty.
    """

    kind: str
    role: str
    sample_id: int
    sizes: Mapping[str, int]
    text: tuple[TextRun, ...] = ()
    media: tuple[MediaExamples, ...] = ()
    problem: str = ""


def decode_examples(sample_index: SampleIndex, statistics: DatasetStatistics) -> tuple[SampleExample, ...]:
    """Of every kind the sample of median length, the shortest and the longest of those that were drawn."""
    kinds = sorted(
        (kind for kind, drawn in statistics.kinds.items() if drawn), key=lambda kind: -statistics.kinds[kind]
    )
    kind_of = np.array([sample_index.kind_of(sample_id) for sample_id in statistics.sample_ids])
    tokens = statistics.columns("tokens")[:, 0]
    return tuple(
        _decode(sample_index, int(statistics.sample_ids[number]), role)
        for kind in kinds[:MAX_KINDS]
        for role, number in _choices(tokens, np.flatnonzero(kind_of == kind)).items()
    )


def _choices(tokens: Int[np.ndarray, " n"], numbers: Int[np.ndarray, " m"]) -> dict[str, int]:
    """Different samples by role, of those with these numbers; fewer where all have the same length."""
    if not len(numbers):
        return {}
    ordered = numbers[np.argsort(tokens[numbers], kind="stable")]
    choices = {"typical": int(ordered[len(ordered) // 2])}
    if tokens[ordered[0]] < tokens[ordered[-1]]:
        choices |= {"fewest tokens": int(ordered[0]), "most tokens": int(ordered[-1])}
    taken: set[int] = set()
    return {role: number for role, number in choices.items() if not (number in taken or taken.add(number))}


def _decode(sample_index: SampleIndex, sample_id: int, role: str) -> SampleExample:
    kind = sample_index.kind_of(sample_id)
    sample = call_or_refuse(sample_index.load, sample_index, sample_id)
    if isinstance(sample, Refusal):
        return SampleExample(kind=kind, role=role, sample_id=sample_id, sizes={}, problem=sample.reason)
    return SampleExample(
        kind=kind,
        role=role,
        sample_id=sample_id,
        sizes={name: size for name, size in sample.sizes.items() if size},
        text=tuple(shortened(text_runs(sample.layout, sample_index.dataset.tokenizer))),
        media=tuple(_media(sample, sample_index.sample_format.encoder_formats)),
    )


def text_runs(layout: TokenLayout, tokenizer: Tokenizer) -> Iterator[TextRun]:
    """The text of a sample without special tokens, divided where what is learned begins or ends."""
    branches, follows = layout.branches, np.append(False, layout.branches[1:] == layout.branches[:-1])
    is_target = np.append(False, layout.target_mask[:-1] > 0) & follows
    changes = np.flatnonzero((np.diff(branches) != 0) | (np.diff(is_target) != 0)) + 1
    for run in np.split(np.arange(len(branches)), changes):
        text = tokenizer.decode(layout.tokens[run])
        if text.strip():
            yield TextRun(int(branches[run[0]]), text.strip(), bool(is_target[run[0]]))


def shortened(runs: Iterator[TextRun]) -> Iterator[TextRun]:
    """The runs up to a number of characters, the last one with an ellipsis if there is more."""
    left = _MAX_CHARACTERS
    for run in runs:
        if len(run.text) > left:
            yield dataclasses.replace(run, text=run.text[:left].rstrip() + " …")
            return
        yield run
        left -= len(run.text)


def _media(sample: Sample, encoder_formats: Mapping[str, EncoderFormat]) -> Iterator[MediaExamples]:
    for field, encoder_format in encoder_formats.items():
        inputs = sample.encoder_inputs[field]
        items = range(1, int(inputs.item_ids.max(initial=0)) + 1)
        if items:
            files = (_encode(_picture(inputs, item, encoder_format)) for item in items[:_MAX_MEDIA])
            yield MediaExamples(f"input of {encoder_format.module}", tuple(files), max(0, len(items) - _MAX_MEDIA))
    if len(sample.target_images):
        files = tuple(_encode(_reduced(to_uint8(image))) for image in sample.target_images[:_MAX_MEDIA])
        yield MediaExamples("to generate", files, max(0, len(sample.target_images) - _MAX_MEDIA))


def _picture(inputs: EncoderInputs, item: int, encoder_format: EncoderFormat) -> Image.Image:
    """An image as its encoder reads it, or the values of another medium over time as a spectrogram."""
    if isinstance(encoder_format, PatchFormat):
        return _reduced(first_frame(inputs, item, encoder_format))
    own = np.repeat(inputs.item_ids == item, encoder_format.values_per_position)
    return Image.fromarray(_grey_levels(inputs.values[own].T[::-1])).resize(_SPECTROGRAM)


def _reduced(image: UInt8[np.ndarray, "h w c"]) -> Image.Image:
    """The picture in the size of a thumbnail; a tiny one with larger pixels."""
    picture = Image.fromarray(image)
    picture.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE))
    factor = _SMALLEST_SIDE // max(picture.size)
    return (
        picture.resize((factor * picture.width, factor * picture.height), Image.Resampling.NEAREST)
        if factor > 1
        else picture
    )


def _grey_levels(values: Float32[np.ndarray, "bands frames"]) -> UInt8[np.ndarray, "bands frames"]:
    low, high = float(values.min()), float(values.max())
    return np.rint(255 * (values - low) / max(high - low, 1e-6)).astype(np.uint8)


def _encode(picture: Image.Image) -> bytes:
    """The picture as a PNG or JPEG file, whichever is smaller."""
    files = []
    for settings in ({"format": "PNG", "optimize": True}, {"format": "JPEG", "quality": 80}):
        stream = io.BytesIO()
        picture.save(stream, **settings)
        files.append(stream.getvalue())
    return min(files, key=len)
