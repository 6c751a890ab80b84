"""Causal attention of packed rows, forward and backward: this repository's implementations and PyTorch's.

PyTorch pads each segment to the longest and attends causally (flash and cuDNN), or attends over packed segments: with a
mask, which only its slower kernels take, or by `varlen_attn`. All attend over the same segments. Their outputs are
compared before they are timed by turns.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from benchmarks.gpu.operands import causal_mask, random_heads
from benchmarks.gpu.parts import PartRun, installed, short_reason
from benchmarks.gpu.sizes import AttentionHeads
from benchmarks.relative_error import relative_error
from benchmarks.timing import TimedRun, in_turns, medians, timed_jax
from pallas_kernels.packed_attention import IMPLEMENTATIONS, SegmentMask, packed_attention

MAX_RELATIVE_DIFFERENCE = 3e-2
"""Largest relative difference between implementations in bfloat16."""
MAX_DENSE_LENGTH = 4096
"""Beyond it the mask of all pairs does not fit in memory together with the others."""


@dataclasses.dataclass(frozen=True)
class AttentionCandidate:
    """One implementation: what is timed, and its output at the segments' positions `[tokens, h, e]`."""

    run: TimedRun
    output: Callable[[], np.ndarray]


def rows(part: PartRun) -> Iterator[dict[str, Any]]:
    """Milliseconds of each implementation at each mix of segments."""
    heads, mixes = part.sizes.attention
    for name, segments in mixes:
        if part.seconds_left < 8:
            yield part.row(f"attention, {name}", None, note="cut for time")
            continue
        candidates, reasons = _candidates(heads, segments, part.sizes.model.dtype)
        for implementation, reason in reasons.items():
            yield part.row(f"attention, {name}: {implementation}, ms", None, note=reason)
        runs = {implementation: candidate.run for implementation, candidate in candidates.items()}
        seconds = medians(in_turns(runs, part.sizes.rounds, part.sizes.inner, lambda: part.seconds_left - 2))
        for implementation, median in seconds.items():
            yield part.row(f"attention, {name}: {implementation}, ms", median * 1e3)
        pytorch = {name: median for name, median in seconds.items() if name.startswith("PyTorch")}
        if pytorch:
            best = min(pytorch, key=pytorch.__getitem__)
            ratio = pytorch[best] / seconds["packed_attention"]
            yield part.row(f"attention, {name}: PyTorch's best over packed_attention", ratio, note=best)


def _candidates(
    heads: AttentionHeads, segments: tuple[int, ...], dtype: str
) -> tuple[dict[str, AttentionCandidate], dict[str, str]]:
    """Implementations that run here and agree with the first; and why the others are left out."""
    makers: dict[str, Callable[[], AttentionCandidate]] = {
        "packed_attention": lambda: _packed_attention_candidate(heads, segments, dtype, None),
        **{
            f"packed_attention, {name}": lambda name=name: _packed_attention_candidate(heads, segments, dtype, name)
            for name in IMPLEMENTATIONS
            if name != "dense" or sum(segments) <= MAX_DENSE_LENGTH
        },
    }
    if installed("torch"):
        from benchmarks.gpu.pytorch_attention import PYTORCH_ATTENTION, attention_candidate

        for name in PYTORCH_ATTENTION:
            makers[f"PyTorch, {name}"] = lambda name=name: AttentionCandidate(
                *attention_candidate(name, heads, segments, dtype)
            )
    candidates, reasons, expected = {}, {}, None
    for name, make in makers.items():
        try:
            candidate = make()
            output = candidate.output()
        except Exception as error:  # this device or version lacks the implementation; the others go on
            reasons[name] = f"not run: {short_reason(error)}"
            continue
        expected = output if expected is None else expected
        difference = relative_error(output, expected)
        if difference <= MAX_RELATIVE_DIFFERENCE:
            candidates[name] = candidate
        else:
            reasons[name] = f"not timed: {difference:.1e} from packed_attention"
    if not installed("torch"):
        reasons["PyTorch"] = "not run: needs torch, not installed here"
    return candidates, reasons


def packed_attention_program(
    heads: AttentionHeads,
    segments: tuple[int, ...],
    dtype: str,
    implementation: str | None,
    *,
    gradients: bool = True,
) -> tuple[Callable[..., tuple], tuple]:
    """The compiled forward, or forward and backward, of a packed row, and its arguments.

    The mask is made once, as the layers of a model share it.
    """
    query, key, value, cotangent = random_heads(1, sum(segments), heads, dtype)
    _, mask = causal_mask([segments], 0)

    def run(query: jax.Array, key: jax.Array, value: jax.Array, mask: SegmentMask, cotangent: jax.Array) -> tuple:
        attend = functools.partial(packed_attention, mask=mask, implementation=implementation)
        if not gradients:
            return (attend(query, key, value),)
        output, vjp = jax.vjp(attend, query, key, value)
        return output, *vjp(cotangent)

    arguments = (query, key, value, mask, cotangent)
    return jax.jit(run).lower(*arguments).compile(), arguments


def _packed_attention_candidate(
    heads: AttentionHeads, segments: tuple[int, ...], dtype: str, implementation: str | None
) -> AttentionCandidate:
    compiled, arguments = packed_attention_program(heads, segments, dtype, implementation)
    return AttentionCandidate(
        timed_jax(compiled, arguments), lambda: np.asarray(compiled(*arguments)[0][0], np.float32)
    )
