"""Packing: several samples in one row of fixed capacities, and the indices that must then count from the row's start.

Grain packs first-fit, all features of a sample into the same row (`FirstFitPackIterDataset`); every sample keeps its
own numbering until the rows are stacked, and is shifted then, for all rows at once.
"""

import dataclasses
from collections.abc import Sequence

import grain
import numpy as np

from data.errors import DataError
from data.samples import Layout, Sample, SampleFormat

_SEGMENTED = ("text", "patches", "images", "sample")


@dataclasses.dataclass(frozen=True)
class Capacity:
    """What one row holds at most.

    Attributes:
        tokens, patches, images: Backbone tokens s, encoder patches p, generated images g.
        samples: Samples, whatever their size.
    """

    tokens: int
    patches: int
    images: int
    samples: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise DataError(f"capacity of {getattr(self, field.name)} {field.name} a row; it must be at least 1")

    def excess(self, sample: Sample) -> str | None:
        """Why the sample fits no row and what would mend it, or None if it fits."""
        too_much = [
            f"{size} {name} where a row holds {getattr(self, name)}"
            for name, size in sample.sizes.items()
            if size > getattr(self, name)
        ]
        return f"{' and '.join(too_much)}; raise the row's capacity" if too_much else None


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows of packed samples, all indices counted from the row's start; dimensions as in `data.batch`.

    Attributes:
        layout: The token columns, each [n, s].
        token_segments: int32[n, s], 0 for padding, else number of the sample within the row.
        patches: float32[n, p, patch²·3].
        image_segments: int32[n, p], 0 for padding, else number of the seen image within the row.
        patch_positions: int32[n, p, 2].
        images: float32[n, g, z, z, 3].
        conditions: int32[n, g, q].
        image_samples: int32[n, g], sample id of each generated image, -1 for padding.
        sample_ids: int32[n, most samples a row], -1 for none.
    """

    layout: Layout
    token_segments: np.ndarray
    patches: np.ndarray
    image_segments: np.ndarray
    patch_positions: np.ndarray
    images: np.ndarray
    conditions: np.ndarray
    image_samples: np.ndarray
    sample_ids: np.ndarray


def packable(sample: Sample) -> dict[str, np.ndarray]:
    """The sample as grain packs it: few features, because each costs time per sample."""
    return {
        "text": np.stack(sample.layout, axis=1),
        "patches": sample.patches,
        "patch_fields": np.column_stack([sample.patch_images, sample.patch_positions]),
        "images": sample.images,
        "conditions": sample.conditions,
        "sample": np.array([sample.id], np.int32),
    }


def pack(samples: grain.IterDataset, capacity: Capacity, bins: int) -> grain.IterDataset:
    """Packs `packable` samples first-fit into rows, `bins` of them open at a time.

    Every sample must fit an empty row (`Capacity.excess`).
    """
    return grain.experimental.FirstFitPackIterDataset(
        samples,
        length_struct={
            "text": capacity.tokens,
            "patches": capacity.patches,
            "patch_fields": capacity.patches,
            "images": capacity.images,
            "conditions": capacity.images,
            "sample": capacity.samples,
        },
        num_packing_bins=bins,
        shuffle_bins=False,
        meta_features=("patch_fields", "conditions"),
    )


def stack(rows: Sequence[dict[str, np.ndarray]], count: int, capacity: Capacity, form: SampleFormat) -> PackedRows:
    """Stacks packed rows, fills up with empty ones to `count`, and counts all indices from the row's start."""
    padding = [_empty_row(capacity, form)] * (count - len(rows))
    fields = {name: np.stack([row[name] for row in (*rows, *padding)]) for name in _empty_row(capacity, form)}
    text_segments, patch_segments, image_segments, sample_segments = (
        fields[f"{name}_segment_ids"] for name in _SEGMENTED
    )
    layout = Layout(*np.moveaxis(fields["text"], -1, 0))
    token_starts = _starts(_sizes(text_segments, capacity.samples))
    cell_starts = _starts(_sizes(patch_segments, capacity.samples)) // form.cell
    patch_images = fields["patch_fields"][..., 0]
    image_starts = _starts(_largest(patch_images, patch_segments, capacity.samples))
    sample_ids = np.where(sample_segments > 0, fields["sample"], -1)
    ids_by_segment = np.concatenate([np.full((count, 1), -1, np.int32), sample_ids], axis=1)
    return PackedRows(
        layout=layout._replace(
            vision_index=np.where(
                (text_segments > 0) & (layout.vision_index >= 0),
                layout.vision_index + _of_segment(cell_starts, text_segments),
                -1,
            ).astype(np.int32)
        ),
        token_segments=text_segments,
        patches=fields["patches"],
        image_segments=np.where(patch_segments > 0, patch_images + _of_segment(image_starts, patch_segments), 0).astype(
            np.int32
        ),
        patch_positions=np.ascontiguousarray(fields["patch_fields"][..., 1:]),
        images=fields["images"],
        conditions=np.where(
            image_segments[..., None] > 0,
            fields["conditions"] + _of_segment(token_starts, image_segments)[..., None],
            0,
        ).astype(np.int32),
        image_samples=_of_segment(ids_by_segment, image_segments),
        sample_ids=sample_ids,
    )


def pack_samples(samples: Sequence[Sample], rows: int, capacity: Capacity, form: SampleFormat) -> PackedRows:
    """Packs given samples into `rows` rows, for prompts and for tests.

    Raises:
        DataError: A sample that fits no row, or more samples than the rows hold.
    """
    for sample in samples:
        if excess := capacity.excess(sample):
            raise DataError(f"sample {sample.id} ({sample.kind}): {excess}")
    dataset = grain.MapDataset.source([packable(sample) for sample in samples]).to_iter_dataset(
        grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    )
    packed = list(pack(dataset, capacity, rows))
    if len(packed) > rows:
        raise DataError(f"{len(samples)} samples do not fit {rows} rows of {capacity}; give them more rows")
    return stack(packed, rows, capacity, form)


def _empty_row(capacity: Capacity, form: SampleFormat) -> dict[str, np.ndarray]:
    segments = zip(_SEGMENTED, (capacity.tokens, capacity.patches, capacity.images, capacity.samples), strict=True)
    return {
        "text": np.zeros((capacity.tokens, len(Layout._fields)), np.int32),
        "patches": np.zeros((capacity.patches, form.patch_width), np.float32),
        "patch_fields": np.zeros((capacity.patches, 3), np.int32),
        "images": np.zeros((capacity.images, form.image_size, form.image_size, 3), np.float32),
        "conditions": np.zeros((capacity.images, form.conditions), np.int32),
        "sample": np.zeros(capacity.samples, np.int32),
    } | {f"{name}_segment_ids": np.zeros(length, np.int32) for name, length in segments}


def _sizes(segments: np.ndarray, samples: int) -> np.ndarray:
    """Number of places [n, samples + 1] of every segment; the padding, segment 0, counts as none."""
    rows = len(segments)
    numbered = segments + np.arange(rows)[:, None] * (samples + 1)
    sizes = np.bincount(numbered.ravel(), minlength=rows * (samples + 1)).reshape(rows, samples + 1)
    sizes[:, 0] = 0
    return sizes


def _largest(values: np.ndarray, segments: np.ndarray, samples: int) -> np.ndarray:
    """Largest value [n, samples + 1] of every segment, 0 for an empty one; the padding's own values are 0."""
    largest = np.zeros((len(segments), samples + 1), np.int64)
    np.maximum.at(largest, (np.arange(len(segments))[:, None], segments), values)
    return largest


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Where every segment starts, from the sizes of all in order."""
    return np.cumsum(sizes, axis=1) - sizes


def _of_segment(values: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """For every place the value [n, samples + 1] of its segment."""
    return np.take_along_axis(values, segments, axis=1)
