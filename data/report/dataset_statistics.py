"""What the samples of a source hold, read from their outlines: nothing is decoded."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int

from data.data_config import CAPACITY_FIELDS, RowCapacity
from data.datasets.dataset import SampleIndex
from data.errors import DataError
from data.packing.refusals import Refusal, call_or_refuse, oversized_refusal
from data.samples.sample_metadata import SampleMetadata

TOKEN_MODALITIES = ("text", "vision", "audio", "drawing")
"""Modalities of backbone tokens: words and delimiters, merged patches, merged frames, conditions of images to draw."""

STATISTICS_COLUMNS = (*CAPACITY_FIELDS, *TOKEN_MODALITIES, "pictures", "clips")
"""Units of a sample: what it takes of a row, its backbone tokens by modality, images and clips that encoders read."""

_STREAMS = {"vision": "patches", "audio": "frames"}


@dataclasses.dataclass(frozen=True, eq=False)
class DatasetStatistics:
    """Samples as a training run draws them.

    Attributes:
        units: int64[n, 10], of every sample that can be read, in the order of `COLUMNS`.
        kinds: By kind, how many samples were drawn, those that cannot be read too.
        counts: By kind, how many the source has.
        fits: bool[n], whether a row holds the sample.
        refused: The samples that cannot be read or that no row holds, each once.
    """

    units: Int[np.ndarray, "n 10"]
    kinds: Mapping[str, int]
    counts: Mapping[str, int]
    fits: Bool[np.ndarray, " n"]
    refused: tuple[Refusal, ...]

    def columns(self, *names: str) -> Int[np.ndarray, "n k"]:
        """The columns of these names."""
        return self.units[:, [STATISTICS_COLUMNS.index(name) for name in names]]


def collect_statistics(
    catalogue: SampleIndex, capacity: RowCapacity, shares: Mapping[str, float], samples: int, seed: int
) -> DatasetStatistics:
    """Outlines samples of every kind in proportion to its share, in random order.

    None comes again before all of its kind have come, as in training.

    Args:
        catalogue: The source's samples.
        capacity: Of a row.
        shares: Weights of the kinds wanted.
        samples: How many.
        seed: Of the drawing.

    Raises:
        DataError: None of the samples can be read.
    """
    if samples < 1:
        raise DataError(f"{samples} samples; a description needs at least 1")
    random = np.random.default_rng(seed)
    kinds = _quotas(shares, samples)
    drawn = [_draw(np.array(catalogue.ids_of_kind(kind)), count, random) for kind, count in kinds.items()]
    order = random.permutation(np.concatenate(drawn)).tolist()
    known: dict[int, tuple[int, ...]] = {}
    refused: dict[int, Refusal] = {}
    for number in dict.fromkeys(order):
        outline = call_or_refuse(catalogue.metadata, catalogue, number)
        if isinstance(outline, Refusal):
            refused[number] = outline
            continue
        known[number] = _units(outline)
        if excess := oversized_refusal(outline.sizes, capacity, catalogue, number):
            refused[number] = excess
    read = [number for number in order if number in known]
    if not read:
        first = next(iter(refused.values()))
        raise DataError(f"not one of {samples} samples can be read; the first: {first.key}: {first.reason}")
    units = np.array([known[number] for number in read], np.int64)
    fits = np.array([number not in refused for number in read])
    return DatasetStatistics(units, kinds, dict(catalogue.counts), fits, tuple(refused.values()))


def _quotas(shares: Mapping[str, float], samples: int) -> dict[str, int]:
    """Whole numbers that add up to `samples`, in proportion to the shares; the largest remainders are rounded up."""
    weights = np.array(list(shares.values()))
    exact = weights / weights.sum() * samples
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: samples - counts.sum()]] += 1
    return dict(zip(shares, counts.tolist(), strict=True))


def _draw(ids: Int[np.ndarray, " m"], count: int, random: np.random.Generator) -> Int[np.ndarray, " count"]:
    rounds = [random.permutation(ids) for _ in range(-(-count // len(ids)))]
    return np.concatenate([ids[:0], *rounds])[:count]


def _units(outline: SampleMetadata) -> tuple[int, ...]:
    sizes, layout = outline.sizes, outline.layout
    parts = {
        part: int((layout.encoder_indices[f] >= 0).sum()) if f in layout.encoder_indices else 0
        for part, f in _STREAMS.items()
    }
    parts["drawing"] = sum(len(drawing.condition_positions) for drawing in outline.target_images)
    parts["text"] = sizes.tokens - sum(parts.values())
    items = [sum(item.field == field for item in outline.items) for field in _STREAMS.values()]
    return (*(getattr(sizes, name) for name in CAPACITY_FIELDS), *(parts[part] for part in TOKEN_MODALITIES), *items)
