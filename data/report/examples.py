"""Typical and extreme samples of a data set, decoded small enough to be shown: tokens, pictures, spectrograms."""

import dataclasses
import io
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float32, Int, UInt8
from PIL import Image

from data.datasets.dataset import SampleIndex
from data.media.patches import to_uint8
from data.packing.rows.refusals import Refusal, call_or_refuse
from data.report.dataset_statistics import DatasetStatistics
from data.report.shown_tokens import TokenRun, in_loss, token_runs
from data.samples.encoder_format import EncoderFormat, EncoderInputs
from data.samples.image_format import PatchFormat, first_frame
from data.samples.sample import Sample

MAX_KINDS = 8
"""Number of kinds of which samples are shown, the kinds with the most samples first."""

_MAX_MEDIA = 4  # of each sort in a sample
_PICTURE_SIDE, _SMALLEST_SIDE = 144, 72
_SPECTROGRAM = (288, 72)


@dataclasses.dataclass(frozen=True)
class MediaExamples:
    """Pictures of the media of one sort in a sample, as encoded files.

    Attributes:
        title: Name of the media, such as `input of vision`.
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
        kind: Kind of the sample.
        role: Why it is shown: `typical`, `fewest tokens` or `most tokens`.
        sample_id: Global id of the sample.
        sizes: Units of the sample by quantity of a row; quantities that it has none of are left out.
        tokens: Tokens of the sample; of many the first and the last.
        targets: Number of tokens that count in the loss.
        media: Pictures of the sample's media.
        problem: Why it cannot be decoded; else empty.
    """

    kind: str
    role: str
    sample_id: int
    sizes: Mapping[str, int]
    tokens: tuple[TokenRun, ...] = ()
    targets: int = 0
    media: tuple[MediaExamples, ...] = ()
    problem: str = ""


def decode_examples(sample_index: SampleIndex, statistics: DatasetStatistics) -> tuple[SampleExample, ...]:
    """Of every kind the sample of median length, the shortest and the longest of the drawn samples."""
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
    """Numbers of different samples by role, chosen among `numbers`; fewer where all have the same length."""
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
    formats = sample_index.sample_format.encoder_formats
    modules = {field: encoder_format.module for field, encoder_format in formats.items()}
    return SampleExample(
        kind=kind,
        role=role,
        sample_id=sample_id,
        sizes={name: size for name, size in sample.sizes.items() if size},
        tokens=token_runs(sample.layout, sample_index.dataset.tokenizer, modules),
        targets=int(in_loss(sample.layout).sum()),
        media=tuple(_media(sample, formats)),
    )


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
    mask = np.repeat(inputs.item_ids == item, encoder_format.values_per_position)
    return Image.fromarray(_grey_levels(inputs.values[mask].T[::-1])).resize(_SPECTROGRAM)


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
