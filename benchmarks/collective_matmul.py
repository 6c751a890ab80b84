"""`python -m benchmarks.collective_matmul`: collective matmuls by backend and tiling, on all devices there are.

Every form runs forward and backward at the shapes of a layer's two matmuls, and the forms take turns. The command
prints the time of each form over the reference's, and the distance of its results from float64 as a ratio of norms.
The fastest tiling on a kind of device belongs into `pallas_kernels.collective_matmul.tiling.MEASURED_TILINGS`. On a CPU
the devices share the cores, so nothing can be hidden there, and the ratio shows what the steps of a ring cost.
"""

import dataclasses
import json
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.command import run_benchmark
from benchmarks.relative_error import relative_error
from benchmarks.timing import in_turns, timed_jax
from mmjax import cli

REFERENCE = "reference"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectiveMatmulArguments(cli.JsonArguments):
    """Flags of the command."""

    rows: int = cli.flag(
        1024, "Positions of a row of the batch, of all ranks together.", metavar="N", parse=cli.integer(1)
    )
    width: int = cli.flag(512, "Width of the model.", metavar="N", parse=cli.integer(1))
    ffn: int = cli.flag(2048, "Feed-forward width, of all ranks together.", metavar="N", parse=cli.integer(1))
    dtype: str = cli.flag(
        "float32", "Precision: float32 or bfloat16.", metavar="NAME", parse=cli.one_of("float32", "bfloat16")
    )
    turns: int = cli.flag(20, "Timed runs of each form.", metavar="N", parse=cli.integer(1))


def main(arguments: CollectiveMatmulArguments) -> int:
    """Measures and prints."""
    import jax

    forms, operands = layer_forms(jax.devices(), arguments.rows), layer_operands(arguments)
    wanted = exact(operands)
    errors = {name: error(form, operands, wanted) for name, form in forms.items()}
    times = in_turns({name: timed_jax(form, operands) for name, form in forms.items()}, arguments.turns)
    ratios = {
        name: statistics.median(map(float.__truediv__, seconds, times[REFERENCE])) for name, seconds in times.items()
    }
    result = {
        "device": jax.devices()[0].device_kind,
        "ranks": jax.device_count(),
        "shape": [arguments.rows, arguments.width, arguments.ffn],
        "dtype": arguments.dtype,
        "forms": {name: {"time": ratios[name], "error": errors[name]} for name in forms},
    }
    if arguments.json:
        print(json.dumps(result))
        return 0
    print(f"{result['ranks']} x {result['device']}, {result['shape']} {result['dtype']}")
    print(f"{'form':30}{'time / reference':>18}{'error':>12}")
    for name in forms:
        print(f"{name:30}{ratios[name]:18.3f}{errors[name]:12.1e}")
    return 0


def layer_forms(devices: list[Any], rows: int) -> dict[str, Callable]:
    """By name, the program of a gather, two matmuls and a scatter, with all gradients."""
    import jax
    from jax.sharding import PartitionSpec as P

    from pallas_kernels.collective_matmul import CollectiveTiling, all_gather_matmul, matmul_reduce_scatter

    mesh = jax.make_mesh((len(devices),), ("tensor",), (jax.sharding.AxisType.Auto,), devices=devices)
    specs = (P(None, "tensor"), P(None, "tensor"), P("tensor"))

    def made(backend: str, tiling: CollectiveTiling | None) -> Callable:
        how = {"axes": ("tensor",), "backend": backend, "tiling": tiling}

        def layer(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
            (hidden,) = all_gather_matmul(x, (up,), **how)
            return matmul_reduce_scatter(hidden, down, **how)

        def body(x: jax.Array, up: jax.Array, down: jax.Array) -> tuple:
            y, vjp = jax.vjp(layer, x, up, down)
            return y, *vjp(y)

        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(specs[0], *specs)))

    cuts = [CollectiveTiling(chunks, rings) for chunks in (1, 2, 4) for rings in (1, 2)]
    fitting = [cut for cut in cuts if rows % (len(devices) * cut.parts) == 0]
    rings = {f"ring, {cut.chunks} chunks, {cut.rings} rings": made("ring", cut) for cut in fitting}
    return {REFERENCE: made(REFERENCE, None), **rings}


def layer_operands(arguments: CollectiveMatmulArguments) -> tuple:
    """Activations `[1, s, d]` and weights `[d, f]` and `[f, d]`."""
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)
    rows, width, ffn = arguments.rows, arguments.width, arguments.ffn
    shapes = ((1, rows, width), (width, ffn), (ffn, width))
    return tuple(jnp.asarray(random.normal(size=shape) * shape[-2] ** -0.5, arguments.dtype) for shape in shapes)


def exact(operands: tuple) -> list:
    """The output and the gradients in float64, where the output is its own gradient."""
    import numpy as np

    x, up, down = (np.asarray(operand, np.float64) for operand in operands)
    x = x[0]
    hidden = x @ up
    y = hidden @ down
    back = y @ down.T
    return [y[None], (back @ up.T)[None], x.T @ back, hidden.T @ y]


def error(form: Callable, operands: tuple, wanted: list) -> float:
    """The largest relative error of the output and the gradients."""
    return max(map(relative_error, form(*operands), wanted))


if __name__ == "__main__":
    run_benchmark(
        main,
        CollectiveMatmulArguments,
        name="benchmarks.collective_matmul",
        summary="Times collective matmuls by backend and tiling, on all devices there are.",
        examples=("--rows=2048 --turns=10",),
    )
