"""The described batches as PyTorch's tensors: samples padded to the longest of a microbatch, or packed in rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import batches as gpu_batches
from benchmarks.gpu.batches import SampleDescription, Step
from benchmarks.gpu.pytorch_model import VARLEN, PyTorchVariant
from benchmarks.gpu.sizes import BenchmarkSizes

IGNORED = -100
"""PyTorch's cross entropy leaves out positions with this target."""


def microbatches(
    step: Step, sizes: BenchmarkSizes, count: int, variant: PyTorchVariant, device: str
) -> list[dict[str, Any]]:
    """The microbatches of a step, with the same samples as mmjax's, and `total`, the target tokens of the step."""
    per = len(step) // count
    parts = [step[number * per : (number + 1) * per] for number in range(count)]
    made = [_packed(part, sizes, variant) if variant.packed else _padded(part, sizes) for part in parts]
    total = sum(int((microbatch["targets"] != IGNORED).sum()) for microbatch in made)
    return [_placed(microbatch, device) | {"total": total} for microbatch in made]


def _padded(rows: Step, sizes: BenchmarkSizes) -> dict[str, Any]:
    samples = gpu_batches.step_samples(rows)
    longest = max(gpu_batches.sample_tokens(sample, sizes) for sample in samples)
    arrays = _arrays([[sample] for sample in samples], sizes, longest)
    return arrays | {"who_sees_whom": {"attention_mask": torch.from_numpy(arrays.pop("segments") > 0).long()}}


def _packed(rows: Step, sizes: BenchmarkSizes, variant: PyTorchVariant) -> dict[str, Any]:
    """Rows whose segments follow from `position_ids`: each starts at 0. Every token of padding is a segment."""
    arrays = _arrays(rows, sizes, sizes.tokens)
    segments, positions = arrays.pop("segments"), arrays.pop("positions")
    positions = torch.from_numpy(np.where(segments > 0, positions, 0).astype(np.int64))
    how: dict[str, Any] = {"position_ids": positions}
    if variant.attention == VARLEN:
        starts = np.flatnonzero(_starts(segments).reshape(-1))
        how["cu_seq_lens_q"] = torch.from_numpy(np.append(starts, segments.size).astype(np.int32))
        how["max_length_q"] = sizes.tokens
    return arrays | {"who_sees_whom": how}


def _starts(segments: np.ndarray) -> np.ndarray:
    """Where a segment begins. The padding of a row is one segment."""
    before = np.concatenate([np.full_like(segments[:, :1], -1), segments[:, :-1]], axis=1)
    return segments != before


def _arrays(rows: Sequence[Sequence[SampleDescription]], sizes: BenchmarkSizes, length: int) -> dict[str, Any]:
    shape = (len(rows), length)
    tokens, segments, positions = (np.zeros(shape, np.int64) for _ in range(3))
    targets, places, pictures = np.full(shape, IGNORED, np.int64), [], []
    for row, samples in enumerate(rows):
        start = 0
        for number, sample in enumerate(samples, start=1):
            layout = gpu_batches.sample_layout(sample, sizes)
            here = (row, slice(start, start + len(layout.tokens)))
            tokens[here], segments[here], positions[here] = layout.tokens, number, layout.positions
            targets[here] = np.where(layout.target_mask > 0, layout.targets, IGNORED)
            places.append(row * length + start + np.flatnonzero(layout.encoder_indices["patches"] >= 0))
            pictures += [gpu_batches.sample_picture(sample, sizes)] * sample.pictures
            start += len(layout.tokens)
    return {
        "tokens": torch.from_numpy(tokens),
        "targets": torch.from_numpy(targets),
        "places": torch.from_numpy(np.concatenate(places)),
        "pictures": _pixels(pictures, sizes),
        "segments": segments,
        "positions": positions,
    }


def _pixels(pictures: Sequence[np.ndarray], sizes: BenchmarkSizes) -> torch.Tensor:
    """Pictures normalised as by CLIP's processor, `[n, 3, side, side]`."""
    encoder = sizes.model.encoders[0]
    if not pictures:
        return torch.zeros((0, 3, sizes.side, sizes.side))
    unit = np.stack(pictures).astype(np.float32) / 127.5 - 1.0
    normal = (unit - np.float32(encoder.pixel_mean)) / np.float32(encoder.pixel_std)
    return torch.from_numpy(np.ascontiguousarray(normal.transpose(0, 3, 1, 2)))


def _placed(arrays: dict[str, Any], device: str) -> dict[str, Any]:
    if isinstance(arrays, dict):
        return {name: _placed(value, device) for name, value in arrays.items()}
    return arrays.to(device) if isinstance(arrays, torch.Tensor) else arrays
