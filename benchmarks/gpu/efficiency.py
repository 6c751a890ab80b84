"""Matmuls and attention by shape, beside what the analytic costs say of this device.

What is measured is written as the description of a cluster (`hardware_file.py`), by which plans are made for this
device.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.attention import packed_attention_program
from benchmarks.gpu.hardware_file import cluster_gin
from benchmarks.gpu.parts import HARDWARE, PartRun
from benchmarks.gpu.sizes import AttentionHeads
from benchmarks.h100_schedule.compilation import CUBLAS
from benchmarks.timing import in_turns, medians, timed_jax
from configs.clusters import CLUSTERS, ClusterConfig
from configs.device_generations import AttentionRate
from sharding.costs.matmul_seconds import MatmulSizes, matmul_seconds

BF16 = 2


def rows(part: PartRun) -> Iterator[dict[str, Any]]:
    """TFLOP/s by shape, and the simulated seconds over the measured ones."""
    cluster = device_cluster(jax.devices()[0].device_kind)
    rates: list[float] = []
    for shape in part.sizes.shapes:
        if part.seconds_left < 5:
            yield part.row("efficiency of further matmuls", None, note="cut for time")
            break
        seconds = _matmul_seconds(part, shape)
        rates.append(2.0 * math.prod(shape) / seconds)
        name = f"matmul [{shape[0]}, {shape[1]}] @ [{shape[1]}, {shape[2]}]"
        yield part.row(f"{name}, TFLOP/s", rates[-1] / 1e12)
        if cluster is not None:
            yield part.row(f"{name}, simulated over measured", simulated_seconds(shape, cluster) / seconds)
    attention = []
    for width in part.sizes.head_widths:
        if part.seconds_left < 5:
            yield part.row("efficiency of further attention", None, note="cut for time")
            break
        forward, both = _attention_rates(part, width)
        attention.append((width, forward, both))
        yield part.row(f"attention of {width}-wide heads, forward, TFLOP/s", forward / 1e12)
        yield part.row(f"attention of {width}-wide heads, forward and backward, TFLOP/s", both / 1e12)
    if cluster is None:
        note = f"the peak of {jax.devices()[0].device_kind} is not known (configs/clusters.py)"
        yield part.row("description of this device's cluster", None, note=note)
    elif rates and attention:
        measured = measured_cluster(cluster, max(rates), attention)
        (part.folder / HARDWARE).write_text(cluster_gin(measured))


def device_cluster(device_kind: str) -> ClusterConfig | None:
    """The cluster of configs/clusters.py that has such devices; None where there is none."""
    return next((cluster for cluster in CLUSTERS.values() if cluster.has_device_kind(device_kind)), None)


def simulated_seconds(shape: tuple[int, int, int], cluster: ClusterConfig) -> float:
    """What the analytic costs say of a bfloat16 matmul."""
    rows, inner, outer = (np.array(float(size)) for size in shape)
    sizes = MatmulSizes(rows=rows, inner=inner, outer=outer, count=np.array(1.0))
    return float(matmul_seconds(sizes, cluster, BF16, cluster.memory_bandwidth))


def measured_cluster(
    cluster: ClusterConfig, matmul_rate: float, attention: list[tuple[int, float, float]]
) -> ClusterConfig:
    """The cluster with the measured rates.

    Args:
        cluster: The cluster as configs/clusters.py has it.
        matmul_rate: FLOP/s of the fastest matmul.
        attention: By increasing width of heads, FLOP/s of the forward, and of forward and backward together.
    """
    generation = dataclasses.replace(
        cluster.generation,
        power_share=min(matmul_rate / cluster.peak_flops, 1.0),
        attention=tuple(
            AttentionRate(
                width, min(forward / cluster.peak_flops, 1.0), min(_backward(forward, both) / cluster.peak_flops, 1.0)
            )
            for width, forward, both in attention
        ),
    )
    return dataclasses.replace(cluster, name=f"measured_{cluster.name}", generation=generation)


def _backward(forward: float, both: float) -> float:
    """FLOP/s of the backward, with five products for the forward's two, from the rates of the forward and of both."""
    return 2.5 / max(3.5 / both - 1.0 / forward, 1.0 / forward)


def _matmul_seconds(part: PartRun, shape: tuple[int, int, int]) -> float:
    rows, inner, outer = shape
    random = np.random.default_rng(0)
    operands = tuple(
        jnp.asarray(random.standard_normal(size, np.float32), jnp.bfloat16) for size in ((rows, inner), (inner, outer))
    )
    options = CUBLAS if jax.default_backend() == "gpu" else {}
    compiled = jax.jit(jnp.matmul, compiler_options=options).lower(*operands).compile()
    runs = {"matmul": timed_jax(compiled, operands)}
    return medians(in_turns(runs, part.sizes.rounds, part.sizes.inner, lambda: part.seconds_left - 2))["matmul"]


def _attention_rates(part: PartRun, width: int) -> tuple[float, float]:
    """FLOP/s of the forward, and of forward and backward, of one causal sequence."""
    length, count = part.sizes.attention_length, max(1, 2048 // width)
    heads = AttentionHeads(count, count, width)
    programs = {
        both: packed_attention_program(heads, (length,), "bfloat16", None, gradients=both) for both in (False, True)
    }
    runs = {str(both): timed_jax(*program) for both, program in programs.items()}
    seconds = medians(in_turns(runs, part.sizes.rounds, part.sizes.inner, lambda: part.seconds_left - 2))
    forward = 2.0 * length**2 * width * count  # two products of half the square
    return forward / seconds["False"], 3.5 * forward / seconds["True"]
