"""Causal attention of packed rows, forward and backward, for `benchmarks.gpu`: this repository's forms and PyTorch's.

PyTorch pads each segment to the longest and attends causally (flash and cuDNN), or attends packed: with a mask, which
only its slower kernels take, or by `varlen_attn`. All see the same segments, and what they give is compared before they
are timed, in turns.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.parts import PartRun, installed, short_reason
from benchmarks.gpu.sizes import AttentionHeads
from benchmarks.relative_error import relative_error
from benchmarks.timing import TimedRun, in_turns, medians, timed_jax
from pallas_kernels.packed_attention import IMPLEMENTATIONS, make_segment_mask, packed_attention

DIFFERENCE = 3e-2
"""Relative norm, between forms in bfloat16."""
LONGEST_DENSE = 4096
"""Beyond it the table of all pairs does not fit beside the others."""


@dataclasses.dataclass(frozen=True)
class AttentionCandidate:
    """One form: what is timed, and its output of the segments' positions `[tokens, h, e]`."""

    run: TimedRun
    output: Callable[[], np.ndarray]


def rows(task: PartRun) -> Iterator[dict[str, Any]]:
    """Milliseconds of each form at each mix of segments."""
    heads, mixes = task.sizes.attention
    for name, segments in mixes:
        if task.seconds_left < 8:
            yield task.row(f"attention, {name}", None, note="cut for time")
            continue
        contestants, refused = _contestants(heads, segments, task.sizes.model.dtype)
        for form, reason in refused.items():
            yield task.row(f"attention, {name}: {form}, ms", None, note=reason)
        runs = {form: of.run for form, of in contestants.items()}
        seconds = medians(in_turns(runs, task.sizes.rounds, task.sizes.inner, _left(task)))
        for form, each in seconds.items():
            yield task.row(f"attention, {name}: {form}, ms", each * 1e3)
        theirs = {form: each for form, each in seconds.items() if form.startswith("PyTorch")}
        if theirs:
            best = min(theirs, key=theirs.__getitem__)
            ratio = theirs[best] / seconds["packed_attention"]
            yield task.row(f"attention, {name}: PyTorch's best over packed_attention", ratio, note=best)


def _left(task: PartRun) -> Callable[[], float]:
    return lambda: task.seconds_left - 2


def _contestants(
    heads: AttentionHeads, segments: tuple[int, ...], dtype: str
) -> tuple[dict[str, AttentionCandidate], dict[str, str]]:
    """Those that run here and agree with the first; and why the others are left out."""
    makers: dict[str, Callable[[], AttentionCandidate]] = {
        "packed_attention": lambda: _ours(heads, segments, dtype, None),
        **{
            f"packed_attention, {form}": lambda form=form: _ours(heads, segments, dtype, form)
            for form in IMPLEMENTATIONS
            if form != "dense" or sum(segments) <= LONGEST_DENSE
        },
    }
    if installed("torch"):
        from benchmarks.gpu.pytorch_attention import FORMS, attention_candidate

        for form in FORMS:
            makers[f"PyTorch, {form}"] = lambda form=form: AttentionCandidate(
                *attention_candidate(form, heads, segments, dtype)
            )
    found, refused, wanted = {}, {}, None
    for form, make in makers.items():
        try:
            one = make()
            output = one.output()
        except Exception as error:  # a form that this device or version has not; the others go on
            refused[form] = f"not run: {short_reason(error)}"
            continue
        wanted = output if wanted is None else wanted
        apart = relative_error(output, wanted)
        if apart <= DIFFERENCE:
            found[form] = one
        else:
            refused[form] = f"not timed: {apart:.1e} from packed_attention"
    return found, refused if installed("torch") else refused | {"PyTorch": "not run: needs torch, not installed here"}


def _ours(heads: AttentionHeads, segments: tuple[int, ...], dtype: str, form: str | None) -> AttentionCandidate:
    """The packing is made once, as the layers of a model share it."""
    length = sum(segments)
    query, key, value, given = random_heads(1, length, heads, dtype)
    _, packing = causal_packing([segments], 0)

    def forward(query: jax.Array, key: jax.Array, value: jax.Array, packing: Any) -> jax.Array:
        return packed_attention(query, key, value, packing, implementation=form)

    def both(query: jax.Array, key: jax.Array, value: jax.Array, packing: Any, given: jax.Array) -> tuple:
        output, back = jax.vjp(lambda *of: forward(*of, packing), query, key, value)
        return output, *back(given)

    arguments = (query, key, value, packing, given)
    compiled = jax.jit(both).lower(*arguments).compile()
    return AttentionCandidate(
        timed_jax(compiled, arguments), lambda: np.asarray(compiled(*arguments)[0][0], np.float32)
    )


def random_heads(rows: int, length: int, heads: AttentionHeads, dtype: str) -> list[jax.Array]:
    """Query, key, value and a gradient of the output, `[r, s, h, e]`; the same numbers for every framework."""
    return [jnp.asarray(array, dtype) for array in normal_heads(rows, length, heads)]


@functools.lru_cache(maxsize=1)
def normal_heads(rows: int, length: int, heads: AttentionHeads) -> list[np.ndarray]:
    """The same as NumPy arrays, float32."""
    random = np.random.default_rng(0)
    counts = (heads.query, heads.key, heads.key, heads.query)
    return [random.standard_normal((rows, length, count, heads.width), np.float32) for count in counts]


def causal_packing(segments: Sequence[Sequence[int]], padding: int) -> tuple[np.ndarray, Any]:
    """Ids of the segments of each row, int32[r, s], and their causal packing."""
    ids = np.stack([np.append(np.repeat(np.arange(1, len(row) + 1), row), np.zeros(padding, int)) for row in segments])
    ids = ids.astype(np.int32)
    return ids, make_segment_mask(ids, causal=True)
