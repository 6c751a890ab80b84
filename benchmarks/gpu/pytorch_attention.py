"""PyTorch's implementations of causal attention over segments."""

import contextlib
from collections.abc import Callable

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.operands import normal_heads
from benchmarks.gpu.sizes import AttentionHeads
from benchmarks.timing import TimedRun, timed_torch

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _padded(backend: SDPBackend | None) -> Attend:
    """Causal SDPA of segments padded to the longest; no position of a segment attends to the padding after it."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        sdpa = torch.nn.functional.scaled_dot_product_attention
        with contextlib.nullcontext() if backend is None else sdpa_kernel(backend):
            return sdpa(query, key, value, is_causal=True, enable_gqa=True)

    return attend


def _masked(segments: tuple[int, ...]) -> Attend:
    ids = torch.repeat_interleave(torch.tensor(segments))
    mask = ((ids[:, None] == ids[None]) & torch.ones(len(ids), len(ids), dtype=torch.bool).tril())[None, None]
    mask = mask.to(_device())

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        group = (
            query.shape[1] // key.shape[1]
        )  # repeated, as in transformers: with a mask no fast kernel shares key heads
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    return attend


def _varlen(segments: tuple[int, ...]) -> Attend:
    from torch.nn.attention.varlen import varlen_attn

    ends = torch.tensor(np.append(0, np.cumsum(segments)), dtype=torch.int32, device=_device())
    longest = max(segments)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
        output = varlen_attn(query, key, value, ends, ends, longest, longest, window_size=(-1, 0), enable_gqa=True)
        return output.transpose(0, 1)[None]

    return attend


PYTORCH_ATTENTION: dict[str, tuple[bool, Callable[[tuple[int, ...]], Attend]]] = {
    "SDPA padded": (False, lambda _: _padded(None)),
    "SDPA padded, flash": (False, lambda _: _padded(SDPBackend.FLASH_ATTENTION)),
    "SDPA padded, cuDNN": (False, lambda _: _padded(SDPBackend.CUDNN_ATTENTION)),
    "SDPA packed with a mask": (True, _masked),
    "varlen_attn": (True, _varlen),
}
"""By name, (whether segments are packed, function that makes attention of `[b, h, s, e]` from their lengths)."""


def attention_candidate(
    form: str, heads: AttentionHeads, segments: tuple[int, ...], dtype: str
) -> tuple[TimedRun, Callable[[], np.ndarray]]:
    """Makes the timed function, forward and backward, and the output at the segments' positions."""
    packed, make = PYTORCH_ATTENTION[form]
    attend = make(segments)
    arrays = [array[0] for array in normal_heads(1, sum(segments), heads)]
    rows = [array[None] if packed else _by_row(array, segments) for array in arrays]
    query, key, value, cotangent = (
        torch.from_numpy(np.ascontiguousarray(row.swapaxes(1, 2))).to(_device(), getattr(torch, dtype)) for row in rows
    )
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]

    def forward_and_backward() -> None:
        torch.autograd.grad(attend(*inputs), inputs, cotangent)

    def output() -> np.ndarray:
        rows = attend(*inputs).detach().float().cpu().numpy().swapaxes(1, 2)
        return rows[0] if packed else np.concatenate([row[:end] for row, end in zip(rows, segments, strict=True)])

    return timed_torch(forward_and_backward), output


def _by_row(array: np.ndarray, segments: tuple[int, ...]) -> np.ndarray:
    """Every segment as a row, padded with zeros."""
    rows = np.zeros((len(segments), max(segments), *array.shape[1:]), array.dtype)
    for row, part in zip(rows, np.split(array, np.cumsum(segments)[:-1]), strict=True):
        row[: len(part)] = part
    return rows


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
