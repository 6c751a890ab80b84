"""`python -m benchmarks.memory`: what a plan's stages hold as the planner counts it, and as XLA allocates it on H100s.

Compiles the backward of stages of Llama3-70B, InternViT-6B and ViT-22B with each recomputation policy
(`pip install -e '.[aot]'`) and reads `memory_analysis()`; nothing runs. Attention is cuDNN's, as on a GPU. One
microbatch is in flight.
"""

import dataclasses
import json
from typing import TYPE_CHECKING, cast

from benchmarks.command import hide_devices, run_benchmark
from configs.common.errors import UserError
from mmjax import cli
from sharding.specs.layers.layer import RECOMPUTE_POLICIES, RecomputePolicy

if TYPE_CHECKING:
    from benchmarks.memory.cases import Comparison

ATTENTION = "cudnn"
WORST = 0.1
_GB = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryArguments(cli.JsonArguments):
    """Flags of the command."""

    recompute: tuple[str, ...] = cli.flag(
        RECOMPUTE_POLICIES,
        "Recomputation policies.",
        metavar="POLICIES",
        parse=cli.list_of(cli.one_of(*RECOMPUTE_POLICIES)),
    )


def main(arguments: MemoryArguments) -> int:
    """Compiles and prints; 1 if a total is off by more than 10%."""
    import jax

    from benchmarks.h100_schedule.compilation import DEVICES, tensor_mesh
    from benchmarks.memory.cases import CASES, compare
    from mmjax.training.dry_run.targets import missing_plugin

    if reason := missing_plugin():
        raise UserError(reason)
    devices = list(tensor_mesh(DEVICES).devices.flat)
    comparisons = []
    with jax.numpy_dtype_promotion("standard"):  # jax's own attention adds a float32 mask to bfloat16
        for case in CASES:
            for recompute in arguments.recompute:
                for comparison in compare(case, cast("RecomputePolicy", recompute), devices, ATTENTION):
                    comparisons.append(comparison)
                    if not arguments.json:
                        print(_line(comparison), flush=True)
    if arguments.json:
        print(
            json.dumps([comparison._asdict() | {"total_error": comparison.total_error} for comparison in comparisons])
        )
    return int(any(abs(comparison.total_error) > WORST for comparison in comparisons))


def _line(row: "Comparison") -> str:
    return (
        f"| {row.case} | {row.stage} | {row.recompute} | {row.saved / _GB:.2f} | {row.compiled_saved / _GB:.2f} "
        f"| {row.offloaded / _GB:.2f} | {row.compiled_offloaded / _GB:.2f} | {row.saved_error:+.1%} "
        f"| {row.total / _GB:.2f} | {row.compiled_total / _GB:.2f} | {row.total_error:+.1%} |"
    )


if __name__ == "__main__":
    hide_devices()
    run_benchmark(
        main,
        MemoryArguments,
        name="benchmarks.memory",
        summary="Compares what a plan's stages hold with what XLA allocates for them on H100s.",
        examples=("--recompute=none,full",),
    )
