"""The global batch: host arrays of static shapes for every module, with the weights that normalise the losses.

Dimensions: n rows of the global batch, s tokens of a row, p patches, f mel frames, g target images, q conditions of an
image, z side of a target image, c channels. A plan divides the rows into microbatches and among replicas later.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from configs.architectures import ModelConfig
from configs.common.short_repr import short_repr
from data.data_config import RowCapacity
from data.packing.loss_normalization import BatchTotals, even_weights
from data.packing.rows.packed_rows import PackedRows
from data.packing.rows.refusals import Refusal
from data.samples.sample_format import SampleFormat


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class GlobalBatch:
    """The data of one step.

    Attributes:
        arrays: By module name (here the default names), then field:

            - `vision`: `patches` float32[n, p, patch²·c] in [-1, 1]; `segments` int32[n, p], 0 for padding, else
              number of the image within the row; `positions` int32[n, p, 2], (row, column) in the image, -1 of a
              class token.
            - `audio`: `frames` float32[n, f, mels]; `segments` int32[n, f/2], number of the clip; `positions`.
            - any other encoder: likewise, its values under the name of its field.
            - `backbone`, each [n, s]: `tokens`; `segments`, 0 for padding, else number of the sample within the row;
              `branches`; `positions` in the sample, [n, s, 3] where they are (time, row, column); where some tokens
              attend both ways, `blocks`, the number of such a block within the sample, 0 for causal; for every
              encoder `{name}_index`, -1 or the index within the row of the encoder output that replaces the token's
              embedding; `targets`; `weights` float32, the weight of
              each token in the loss: they sum to `language_weight`; where the backbone has experts, `balancing_weights`
              float32, the weight of each token in their balancing loss: they sum to 1. For every generator,
              `{name}_conditions` int32[n, g, q], positions in the row.
            - `generator`: `images` float32[n, g, z, z, c] in [-1, 1]; `weights` float32[n, g], which sum to
              `generator_weight`; `samples` int32[n, g], the sample ids that key noise and time.
        sample_ids: int32[n, most samples of a row]; -1 for none, -2 where decoding refused one.
        real_and_capacity: By module name, (real, capacity): patches, frames, tokens and target images.
        targets: Number of target tokens.
        state: State from which the pipeline continues after this batch; empty for a batch built by hand.
        refused: Samples that planning or decoding refused for this batch.
        exchange_tables: By channel, tables that an engine has made ahead (`BatchRequirements.prepare`); else empty.
    """

    arrays: dict[str, dict[str, np.ndarray]]
    sample_ids: np.ndarray
    real_and_capacity: dict[str, tuple[int, int]]
    targets: int
    state: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()
    exchange_tables: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    __repr__ = short_repr


def build_global_batch(
    rows: PackedRows,
    model: ModelConfig,
    sample_format: SampleFormat,
    language_weight: float = 1.0,
    generator_weight: float = 1.0,
    totals: BatchTotals | None = None,
) -> GlobalBatch:
    """Names the arrays of packed rows after the modules that read them, and normalises the losses over the batch.

    A batch without target tokens or without target images is an ordinary one: all weights of that loss are zero.

    Args:
        rows: All rows of the batch; rows that this host does not need may be empty.
        model: Names the backbone.
        sample_format: Names the encoders and the generator.
        language_weight: Weight of the language loss in the total loss.
        generator_weight: Weight of the generator's loss in the total loss.
        totals: Sums over the whole batch; counted in the rows if None.
    """
    totals = totals or BatchTotals.from_rows(rows, sample_format)
    row_count, tokens = rows.token_segments.shape
    backbone = _backbone_arrays(rows, sample_format) | {
        "weights": even_weights(rows.layout.target_mask > 0, language_weight, totals.targets)
    }
    if model.backbone.experts:
        backbone["balancing_weights"] = even_weights(rows.token_segments > 0, 1.0, totals.tokens)
    arrays = {model.backbone.name: backbone}
    counts = {model.backbone.name: (totals.tokens, row_count * tokens)}
    for field, encoder_format in sample_format.encoder_formats.items():
        values, item_ids, positions = rows.encoder_inputs[field]
        arrays[encoder_format.module] = {field: values, "segments": item_ids, "positions": positions}
        counts[encoder_format.module] = (totals.lengths[field], row_count * values.shape[1])
    if sample_format.target_images:
        generator = sample_format.target_images.module
        is_image = rows.target_image_samples >= 0
        arrays[generator] = {
            "images": rows.target_images,
            "weights": even_weights(is_image, generator_weight, totals.images),
            "samples": np.maximum(rows.target_image_samples, 0),
        }
        backbone[f"{generator}_conditions"] = rows.condition_positions
        counts[generator] = (totals.images, is_image.size)
    return GlobalBatch(arrays=arrays, sample_ids=rows.sample_ids, real_and_capacity=counts, targets=totals.targets)


def _backbone_arrays(rows: PackedRows, sample_format: SampleFormat) -> dict[str, np.ndarray]:
    layout = rows.layout
    indices = {
        f"{sample_format.encoder_formats[field].module}_index": index for field, index in layout.encoder_indices.items()
    }
    blocks = {} if sample_format.tokens.bidirectional == "none" else {"blocks": layout.blocks}
    return {
        "tokens": layout.tokens,
        "segments": rows.token_segments,
        "branches": layout.branches,
        "positions": layout.positions,
        **blocks,
        **indices,
        "targets": layout.targets,
    }


def capacity_for_model(capacity: RowCapacity, sample_format: SampleFormat) -> RowCapacity:
    """The capacity without quantities of modules that the model does not have."""
    lengths = {field: capacity.lengths[field] for field in sample_format.encoder_formats}
    images = capacity.images if sample_format.target_images else 0
    return dataclasses.replace(capacity, lengths=lengths, images=images)
