"""The normalisation of losses: the weight of every token and image, by sums over the samples of the whole global batch.

A loss is a sum of values times these weights on every device (`mmjax.models.modalities.losses`): no layout changes it.
`build_global_batch` calls both; hosts that decode some rows get the sums from sizes, before anything is decoded.
"""

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Bool, Float

from data.packing.rows.packed_rows import PackedRows
from data.samples.encoder_format import EncoderFormat
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat


@dataclasses.dataclass(frozen=True)
class BatchTotals:
    """Sums over the samples of a global batch, which every host computes before any of them is decoded.

    Attributes:
        tokens: Backbone tokens.
        lengths: By encoder field, values of the encoder's inputs.
        images: Images to generate.
        targets: Tokens that count in the loss.
    """

    tokens: int
    lengths: Mapping[str, int]
    images: int
    targets: int

    @classmethod
    def from_sizes(cls, sizes: Iterable[SampleSizes], sample_format: SampleFormat) -> "BatchTotals":
        """The sums over samples of these sizes."""
        samples = list(sizes)
        return cls(
            tokens=sum(sample.tokens for sample in samples),
            lengths={
                field: sum(sample.lengths[field] for sample in samples) for field in sample_format.encoder_formats
            },
            images=sum(sample.images for sample in samples),
            targets=sum(sample.targets for sample in samples),
        )

    @classmethod
    def from_rows(cls, rows: PackedRows, sample_format: SampleFormat) -> "BatchTotals":
        """The sums over rows that hold the whole batch."""

        def value_count(field: str, encoder_format: EncoderFormat) -> int:
            item_ids = rows.encoder_inputs[field].item_ids
            positions_per_token = encoder_format.values_per_token // encoder_format.values_per_position
            cells = item_ids.reshape(len(item_ids), -1, positions_per_token)  # a class token does not fill its cell
            return int((cells > 0).any(axis=2).sum()) * encoder_format.values_per_token

        return cls(
            tokens=int((rows.token_segments > 0).sum()),
            lengths={
                field: value_count(field, encoder_format)
                for field, encoder_format in sample_format.encoder_formats.items()
            },
            images=int((rows.target_image_samples >= 0).sum()),
            targets=int(rows.layout.target_mask.sum()),
        )


def even_weights(mask: Bool[np.ndarray, "n _"], weight: float, total: int) -> Float[np.ndarray, "n _"]:
    """Divides a loss's weight evenly among its elements, in float32; 0 where the mask has none.

    Args:
        mask: The elements in the rows at hand.
        weight: Weight of the loss.
        total: Elements of the whole batch, of which the mask selects all or some.
    """
    return mask * np.float32(weight / max(1, total))
