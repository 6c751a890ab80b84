"""The order of a step's rows, from the sizes of their samples or from the rows of a batch that is already made."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from data.packing.global_batch import GlobalBatch
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat
from sharding.balancing.reordering.row_reorderer import RowReorderer

RowLoads = Mapping[str, np.ndarray]
"""By module, [n, 3]: tokens, sum of the squares of their segments' lengths, and items of every row."""


@dataclasses.dataclass(frozen=True, eq=False)
class RowOrder:
    """Orders rows before they are decoded (`data.packing.step_planner.Arrange`), as a plan's simulated step is shortest.

    Attributes:
        arranger: Orders loads, for one plan.
        sample_format: Names the modules that read streams and draw.
        backbone: Name of the backbone.
    """

    arranger: RowReorderer
    sample_format: SampleFormat
    backbone: str

    def __call__(self, rows: Sequence[Sequence[SampleSizes]]) -> Int[np.ndarray, " n"]:
        """The order of rows whose samples have these sizes."""
        return self.arranger.row_order(self._loads(rows))

    def _loads(self, rows: Sequence[Sequence[SampleSizes]]) -> dict[str, np.ndarray]:
        sums = [np.sum([_numbers(of) for of in row], axis=0) if row else np.zeros(7) for row in rows]
        tokens, squares, patches, patch_squares, frames, frame_squares, images = np.array(sums, float).T
        nothing = np.zeros(len(rows))
        loads = {self.backbone: np.stack([tokens, squares, nothing], axis=1)}
        if self.sample_format.patches:
            loads[self.sample_format.patches.module] = np.stack([patches, patch_squares, nothing], axis=1)
        if self.sample_format.frames:
            positions = frames / self.sample_format.frames.values_per_position
            loads[self.sample_format.frames.module] = np.stack([positions, frame_squares, nothing], axis=1)
        if self.sample_format.target_images:
            loads[self.sample_format.target_images.module] = np.stack([nothing, nothing, images], axis=1)
        return loads


def _numbers(sizes: SampleSizes) -> tuple[int, ...]:
    return (
        sizes.tokens,
        sizes.token_squares,
        sizes.patches,
        sizes.patch_squares,
        sizes.frames,
        sizes.frame_squares,
        sizes.images,
    )


def reorder_rows(batch: GlobalBatch, order: Int[np.ndarray, " n"]) -> GlobalBatch:
    """The batch with its rows in another order; no sum over it changes."""
    arrays = {module: {name: array[order] for name, array in of.items()} for module, of in batch.arrays.items()}
    return dataclasses.replace(batch, arrays=arrays, sample_ids=batch.sample_ids[order])
