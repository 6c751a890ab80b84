"""`python -m benchmarks.collective_matmul`: collective matmuls by backend and tiling, on all devices there are.

Every form runs forward and backward at the shapes of a layer's two matmuls, and the forms take turns. The command
prints the time of each form over the reference's, and the distance of its results from float64 as a ratio of norms.
The fastest tiling on a kind of device belongs into `pallas_kernels.collective_matmul.tiling.MEASURED_TILINGS`. On a CPU
the devices share the cores, so nothing can be hidden there, and the ratio shows what the steps of a ring cost.
"""

import json
import statistics
from collections.abc import Callable
from typing import Any

from absl import flags

from benchmarks.relative_error import relative_error
from benchmarks.timing import in_turns, timed_jax
from mmjax import cli

_ROWS = flags.DEFINE_integer("rows", 1024, "Positions of a row of the batch, of all ranks together.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 512, "Width of the model.", lower_bound=1)
_FFN = flags.DEFINE_integer("ffn", 2048, "Feed-forward width, of all ranks together.", lower_bound=1)
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Precision.")
_TURNS = flags.DEFINE_integer("turns", 20, "Timed runs of each form.", lower_bound=1)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")

REFERENCE = "reference"


def main() -> int:
    """Measures and prints."""
    cli.parse_gin("quickstart.gin")  # for its host devices
    import jax

    forms, operands = layer_forms(jax.devices()), layer_operands()
    wanted = exact(operands)
    errors = {name: error(form, operands, wanted) for name, form in forms.items()}
    times = in_turns({name: timed_jax(form, operands) for name, form in forms.items()}, _TURNS.value)
    ratios = {name: statistics.median(map(float.__truediv__, of, times[REFERENCE])) for name, of in times.items()}
    result = {
        "device": jax.devices()[0].device_kind,
        "ranks": jax.device_count(),
        "shape": [_ROWS.value, _WIDTH.value, _FFN.value],
        "dtype": _DTYPE.value,
        "forms": {name: {"time": ratios[name], "error": errors[name]} for name in forms},
    }
    if _JSON.value:
        print(json.dumps(result))
        return 0
    print(f"{result['ranks']} x {result['device']}, {result['shape']} {result['dtype']}")
    print(f"{'form':30}{'time / reference':>18}{'error':>12}")
    for name in forms:
        print(f"{name:30}{ratios[name]:18.3f}{errors[name]:12.1e}")
    return 0


def layer_forms(devices: list[Any]) -> dict[str, Callable]:
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
    fitting = [cut for cut in cuts if _ROWS.value % (len(devices) * cut.parts) == 0]
    rings = {f"ring, {cut.chunks} chunks, {cut.rings} rings": made("ring", cut) for cut in fitting}
    return {REFERENCE: made(REFERENCE, None), **rings}


def layer_operands() -> tuple:
    """Activations `[1, s, d]` and weights `[d, f]` and `[f, d]`."""
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)
    shapes = ((1, _ROWS.value, _WIDTH.value), (_WIDTH.value, _FFN.value), (_FFN.value, _WIDTH.value))
    return tuple(jnp.asarray(random.normal(size=shape) * shape[-2] ** -0.5, _DTYPE.value) for shape in shapes)


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
    cli.run(main)
