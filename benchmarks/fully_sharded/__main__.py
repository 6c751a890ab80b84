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
from configs.common.errors import UserError
from mmjax import cli

if TYPE_CHECKING:
    from benchmarks.fully_sharded.schedules import StageSchedule

KINDS = ("all-gather", "reduce-scatter")
_MIB = 2**20


def main(arguments: cli.JsonArguments) -> int:
    """Compiles and prints."""
    from benchmarks.fully_sharded.schedules import OPTIONS, stage_schedule
    from mmjax.training.dry_run.targets import missing_plugin

    if reason := missing_plugin():
        raise UserError(reason)
    cases = itertools.product(("none", "full"), ("forward", "backward"), OPTIONS)
    schedules = [stage_schedule(recompute, pass_name, options) for recompute, pass_name, options in cases]
    print(json.dumps(list(map(_figures, schedules))) if arguments.json else _table(schedules))
    return 0


def _figures(schedule: "StageSchedule") -> Mapping[str, str | int]:
    exchanged = {f"{kind}_bytes": schedule.bytes_of(kind) for kind in KINDS}
    exposed = {f"exposed_{kind}_bytes": schedule.exposed_bytes(kind) for kind in KINDS}
    named = {"recompute": schedule.recompute, "pass": schedule.of_pass, "options": schedule.options}
    return named | exchanged | exposed | {"temporary_bytes": schedule.temporary_bytes}


def _table(schedules: Iterable["StageSchedule"]) -> str:
    lines = [
        "| recompute | pass | options | gathered, of which exposed (MiB) | scattered, of which exposed (MiB) "
        "| temporary (MiB) |",
        "|---|---|---|---|---|---|",
    ]
    for schedule in schedules:
        exchanged = " | ".join(
            f"{schedule.bytes_of(kind) / _MIB:,.0f}, {schedule.exposed_bytes(kind) / _MIB:,.0f}" for kind in KINDS
        )
        temporary = f"{schedule.temporary_bytes / _MIB:,.0f}"
        lines.append(f"| {schedule.recompute} | {schedule.of_pass} | {schedule.options} | {exchanged} | {temporary} |")
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
