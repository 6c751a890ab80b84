"""`python -m benchmarks.context_parallel`: how even the work of context-parallel ranks is, and what they hold.

The first section deals packed rows like LLaVA's to ranks and counts blocks of attention. The second compiles layers of
Llama3-8B on long rows for this machine's CPU, or for H100s (`pip install -e '.[aot]'`); nothing runs.
"""

import dataclasses
import os

from benchmarks.command import hide_devices, run_benchmark
from mmjax import cli

DEVICES = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContextParallelArguments(cli.JsonArguments):
    """Flags of the command."""

    h100: bool = cli.flag(False, "Compile for H100s instead of this machine's CPU.")


def main(arguments: ContextParallelArguments) -> int:
    """Prints the rows. Returns 0 if every goal is met, else 1."""
    from benchmarks.context_parallel import blocks, memory
    from benchmarks.rows import report

    rows = [*blocks.measure(), *memory.measure(arguments.h100)]
    if arguments.h100:
        rows += memory.measure_overlap()
    return report(rows, "note", digits=4, as_json=arguments.json)


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    hide_devices()
    run_benchmark(
        main,
        ContextParallelArguments,
        name="benchmarks.context_parallel",
        summary="Counts the work of context-parallel ranks and compiles what they hold.",
        examples=("--json", "--h100"),
    )
