"""The Hopper kernels of the collective matmuls against cuBLAS.

The kernels run with n virtual ranks on one GPU. Each rank computes its own product of the gathered x, so that together
they compute n matmuls, which the plain product gives to cuBLAS in one call. What is sent between ranks passes through
this GPU's memory; that belongs to the kernels' time and not to cuBLAS's.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.operands import all_gather_operands, reduce_scatter_operands
from benchmarks.gpu.parts import PartRun, installed, short_reason
from benchmarks.h100_schedule.compilation import CUBLAS
from benchmarks.timing import TimedRun, in_turns, medians, timed_jax

PLAIN = "jnp.matmul (cuBLAS)"


def rows(part: PartRun) -> Iterator[dict[str, Any]]:
    """TFLOP/s of each implementation, and the speed of the kernels as a share of cuBLAS's."""
    ranks = part.sizes.ranks
    for name, shape in part.sizes.matmuls:
        if part.seconds_left < 6:
            yield part.row(f"matmul, {name}", None, note="cut for time")
            continue
        m, d, f = shape
        flops = 2.0 * m * d * f * ranks
        candidates, reasons = _candidates(ranks, shape)
        for form, reason in reasons.items():
            yield part.row(f"matmul, {name}: {form}, TFLOP/s", None, note=reason)
        seconds = medians(in_turns(candidates, part.sizes.rounds, part.sizes.inner, lambda: part.seconds_left - 2))
        note = f"[{m}, {d}] @ {ranks} of [{d}, {f}]"
        for form, median in seconds.items():
            yield part.row(f"matmul, {name}: {form}, TFLOP/s", flops / median / 1e12, note=note)
        for form in seconds:
            if form.startswith("mosaic"):
                share = seconds[PLAIN] / seconds[form]
                yield part.row(f"matmul, {name}: {form}, share of cuBLAS's speed", share)


def _candidates(ranks: int, shape: tuple[int, int, int]) -> tuple[dict[str, TimedRun], dict[str, str]]:
    x, w = all_gather_operands(ranks, shape)
    parts_of_x, rows_of_w = reduce_scatter_operands(ranks, shape)
    options = CUBLAS if jax.default_backend() == "gpu" else {}  # otherwise XLA may choose its own kernels
    candidates = {PLAIN: timed_jax(jax.jit(_plain, compiler_options=options).lower(x, w).compile(), (x, w))}
    reasons = {}
    for form, function, arguments in (
        ("mosaic all-gather", "loopback_all_gather_matmul", (x, (w,))),
        ("mosaic reduce-scatter", "loopback_matmul_reduce_scatter", (parts_of_x, rows_of_w)),
    ):
        try:
            compiled = jax.jit(getattr(kernels(), function)).lower(*arguments).compile()
            jax.block_until_ready(compiled(*arguments))
            candidates[form] = timed_jax(compiled, arguments)
        except Exception as error:  # the device may refuse the kernel; cuBLAS is still timed
            reasons[form] = f"not run: {short_reason(error)}"
    if installed("torch"):
        candidates |= _torch(x, w)
    return candidates, reasons


def _plain(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.matmul(x.reshape(-1, x.shape[-1])[None], w)


def _torch(x: jax.Array, w: jax.Array) -> dict[str, TimedRun]:
    import torch

    from benchmarks.timing import timed_torch

    if not torch.cuda.is_available():
        return {}
    gathered, weights = (
        torch.from_numpy(np.asarray(array, np.float32)).to("cuda", torch.bfloat16)
        for array in (x.reshape(-1, x.shape[-1]), w)
    )
    return {"torch.matmul (cuBLAS)": timed_torch(lambda: torch.matmul(gathered, weights))}


def kernels() -> ModuleType:
    """The Hopper kernels.

    Raises:
        NotImplementedError: The device is no Hopper GPU.
    """
    if str(getattr(jax.devices()[0], "compute_capability", "")) != "9.0":
        raise NotImplementedError(f"the mosaic kernels need a Hopper GPU, not {jax.devices()[0].device_kind}")
    from pallas_kernels.collective_matmul import mosaic_kernels

    return mosaic_kernels
