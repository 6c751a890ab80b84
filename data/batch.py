"""The global batch: host arrays of static shapes for every module, with the losses' normalisation in their weights.

Dimensions: n rows of the whole global batch, s tokens of a row, p patches, g generated images, q conditions an image,
z side of a generated image, c channels. A plan cuts the rows into microbatches and instances later.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from configs.architectures import ModelConfig
from data.packing import PackedRows
from data.tokenizer import ANSWER


@dataclasses.dataclass(frozen=True, eq=False)
class GlobalBatch:
    """One step's data.

    Attributes:
        arrays: By module name (here the default names), then field:

            - `vision`: `patches` float32[n, p, patch²·c] in [-1, 1]; `segments` int32[n, p], 0 for padding, else
              number of the image within the row; `positions` int32[n, p, 2], (row, column) in the image.
            - `backbone`, each [n, s]: `tokens`; `segments`, 0 for padding, else number of the sample within the row;
              `branches`; `positions` in the sample; `vision_index`, -1 or the row's merged vision token that takes
              the token's place; `targets`; `weights` float32, each target token's share of the loss: they sum to
              `language_weight`. And `generator_conditions` int32[n, g, q], positions in the row.
            - `generator`: `images` float32[n, g, z, z, c] in [-1, 1]; `weights` float32[n, g], which sum to
              `generator_weight`; `samples` int32[n, g], the sample ids that key noise and time.
        sample_ids: int32[n, most samples a row], -1 for none.
        counts: By module name (real, capacity): patches, tokens and generated images.
        targets: Number of target tokens.
    """

    arrays: dict[str, dict[str, np.ndarray]]
    sample_ids: np.ndarray
    counts: dict[str, tuple[int, int]]
    targets: int


class Answers(NamedTuple):
    """Where questions wait for their answers, one entry a question, each int32[k].

    Attributes:
        rows, places: Where in [n, s] the `<answer>` token stands, whose hidden state predicts the first word.
        sample_ids: The question's sample.
        branches: Its branch in the sample: question number `branches - 1` of the image, 0 for a text-only question.
        words: Token id of the answer's first word.
    """

    rows: np.ndarray
    places: np.ndarray
    sample_ids: np.ndarray
    branches: np.ndarray
    words: np.ndarray


def global_batch(
    rows: PackedRows, model: ModelConfig, language_weight: float = 1.0, generator_weight: float = 1.0
) -> GlobalBatch:
    """Names packed rows after the modules that read them, and normalises the losses over the whole batch.

    A batch without a target token or without a generated image is an ordinary one: all its weights are zero.
    """
    (encoder,), (generator,) = model.encoders, model.generators
    layout = rows.layout
    targets = int(layout.target_mask.sum())
    drawn = rows.image_samples >= 0
    arrays = {
        encoder.name: {
            "patches": rows.patches,
            "segments": rows.image_segments,
            "positions": rows.patch_positions,
        },
        model.backbone.name: {
            "tokens": np.ascontiguousarray(layout.tokens),
            "segments": rows.token_segments,
            "branches": np.ascontiguousarray(layout.branches),
            "positions": np.ascontiguousarray(layout.positions),
            "vision_index": layout.vision_index,
            "targets": np.ascontiguousarray(layout.targets),
            "weights": _shares(layout.target_mask > 0, language_weight),
            "generator_conditions": rows.conditions,
        },
        generator.name: {
            "images": rows.images,
            "weights": _shares(drawn, generator_weight),
            "samples": np.maximum(rows.image_samples, 0),
        },
    }
    counts = {
        encoder.name: (int((rows.image_segments > 0).sum()), rows.image_segments.size),
        model.backbone.name: (int((rows.token_segments > 0).sum()), rows.token_segments.size),
        generator.name: (int(drawn.sum()), drawn.size),
    }
    return GlobalBatch(arrays, rows.sample_ids, counts, targets)


def answers(batch: GlobalBatch, backbone: str = "backbone") -> Answers:
    """Every question of the batch whose answer counts in the loss, once, in row order; a prompt has none."""
    fields = batch.arrays[backbone]
    rows, places = np.nonzero((fields["tokens"] == ANSWER) & (fields["weights"] > 0))
    segments = fields["segments"][rows, places]
    return Answers(
        rows=rows.astype(np.int32),
        places=places.astype(np.int32),
        sample_ids=batch.sample_ids[rows, segments - 1],
        branches=fields["branches"][rows, places],
        words=fields["targets"][rows, places],
    )


def _shares(mask: np.ndarray, weight: float) -> np.ndarray:
    """float32: `weight` split evenly over the places of the mask."""
    return mask * np.float32(weight / max(1, int(mask.sum())))
