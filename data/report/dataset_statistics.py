"""Dataset statistics: sizes of a data set's samples, read from metadata without decoding, and FLOPs of their units."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int

from configs.architectures import ModelConfig
from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.errors import DataError
from data.packing.rows.refusals import Refusal, call_or_refuse, oversized_refusal
from data.samples.sample import SampleSizes
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from sharding.frames import make_frame
from sharding.specs.layers.layer import make_loads
from sharding.specs.modules import module_graph

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DatasetStatistics:
    """Samples as a training run draws them.

    Attributes:
        sample_ids: Global id of every readable sample, in the order in which they were drawn.
        units: By name, int64[n]: units of every readable sample. First its units of a row (`RowCapacity.names`),
            then its backbone tokens by modality, then the items that each encoder reads (`EncoderFormat.item_name`),
            then video clips and the frames that are read of them, and the tokens that count in the loss (`targets`).
        items: By encoder field, and `images` to generate, the lengths of the items of every readable sample.
        token_modalities: Modalities of backbone tokens: text and delimiters, outputs of every encoder, conditions of
            target images (`generation`).
        distributed: Names of the units of which a description shows the distribution.
        kinds: Number of samples drawn of each kind, unreadable ones included.
        counts: Number of samples of each kind in the data set.
        fits: bool[n], whether each sample fits into a row.
        refused: Unreadable and oversized samples, each once.
    """

    sample_ids: Int[np.ndarray, " n"]
    units: Mapping[str, Int[np.ndarray, " n"]]
    items: Mapping[str, tuple[tuple[int, ...], ...]]
    token_modalities: tuple[str, ...]
    distributed: tuple[str, ...]
    kinds: Mapping[str, int]
    counts: Mapping[str, int]
    fits: Bool[np.ndarray, " n"]
    refused: tuple[Refusal, ...]

    def columns(self, *names: str) -> Int[np.ndarray, "n k"]:
        """The columns of these names."""
        return np.stack([self.units[name] for name in names], axis=1)

    def to_frame(self) -> "pandas.DataFrame":
        """A frame with a row for every sample: its id, its units, and whether it fits; UserError without pandas."""
        return make_frame({"sample_id": self.sample_ids, **self.units, "fits": self.fits})


def collect_statistics(
    sample_index: SampleIndex,
    capacity: RowCapacity,
    shares: Mapping[str, float],
    samples: int,
    seed: int,
    callback: Callable[[int, int], None] = lambda done, total: None,
) -> DatasetStatistics:
    """Reads the metadata of samples of every kind in proportion to its share, in random order.

    As in training, no sample is repeated before all of its kind have been drawn.

    Args:
        sample_index: The samples.
        capacity: Capacity of a row.
        shares: Weights of the kinds.
        samples: Number of samples to draw.
        seed: Seed of the drawing.
        callback: Called with the number of different samples read so far, and the number to be read.

    Raises:
        DataError: None of the samples can be read.
    """
    if samples < 1:
        raise DataError(f"{samples} samples; a description needs at least 1")
    random = np.random.default_rng(seed)
    kinds = _quotas(shares, samples)
    drawn = [_draw(np.array(sample_index.ids_of_kind(kind)), count, random) for kind, count in kinds.items()]
    sample_ids = random.permutation(np.concatenate(drawn)).tolist()
    units_of_samples: dict[int, dict[str, int]] = {}
    sizes_of_samples: dict[int, SampleSizes] = {}
    refused: dict[int, Refusal] = {}
    different = list(dict.fromkeys(sample_ids))
    for done, sample_id in enumerate(different):
        callback(done, len(different))
        metadata = call_or_refuse(sample_index.metadata, sample_index, sample_id)
        if isinstance(metadata, Refusal):
            refused[sample_id] = metadata
            continue
        units_of_samples[sample_id] = _sample_units(metadata)
        sizes_of_samples[sample_id] = metadata.sizes
        if oversized := oversized_refusal(metadata.sizes, capacity, sample_index, sample_id):
            refused[sample_id] = oversized
    callback(len(different), len(different))
    readable = [sample_id for sample_id in sample_ids if sample_id in units_of_samples]
    if not readable:
        first = next(iter(refused.values()))
        raise DataError(f"not one of {samples} samples can be read; the first: {first.key}: {first.reason}")
    names = units_of_samples[readable[0]]
    units = {name: np.array([units_of_samples[sample_id][name] for sample_id in readable], np.int64) for name in names}
    items = {
        encoder.field: tuple(sizes_of_samples[sample_id].items[encoder.field] for sample_id in readable)
        for encoder in sample_index.sample_format.encoders
    }
    items["images"] = tuple((1,) * sizes_of_samples[sample_id].images for sample_id in readable)
    fits = np.array([sample_id not in refused for sample_id in readable])
    encoders = sample_index.sample_format.encoders
    return DatasetStatistics(
        sample_ids=np.array(readable, np.int64),
        units=units,
        items=items,
        token_modalities=("text", *(encoder.module for encoder in encoders), "generation"),
        distributed=(
            *("tokens", "text", *(encoder.field for encoder in encoders), "images"),
            *(encoder.item_name for encoder in encoders),
            *("video_clips", "video_frames"),
        ),
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


def _sample_units(metadata: SampleMetadata) -> dict[str, int]:
    """The units of a sample by name (`DatasetStatistics.units`)."""
    sizes, formats = metadata.sizes, metadata.sample_format.encoder_formats
    tokens = {
        encoder.module: int((metadata.layout.encoder_indices[field] >= 0).sum()) for field, encoder in formats.items()
    }
    tokens["generation"] = sum(len(target.condition_positions) for target in metadata.target_images)
    text = sizes.tokens - sum(tokens.values())
    items = {
        encoder.item_name: sum(item.field == field for item in metadata.items) for field, encoder in formats.items()
    }
    frames = [item for item in metadata.items if item.times]
    clip_counts = {
        "video_clips": sum(not item.group for item in frames),
        "video_frames": sum(len(f.times) for f in frames),
    }
    return {**sizes.row_units, "text": text, **tokens, **items, **clip_counts, "targets": sizes.targets}


def flops_per_unit(model: ModelConfig, sample_format: SampleFormat) -> dict[str, float]:
    """FLOPs of a forward pass for one token, one value of each encoder and one target image, where the model has one.

    Padding of different units is added up by these FLOPs. Attention is left out: it depends on lengths, and padding
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


def quadratic_cost_weights(model: ModelConfig, sample_format: SampleFormat) -> dict[str, float]:
    """By encoder field, w of the cost l + w l^2 of an item of l values, from FLOPs of attention and of all else.

    An encoder without attention has 0.
    """
    graph = module_graph(model)
    one_token, one_square = make_loads(tokens=1), make_loads(squared_lengths=1)
    weights = {}
    for field, encoder_format in sample_format.encoder_formats.items():
        module = graph[encoder_format.module]
        position_weight = float(module.forward_flops(one_square) / module.forward_flops(one_token))
        weights[field] = position_weight / encoder_format.values_per_position
    return weights


def modules_of_units(model: ModelConfig, sample_format: SampleFormat) -> dict[str, str]:
    """By modality of the model (tokens, patches, mel frames, target images), the name of the module that reads it."""
    modules = {"tokens": model.backbone.name}
    modules |= {field: encoder_format.module for field, encoder_format in sample_format.encoder_formats.items()}
    if sample_format.target_images:
        modules["images"] = sample_format.target_images.module
    return modules
