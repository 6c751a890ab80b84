"""A dry run made by hand, of two programs on 16 devices."""

from mmjax.training.dry_run.compiled_program import ProgramFigures
from mmjax.training.dry_run.device_memory import PLANNED_KINDS, DeviceMemory
from mmjax.training.dry_run.dry_run import CompiledProgram, DryRun
from mmjax.training.dry_run.overlap import Collective, Matmul, MatmulProduct


def gather(name: str, size: int, synchronous: bool = False, covered: bool = False) -> Collective:
    return Collective(
        name=name,
        kind="all-gather",
        operation="layers/mlp",
        computation="body",
        size=size,
        smaller=size // 8,
        synchronous=synchronous,
        concurrent_matmuls=(Matmul("dot", (MatmulProduct((4, 8), 16),), "", "body"),) if covered else (),
    )


def made_dry_run(room: float = 80e9) -> DryRun:
    figures = ProgramFigures(
        compile_seconds=2.5,
        output_bytes=0,
        host_bytes=0,
        temporary_bytes=3 * 10**9,
        flops=15 * 10**12,
        collectives=(
            (gather("a", 10**6), 32),
            (gather("b", 10**6), 32),
            (gather("c", 2 * 10**6, covered=True), 32),
            (gather("d", 10**9, synchronous=True), 1),
        ),
    )
    programs = (
        CompiledProgram(name="backbone_stage1_forward", stands_for=6, figures=figures, model_flops=10e12),
        CompiledProgram(name="backbone_stage1_update", stands_for=6, figures=figures, model_flops=0.0),
    )
    memory = DeviceMemory(
        stages=("backbone 1",),
        planned=dict.fromkeys(PLANNED_KINDS, 11e9),
        planned_full=70e9,
        compiled=dict.fromkeys(PLANNED_KINDS, 12e9),
        room=room,
    )
    return DryRun(target="h100", devices=16, stages=7, programs=programs, memory=(memory,))
