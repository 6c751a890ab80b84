"""Which permutes of ring attention are in flight while its blocks are computed, by the order of issue."""

from mmjax.training.dry_run.scheduled_hlo import Computation, parse_scheduled_hlo
from pallas_kernels.packed_attention import use_attention_implementation
from sharding.runtime.stages.compilation import stage_calls
from sharding.runtime.stages.programs import StagePrograms


def ring_permutes(programs: StagePrograms, attention: str) -> dict[str, tuple[int, int]]:
    """By pass, the number of permutes with a loop over pairs of blocks issued meanwhile, and of all permutes."""
    permutes = {}
    with use_attention_implementation(attention):
        *_, forward, backward = stage_calls((programs,)).calls
        for name, call in (("forward", forward), ("backward", backward)):
            program = parse_scheduled_hlo(call.program.lower(*call.arguments).compile().as_text())
            counts = [_permutes(computation) for computation in program.issued()]
            permutes[name] = (sum(beside for beside, _ in counts), sum(count for _, count in counts))
    return permutes


def _permutes(computation: Computation) -> tuple[int, int]:
    beside, count = 0, 0
    under_way: dict[str, bool] = {}
    for instruction in computation.instructions:
        if instruction.opcode == "collective-permute-start":
            under_way[instruction.name] = False
        elif instruction.opcode == "while":
            under_way = dict.fromkeys(under_way, True)
        elif instruction.opcode == "collective-permute-done":
            beside, count = beside + under_way.pop(instruction.operands[0]), count + 1
    return beside, count
