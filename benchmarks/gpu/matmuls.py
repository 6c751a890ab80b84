"""Tiles of the collective matmuls' Hopper kernels against cuBLAS, for `benchmarks.gpu`.

The kernels run whole, their n ranks virtual on one GPU: each computes its own product of the gathered x, so that all
of it is n matmuls, which a plain product gives to cuBLAS in one. What travels between ranks goes through this GPU's
memory; it is in the kernels' time and not in cuBLAS's.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.parts import PartRun, installed, short_reason
from benchmarks.h100_schedule.compilation import CUBLAS
from benchmarks.timing import TimedRun, in_turns, medians, timed_jax

PLAIN = "jnp.matmul (cuBLAS)"


def rows(task: PartRun) -> Iterator[dict[str, Any]]:
    """TFLOP/s of each, and the kernels' share of cuBLAS's."""
    ranks = task.sizes.ranks
    for name, shape in task.sizes.matmuls:
        if task.seconds_left < 6:
            yield task.row(f"matmul, {name}", None, note="cut for time")
            continue
        m, d, f = shape
        work = 2.0 * m * d * f * ranks
        contestants, refused = _contestants(ranks, shape)
        for form, reason in refused.items():
            yield task.row(f"matmul, {name}: {form}, TFLOP/s", None, note=reason)
        seconds = medians(in_turns(contestants, task.sizes.rounds, task.sizes.inner, lambda: task.seconds_left - 2))
        note = f"[{m}, {d}] @ {ranks} of [{d}, {f}]"
        for form, each in seconds.items():
            yield task.row(f"matmul, {name}: {form}, TFLOP/s", work / each / 1e12, note=note)
        for form in seconds:
            if form.startswith("mosaic"):
                share = seconds[PLAIN] / seconds[form]
                yield task.row(f"matmul, {name}: {form}, share of cuBLAS's speed", share)


def _contestants(ranks: int, shape: tuple[int, int, int]) -> tuple[dict[str, TimedRun], dict[str, str]]:
    x, w = gathered(ranks, shape)
    apart, apart_w = scattered(ranks, shape)
    options = CUBLAS if jax.default_backend() == "gpu" else {}  # else XLA may choose kernels of its own
    found = {PLAIN: timed_jax(jax.jit(_plain, compiler_options=options).lower(x, w).compile(), (x, w))}
    refused = {}
    for form, function, arguments in (
        ("mosaic all-gather", "loopback_all_gather_matmul", (x, (w,))),
        ("mosaic reduce-scatter", "loopback_matmul_reduce_scatter", (apart, apart_w)),
    ):
        try:
            compiled = jax.jit(getattr(kernels(), function)).lower(*arguments).compile()
            jax.block_until_ready(compiled(*arguments))
            found[form] = timed_jax(compiled, arguments)
        except Exception as error:  # the device may refuse the kernel; cuBLAS's figure stays
            refused[form] = f"not run: {short_reason(error)}"
    if installed("torch"):
        found |= _torch(x, w)
    return found, refused


def _plain(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.matmul(x.reshape(-1, x.shape[-1])[None], w)


def _torch(x: jax.Array, w: jax.Array) -> dict[str, TimedRun]:
    import torch

    from benchmarks.timing import timed_torch

    if not torch.cuda.is_available():
        return {}
    whole, weights = (
        torch.from_numpy(np.asarray(array, np.float32)).to("cuda", torch.bfloat16)
        for array in (x.reshape(-1, x.shape[-1]), w)
    )
    return {"torch.matmul (cuBLAS)": timed_torch(lambda: torch.matmul(whole, weights))}


def kernels() -> ModuleType:
    """The Hopper kernels.

    Raises:
        NotImplementedError: The device is none.
    """
    if str(getattr(jax.devices()[0], "compute_capability", "")) != "9.0":
        raise NotImplementedError(f"the mosaic kernels need a Hopper GPU, not {jax.devices()[0].device_kind}")
    from pallas_kernels.collective_matmul import mosaic_kernels

    return mosaic_kernels


def gathered(ranks: int, shape: tuple[int, int, int]) -> tuple[jax.Array, jax.Array]:
    """For the all-gather: each rank's rows `[n, m / n, d]`, and columns `[n, d, f]`."""
    m, d, f = shape
    return _normal((ranks, m // ranks, d)), _normal((ranks, d, f))


def scattered(ranks: int, shape: tuple[int, int, int]) -> tuple[jax.Array, jax.Array]:
    """For the reduce-scatter: each rank's part of all rows `[n, n, m / n, d]`, and rows of the weight `[n, d, f]`."""
    m, d, f = shape
    return _normal((ranks, ranks, m // ranks, d)), _normal((ranks, d, f))


def _normal(shape: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(np.random.default_rng(len(shape)).standard_normal(shape, np.float32), jnp.bfloat16)
