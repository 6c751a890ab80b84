"""Dataset statistics: what the samples of a data set hold, read from metadata without decoding, and what they cost."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int

from configs.architectures import ModelConfig
from data.data_config import CAPACITY_FIELDS, RowCapacity
from data.datasets.dataset import SampleIndex
from data.errors import DataError
from data.packing.refusals import Refusal, call_or_refuse, oversized_refusal
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from sharding.frames import make_frame
from sharding.specs.layer import make_loads
from sharding.specs.modules import module_graph

if TYPE_CHECKING:
    import pandas

TOKEN_MODALITIES = ("text", "vision", "audio", "generation")
"""Modalities of backbone tokens: text and delimiters, encoder outputs, conditions of target images."""

STATISTICS_COLUMNS = (*CAPACITY_FIELDS, *TOKEN_MODALITIES, "encoder_images", "encoder_clips")
"""Units of a sample: what it takes of a row, its backbone tokens by modality, images and clips that encoders read."""

_ENCODER_FIELDS = {"vision": "patches", "audio": "frames"}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DatasetStatistics:
    """Samples as a training run draws them.

    Attributes:
        sample_ids: Global id of every readable sample, in the order in which they were drawn.
        units: int64[n, 10], units of every readable sample, in the order of `STATISTICS_COLUMNS`.
        kinds: Number of samples drawn of each kind, unreadable ones included.
        counts: Number of samples of each kind in the data set.
        fits: bool[n], whether each sample fits into a row.
        refused: Unreadable and oversized samples, each once.
    """

    sample_ids: Int[np.ndarray, " n"]
    units: Int[np.ndarray, "n 10"]
    kinds: Mapping[str, int]
    counts: Mapping[str, int]
    fits: Bool[np.ndarray, " n"]
    refused: tuple[Refusal, ...]

    def columns(self, *names: str) -> Int[np.ndarray, "n k"]:
        """The columns of these names."""
        return self.units[:, [STATISTICS_COLUMNS.index(name) for name in names]]

    def to_frame(self) -> "pandas.DataFrame":
        """A frame with a row for every sample: its id, its units, and whether it fits; UserError without pandas."""
        units = dict(zip(STATISTICS_COLUMNS, self.units.T, strict=True))
        return make_frame({"sample_id": self.sample_ids, **units, "fits": self.fits})


def collect_statistics(
    sample_index: SampleIndex, capacity: RowCapacity, shares: Mapping[str, float], samples: int, seed: int
) -> DatasetStatistics:
    """Reads the metadata of samples of every kind in proportion to its share, in random order.

    As in training, no sample is repeated before all of its kind have been drawn.

    Args:
        sample_index: The samples.
        capacity: Capacity of a row.
        shares: Weights of the kinds.
        samples: Number of samples to draw.
        seed: Seed of the drawing.

    Raises:
        DataError: None of the samples can be read.
    """
    if samples < 1:
        raise DataError(f"{samples} samples; a description needs at least 1")
    random = np.random.default_rng(seed)
    kinds = _quotas(shares, samples)
    drawn = [_draw(np.array(sample_index.ids_of_kind(kind)), count, random) for kind, count in kinds.items()]
    sample_ids = random.permutation(np.concatenate(drawn)).tolist()
    units_of_samples: dict[int, tuple[int, ...]] = {}
    refused: dict[int, Refusal] = {}
    for sample_id in dict.fromkeys(sample_ids):
        metadata = call_or_refuse(sample_index.metadata, sample_index, sample_id)
        if isinstance(metadata, Refusal):
            refused[sample_id] = metadata
            continue
        units_of_samples[sample_id] = _sample_units(metadata)
        if oversized := oversized_refusal(metadata.sizes, capacity, sample_index, sample_id):
            refused[sample_id] = oversized
    readable = [sample_id for sample_id in sample_ids if sample_id in units_of_samples]
    if not readable:
        first = next(iter(refused.values()))
        raise DataError(f"not one of {samples} samples can be read; the first: {first.key}: {first.reason}")
    units = np.array([units_of_samples[sample_id] for sample_id in readable], np.int64)
    fits = np.array([sample_id not in refused for sample_id in readable])
    return DatasetStatistics(
        sample_ids=np.array(readable, np.int64),
        units=units,
        kinds=kinds,
        counts=dict(sample_index.counts),
        fits=fits,
        refused=tuple(refused.values()),
    )


def _quotas(shares: Mapping[str, float], samples: int) -> dict[str, int]:
    """Whole numbers in proportion to the shares that add up to `samples`; the largest remainders are rounded up."""
    weights = np.array(list(shares.values()))
    exact = weights / weights.sum() * samples
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: samples - counts.sum()]] += 1
    return dict(zip(shares, counts.tolist(), strict=True))


def _draw(sample_ids: Int[np.ndarray, " m"], count: int, random: np.random.Generator) -> Int[np.ndarray, " count"]:
    rounds = [random.permutation(sample_ids) for _ in range(-(-count // len(sample_ids)))]
    return np.concatenate([sample_ids[:0], *rounds])[:count]


def _sample_units(metadata: SampleMetadata) -> tuple[int, ...]:
    """The units of a sample in the order of `STATISTICS_COLUMNS`."""
    sizes, indices = metadata.sizes, metadata.layout.encoder_indices
    tokens = {
        modality: int((indices[field] >= 0).sum()) if field in indices else 0
        for modality, field in _ENCODER_FIELDS.items()
    }
    tokens["generation"] = sum(len(target.condition_positions) for target in metadata.target_images)
    tokens["text"] = sizes.tokens - sum(tokens.values())
    items = [sum(item.field == field for item in metadata.items) for field in _ENCODER_FIELDS.values()]
    row_units = (getattr(sizes, name) for name in CAPACITY_FIELDS)
    return (*row_units, *(tokens[modality] for modality in TOKEN_MODALITIES), *items)


def flops_per_unit(model: ModelConfig, sample_format: SampleFormat) -> dict[str, float]:
    """FLOPs of a forward pass for one token, patch, mel frame and target image, for those that the model has.

    By them, padding of different units can be added up. Attention is left out: it depends on lengths, and padding
    hardly increases it.
    """
    graph = module_graph(model)
    one_token, one_item = make_loads(tokens=1), make_loads(items=1)
    flops = {"tokens": float(graph.backbone.forward_flops(one_token))}
    for field, encoder_format in sample_format.encoder_formats.items():
        per_position = float(graph[encoder_format.module].forward_flops(one_token))
        flops[field] = per_position / encoder_format.values_per_position
    if sample_format.target_images:
        flops["images"] = float(graph[sample_format.target_images.module].forward_flops(one_item))
    return flops


def modules_of_units(model: ModelConfig, sample_format: SampleFormat) -> dict[str, str]:
    """Name of the module that reads the tokens, patches, mel frames and target images, for those that the model has."""
    modules = {"tokens": model.backbone.name}
    modules |= {field: encoder_format.module for field, encoder_format in sample_format.encoder_formats.items()}
    if sample_format.target_images:
        modules["images"] = sample_format.target_images.module
    return modules
