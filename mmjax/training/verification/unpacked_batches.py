"""Batches without packing, for the reference: every sample in a row of its own, its normalisers counted anew."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.samples.sample import Sample
from data.samples.sample_format import SampleFormat

Arrays = dict[str, dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class UnpackedShape:
    """The most samples of a batch, and the most that one sample has of each thing."""

    samples: int
    tokens: int
    patches: int
    frames: int
    images: int


def unpacked_shape(batches: Sequence[Sequence[Sample]], form: SampleFormat) -> UnpackedShape:
    """The shape that holds every batch, so that one compiled program serves all."""

    def most(name: str, least: int) -> int:
        return max((sample.sizes[name] for samples in batches for sample in samples), default=least) or least

    cells = {
        field: form.encoder_formats[field].values_per_token if field in form.encoder_formats else 0
        for field in ("patches", "frames")
    }
    return UnpackedShape(
        samples=max(map(len, batches)),
        tokens=most("tokens", 1),
        patches=most("patches", cells["patches"]),
        frames=most("frames", cells["frames"]),
        images=most("images", 1),
    )


def unpacked_batch(
    samples: Sequence[Sample], model: ModelConfig, data: DataConfig, form: SampleFormat, shape: UnpackedShape
) -> Arrays:
    """A batch with every sample in a row of its own: arrays by module, as `data.packing.global_batch.GlobalBatch.arrays` has them."""
    arrays = {model.backbone.name: _backbone(samples, data, form, shape, model.backbone.experts is not None)}
    for field, each in form.encoder_formats.items():
        streams = [sample.encoder_inputs[field] for sample in samples]
        length = getattr(shape, field)
        positions = length // each.values_per_position
        arrays[each.module] = {
            field: _rows([of.values for of in streams], (shape.samples, length, each.value_width)),
            "segments": _rows([of.item_ids for of in streams], (shape.samples, positions)),
            "positions": _rows([of.positions for of in streams], (shape.samples, positions, *each.position_shape)),
        }
    if form.target_images:
        arrays[form.target_images.module] = _generator(samples, data, form.target_images.size, shape)
    return arrays


def _backbone(
    samples: Sequence[Sample], data: DataConfig, form: SampleFormat, shape: UnpackedShape, experts: bool
) -> dict[str, np.ndarray]:
    size = (shape.samples, shape.tokens)
    count = sum(int(sample.layout.target_mask.sum()) for sample in samples)

    def column(name: str) -> np.ndarray:
        return _rows([getattr(sample.layout, name) for sample in samples], size)

    fields = {
        "tokens": column("tokens"),
        "segments": _rows([np.ones(len(sample.layout.tokens), np.int32) for sample in samples], size),
        "branches": column("branches"),
        "positions": column("positions"),
        "targets": column("targets"),
        "weights": column("target_mask") * np.float32(data.language_weight / max(1, count)),
    }
    if experts:
        total = sum(len(sample.layout.tokens) for sample in samples)
        fields["shares"] = (fields["segments"] > 0) * np.float32(1 / max(1, total))
    for field, each in form.encoder_formats.items():
        fields[f"{each.module}_index"] = _rows(
            [sample.layout.encoder_indices[field] for sample in samples], size, fill=-1
        )
    if form.target_images:
        conditions = (shape.samples, shape.images, form.target_images.conditions)
        fields[f"{form.target_images.module}_conditions"] = _rows(
            [sample.condition_positions for sample in samples], conditions
        )
    return fields


def _generator(samples: Sequence[Sample], data: DataConfig, side: int, shape: UnpackedShape) -> dict[str, np.ndarray]:
    size = (shape.samples, shape.images)
    count = sum(len(sample.target_images) for sample in samples)

    def of_images(value: Callable[[Sample], float], dtype: type) -> np.ndarray:
        return _rows([np.full(len(sample.target_images), value(sample), dtype) for sample in samples], size)

    return {
        "images": _rows([sample.target_images for sample in samples], (*size, side, side, 3)),
        "weights": of_images(lambda _: data.generator_weight / max(1, count), np.float32),
        "samples": of_images(lambda sample: sample.id, np.int32),
    }


def _rows(parts: Sequence[np.ndarray], shape: tuple[int, ...], fill: int = 0) -> np.ndarray:
    """Parts of different lengths as rows of one array, filled up; `shape` begins with (rows, longest part)."""
    rows = np.full(shape, fill, parts[0].dtype if parts else np.int32)
    for row, part in zip(rows, parts, strict=False):
        row[: len(part)] = part
    return rows
