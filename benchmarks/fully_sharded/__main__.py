"""`python -m benchmarks.fully_sharded`: which collectives of a fully sharded layer overlap with matmuls on H100s.

Compiles a stage of ten layers of Llama3-70B whose weights eight H100s divide, on a row of 8,192 tokens each
(`pip install -e '.[aot]'`), and prints for one iteration of the loop over its layers what is gathered and scattered and
how much of that no matmul runs beside. Nothing runs.
"""

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from benchmarks.command import hide_devices, run_benchmark
from configs.errors import UserError
from mmjax import cli

if TYPE_CHECKING:
    from benchmarks.fully_sharded.schedules import StageSchedule

KINDS = ("all-gather", "reduce-scatter")
_MIB = 2**20


def main(arguments: cli.JsonArguments) -> int:
    """Compiles and prints."""
    from benchmarks.fully_sharded.schedules import OPTIONS, stage_schedule
    from benchmarks.h100_schedule.compilation import missing_plugin

    if reason := missing_plugin():
        raise UserError(reason)
    cases = itertools.product(("none", "full"), ("forward", "backward"), OPTIONS)
    found = [stage_schedule(recompute, of_pass, options) for recompute, of_pass, options in cases]
    print(json.dumps(list(map(_figures, found))) if arguments.json else _table(found))
    return 0


def _figures(of: "StageSchedule") -> Mapping[str, str | int]:
    exchanged = {f"{kind}_bytes": of.bytes_of(kind) for kind in KINDS}
    exposed = {f"exposed_{kind}_bytes": of.exposed_bytes(kind) for kind in KINDS}
    named = {"recompute": of.recompute, "pass": of.of_pass, "options": of.options}
    return named | exchanged | exposed | {"temporary_bytes": of.temporary_bytes}


def _table(found: Iterable["StageSchedule"]) -> str:
    lines = [
        "| recompute | pass | options | gathered, of which exposed (MiB) | scattered, of which exposed (MiB) "
        "| temporary (MiB) |",
        "|---|---|---|---|---|---|",
    ]
    for of in found:
        exchanged = " | ".join(
            f"{of.bytes_of(kind) / _MIB:,.0f}, {of.exposed_bytes(kind) / _MIB:,.0f}" for kind in KINDS
        )
        temporary = f"{of.temporary_bytes / _MIB:,.0f}"
        lines.append(f"| {of.recompute} | {of.of_pass} | {of.options} | {exchanged} | {temporary} |")
    return "\n".join(lines)


if __name__ == "__main__":
    hide_devices()
    run_benchmark(
        main,
        cli.JsonArguments,
        name="benchmarks.fully_sharded",
        summary="Compiles fully sharded layers for H100s, and reports which of their collectives XLA hides there.",
        examples=("--json",),
    )
