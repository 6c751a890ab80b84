"""`python -m benchmarks.grouped_matmul`: a matmul of groups of rows on this CPU, forward and both gradients.

The loop over tiles, XLA's own `lax.ragged_dot`, and one matmul of as many rows with a single matrix take turns in one
process, so that their ratios are right also on a machine that others use.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from benchmarks.command import run_benchmark
from benchmarks.timing import in_turns, timed_jax
from mmjax import cli

ROWS, WIDTH, FFN = 4096, 256, 512
GROUPS = (4, 8, 32, 128)
FORMS = ("one matrix", "tiled", "ragged_dot")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedMatmulArguments(cli.JsonArguments):
    """Flags of the command."""

    rounds: int = cli.flag(5, "Times that each is timed.", metavar="N", parse=cli.integer(1))


def main(arguments: GroupedMatmulArguments) -> int:
    """Measures and prints the time of each form over the time of one matrix."""
    from benchmarks.rows import package_versions

    cases = [measure(groups, arguments.rounds) for groups in GROUPS]
    if arguments.json:
        print(json.dumps({"cases": cases, "versions": package_versions()}))
        return 0
    print("| groups | rows computed / rows | tiled / one matrix | ragged_dot / one matrix |\n|---|---|---|---|")
    for case in cases:
        print(f"| {case['groups']} | {case['padding']:.2f} | {case['tiled']:.1f} | {case['ragged_dot']:.1f} |")
    print(json.dumps(package_versions()))
    return 0


def measure(groups: int, rounds: int) -> dict[str, float]:
    """The median over rounds of each form's seconds over those of one matrix, and the share of rows with padding."""
    import numpy as np

    from pallas_kernels.grouped_matmul import tiled

    operands = draw_operands(groups)
    programs = {form: timed_jax(program(form), operands) for form in FORMS}
    seconds = {form: np.array(times) for form, times in in_turns(programs, rounds).items()}
    size = tiled.tile_rows(ROWS, groups)
    ratios = {form: float(np.median(seconds[form] / seconds["one matrix"])) for form in FORMS[1:]}
    return {"groups": groups, "padding": tiled.tile_count(ROWS, groups, size) * size / ROWS, **ratios}


def draw_operands(groups: int) -> tuple[Any, ...]:
    """Rows, matrices, sizes of groups as a router of even loads draws them, and a cotangent."""
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)
    x, matrices, cotangent = (
        jnp.asarray(random.normal(size=shape), jnp.float32)
        for shape in ((ROWS, WIDTH), (groups, WIDTH, FFN), (ROWS, FFN))
    )
    return x, matrices, jnp.asarray(random.multinomial(ROWS, [1 / groups] * groups), jnp.int32), cotangent


def program(form: str) -> Callable[..., Any]:
    """The product and its two gradients."""
    import functools

    import jax

    from pallas_kernels.grouped_matmul import grouped_matmul

    def run(x: Any, matrices: Any, sizes: Any, cotangent: Any) -> Any:
        if form == "one matrix":
            product, pull = jax.vjp(lambda x, matrix: x @ matrix, x, matrices[0])
        else:
            multiply = functools.partial(grouped_matmul, group_sizes=sizes, implementation=form)
            product, pull = jax.vjp(multiply, x, matrices)
        return product, *pull(cotangent)

    return jax.jit(run)


if __name__ == "__main__":
    run_benchmark(
        main,
        GroupedMatmulArguments,
        name="benchmarks.grouped_matmul",
        summary="Times a matmul of groups of rows on this CPU.",
        examples=("--rounds=9",),
    )
