"""The global batch: host arrays of static shapes for every module, with the losses' normalisation in their weights.

Dimensions: n rows of the whole global batch, s tokens of a row, p patches, f mel frames, g generated images,
q conditions an image, z side of a generated image, c channels. A plan cuts the rows into microbatches and instances
later.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from configs.architectures import ModelConfig
from data.data_config import RowCapacity
from data.packing.packed_rows import PackedRows
from data.packing.refusals import Refusal
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat


@dataclasses.dataclass(frozen=True, eq=False)
class GlobalBatch:
    """One step's data.

    Attributes:
        arrays: By module name (here the default names), then field:

            - `vision`: `patches` float32[n, p, patch²·c] in [-1, 1]; `segments` int32[n, p], 0 for padding, else
              number of the image within the row; `positions` int32[n, p, 2], (row, column) in the image, -1 of a
              class token.
            - `audio`: `frames` float32[n, f, mels]; `segments` int32[n, f/2], number of the clip; `positions`.
            - `backbone`, each [n, s]: `tokens`; `segments`, 0 for padding, else number of the sample within the row;
              `branches`; `positions` in the sample; for every encoder `{name}_index`, -1 or the row's merged token
              of that encoder that takes the token's place; `targets`; `weights` float32, each target token's share
              of the loss: they sum to `language_weight`; where the backbone has experts `shares` float32, each token's
              share of their balancing loss: they sum to 1. And for every generator `{name}_conditions`
              int32[n, g, q], positions in the row.
            - `generator`: `images` float32[n, g, z, z, c] in [-1, 1]; `weights` float32[n, g], which sum to
              `generator_weight`; `samples` int32[n, g], the sample ids that key noise and time.
        sample_ids: int32[n, most samples a row], -1 for none.
        counts: By module name (real, capacity): patches, frames, tokens and generated images.
        targets: Number of target tokens.
        state: What the pipeline needs to continue behind this batch; empty for one made by hand.
        refused: Samples that planning or decoding refused for this batch.
    """

    arrays: dict[str, dict[str, np.ndarray]]
    sample_ids: np.ndarray
    counts: dict[str, tuple[int, int]]
    targets: int
    state: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()


@dataclasses.dataclass(frozen=True)
class BatchTotals:
    """What a global batch holds in all: known to every host before any of it is decoded."""

    tokens: int
    patches: int
    frames: int
    images: int
    targets: int

    @classmethod
    def from_sizes(cls, sizes: Iterable[SampleSizes]) -> "BatchTotals":
        """The sums over samples."""
        given = list(sizes)
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: sum(int(getattr(each, name)) for each in given) for name in names})

    @classmethod
    def from_rows(cls, rows: PackedRows, form: SampleFormat) -> "BatchTotals":
        """What is in rows that hold the whole batch."""

        def values(field: str) -> int:
            if field not in rows.encoder_inputs:
                return 0
            each = form.encoder_formats[field]
            items = rows.encoder_inputs[field].item_ids
            cells = items.reshape(
                len(items), -1, each.values_per_token // each.values_per_position
            )  # a class token fills its own in part
            return int((cells > 0).any(axis=2).sum()) * each.values_per_token

        return cls(
            tokens=int((rows.token_segments > 0).sum()),
            patches=values("patches"),
            frames=values("frames"),
            images=int((rows.target_image_samples >= 0).sum()),
            targets=int(rows.layout.target_mask.sum()),
        )


def build_global_batch(
    rows: PackedRows,
    model: ModelConfig,
    form: SampleFormat,
    language_weight: float = 1.0,
    generator_weight: float = 1.0,
    totals: BatchTotals | None = None,
) -> GlobalBatch:
    """Names packed rows after the modules that read them, and normalises the losses over the whole batch.

    A batch without a target token or without a generated image is an ordinary one: all its weights are zero.

    Args:
        rows: All rows; those that this host does not need may be empty.
        model: Names the backbone.
        form: Names the encoders and the generator.
        language_weight, generator_weight: What the losses count in their sum.
        totals: Of the whole batch; counted in the rows if they are not given.
    """
    totals = totals or BatchTotals.from_rows(rows, form)
    count, tokens = rows.token_segments.shape
    backbone = _backbone(rows, form) | {
        "weights": _shares(rows.layout.target_mask > 0, language_weight, totals.targets)
    }
    if model.backbone.experts:
        backbone["shares"] = _shares(rows.token_segments > 0, 1.0, totals.tokens)
    arrays = {model.backbone.name: backbone}
    counts = {model.backbone.name: (totals.tokens, count * tokens)}
    for field, each in form.encoder_formats.items():
        stream = rows.encoder_inputs[field]
        arrays[each.module] = {field: stream.values, "segments": stream.item_ids, "positions": stream.positions}
        counts[each.module] = (getattr(totals, field), count * stream.values.shape[1])
    if form.target_images:
        drawn = rows.target_image_samples >= 0
        arrays[form.target_images.module] = {
            "images": rows.target_images,
            "weights": _shares(drawn, generator_weight, totals.images),
            "samples": np.maximum(rows.target_image_samples, 0),
        }
        backbone[f"{form.target_images.module}_conditions"] = rows.condition_positions
        counts[form.target_images.module] = (totals.images, drawn.size)
    return GlobalBatch(arrays, rows.sample_ids, counts, totals.targets)


def _backbone(rows: PackedRows, form: SampleFormat) -> dict[str, np.ndarray]:
    layout = rows.layout
    return {
        "tokens": layout.tokens,
        "segments": rows.token_segments,
        "branches": layout.branches,
        "positions": layout.positions,
        **{f"{form.encoder_formats[field].module}_index": index for field, index in layout.encoder_indices.items()},
        "targets": layout.targets,
    }


def capacity_for_model(capacity: RowCapacity, form: SampleFormat) -> RowCapacity:
    """The capacity without what the model has no module for."""
    absent = {field: 0 for field in ("patches", "frames") if field not in form.encoder_formats}
    return dataclasses.replace(capacity, **absent, images=capacity.images if form.target_images else 0)


def _shares(mask: np.ndarray, weight: float, total: int) -> np.ndarray:
    """float32: `weight` split evenly over so many places, of which the mask has all or some."""
    return mask * np.float32(weight / max(1, total))
