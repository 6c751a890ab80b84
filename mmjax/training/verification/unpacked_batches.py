"""Batches without packing, for the reference: every sample has a row of its own, and normalisers are counted again.

`reference.py` computes with them beside the packed batches.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.samples.sample import Sample
from data.samples.sample_format import SampleFormat

HostArrays = dict[str, dict[str, np.ndarray]]
"""Arrays by module and field, samples first."""


@dataclasses.dataclass(frozen=True)
class UnpackedShape:
    """Largest number of samples of a batch, and of tokens, encoder values (by field) and images of a sample."""

    samples: int
    tokens: int
    lengths: Mapping[str, int]
    images: int


def unpacked_shape(batches: Sequence[Sequence[Sample]], sample_format: SampleFormat) -> UnpackedShape:
    """Returns the shape that holds every batch, so that one compiled program serves all of them."""

    def largest(name: str, minimum: int) -> int:
        return max((sample.sizes[name] for samples in batches for sample in samples), default=minimum) or minimum

    return UnpackedShape(
        samples=max(map(len, batches)),
        tokens=largest("tokens", 1),
        lengths={
            field: largest(field, encoder.values_per_token) for field, encoder in sample_format.encoder_formats.items()
        },
        images=largest("images", 1),
    )


def unpacked_batch(
    samples: Sequence[Sample], model: ModelConfig, data: DataConfig, sample_format: SampleFormat, shape: UnpackedShape
) -> HostArrays:
    """Makes the arrays of a batch, as in `GlobalBatch.arrays`, with every sample in a row of its own."""
    arrays = {model.backbone.name: _backbone(samples, data, sample_format, shape, model.backbone.experts is not None)}
    for field, encoder in sample_format.encoder_formats.items():
        inputs = [sample.encoder_inputs[field] for sample in samples]
        length = shape.lengths[field]
        positions = length // encoder.values_per_position
        arrays[encoder.module] = {
            field: _padded([item.values for item in inputs], (shape.samples, length, encoder.value_width)),
            "segments": _padded([item.item_ids for item in inputs], (shape.samples, positions)),
            "positions": _padded(
                [item.positions for item in inputs], (shape.samples, positions, *encoder.position_shape)
            ),
        }
    if sample_format.target_images:
        arrays[sample_format.target_images.module] = _generator(samples, data, sample_format.target_images.size, shape)
    return arrays


def _backbone(
    samples: Sequence[Sample], data: DataConfig, sample_format: SampleFormat, shape: UnpackedShape, experts: bool
) -> dict[str, np.ndarray]:
    size = (shape.samples, shape.tokens)
    target_count = sum(int(sample.layout.target_mask.sum()) for sample in samples)

    def column(name: str, shape: tuple[int, ...] = ()) -> np.ndarray:
        return _padded([getattr(sample.layout, name) for sample in samples], size + shape)

    fields = {
        "tokens": column("tokens"),
        "segments": _padded([np.ones(len(sample.layout.tokens), np.int32) for sample in samples], size),
        "branches": column("branches"),
        "positions": column("positions", sample_format.tokens.position_shape),
        "targets": column("targets"),
        "weights": column("target_mask") * np.float32(data.language_weight / max(1, target_count)),
    }
    if sample_format.tokens.bidirectional != "none":
        fields["blocks"] = column("blocks")
    if experts:
        token_count = sum(len(sample.layout.tokens) for sample in samples)
        fields["balancing_weights"] = (fields["segments"] > 0) * np.float32(1 / max(1, token_count))
    for field, encoder in sample_format.encoder_formats.items():
        fields[f"{encoder.module}_index"] = _padded(
            [sample.layout.encoder_indices[field] for sample in samples], size, fill=-1
        )
    if sample_format.target_images:
        conditions = (shape.samples, shape.images, sample_format.target_images.conditions)
        fields[f"{sample_format.target_images.module}_conditions"] = _padded(
            [sample.condition_positions for sample in samples], conditions
        )
    return fields


def _generator(samples: Sequence[Sample], data: DataConfig, side: int, shape: UnpackedShape) -> dict[str, np.ndarray]:
    size = (shape.samples, shape.images)
    image_count = sum(len(sample.target_images) for sample in samples)

    def per_image(value: Callable[[Sample], float], dtype: type) -> np.ndarray:
        return _padded([np.full(len(sample.target_images), value(sample), dtype) for sample in samples], size)

    return {
        "images": _padded([sample.target_images for sample in samples], (*size, side, side, 3)),
        "weights": per_image(lambda _: data.generator_weight / max(1, image_count), np.float32),
        "samples": per_image(lambda sample: sample.id, np.int32),
    }


def _padded(rows: Sequence[np.ndarray], shape: tuple[int, ...], fill: int = 0) -> np.ndarray:
    """Pads rows of different lengths to one array of a shape that begins with (rows, longest row)."""
    padded = np.full(shape, fill, rows[0].dtype if rows else np.int32)
    for padded_row, row in zip(padded, rows, strict=False):
        padded_row[: len(row)] = row
    return padded
