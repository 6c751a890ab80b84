"""How many bytes of a program's collectives no matmul runs beside, alone and in a bundle."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.bundles.colocated_stages import Kind, Unit, compile_call, op_calls
from benchmarks.h100_schedule.report import GEMMS, H100, MIB, seconds_at_peak
from mmjax.training.dry_run.compiled_program import ProgramFigures, read_program
from mmjax.training.dry_run.overlap import Collective
from sharding.runtime.stages.bundles import BundledPrograms


@dataclasses.dataclass(frozen=True, kw_only=True)
class BundleCase:
    """Two ops that run in one program.

    Attributes:
        first, second: (unit, kind) of either.
        tp: Tensor ranks of both units; the other devices are replicas.
    """

    first: tuple[Unit, Kind]
    second: tuple[Unit, Kind]
    tp: int = 8

    def __str__(self) -> str:
        (unit, kind), (other_unit, other_kind) = self.first, self.second
        return f"{kind} {unit} + {other_kind} {other_unit}, tp {self.tp}"


CASES = (
    BundleCase(first=("backbone", "forward"), second=("vision", "forward")),
    BundleCase(first=("backbone", "backward"), second=("vision", "forward")),
    BundleCase(first=("backbone", "forward"), second=("vision", "backward")),
    BundleCase(first=("backbone", "backward"), second=("vision", "backward")),
    BundleCase(first=("backbone", "gather"), second=("vision", "forward"), tp=4),
    BundleCase(first=("backbone", "reduce"), second=("vision", "backward"), tp=4),
)


def exposed_seconds(program: ProgramFigures) -> float:
    """Seconds that sending takes longer than the matmuls beside it, by the data sheet of an H100.

    Attention kernels, of which a program says no shapes, count as nothing.
    """
    return sum(times * _exposed_seconds(collective) for collective, times in program.collectives)


def _exposed_seconds(collective: Collective) -> float:
    """Seconds not hidden by matmuls; as in a ring, gathers and scatters send all but a device's own shard."""
    sent = 2 * collective.size if collective.kind == "all-reduce" else collective.size - collective.smaller
    link = H100.intra_node
    return max(0.0, sent / link.bandwidth + link.latency - seconds_at_peak(collective.flops))


@functools.cache
def exposure_alone(case: BundleCase, gemms: str) -> tuple[ProgramFigures, ProgramFigures]:
    """Exposure of the two programs, one after the other.

    Args:
        case: The ops.
        gemms: A key of `GEMMS`.
    """
    calls = op_calls(case.tp)
    first, second = (read_program(compile_call(calls[op], GEMMS[gemms])) for op in (case.first, case.second))
    return first, second


@functools.cache
def exposure_in_bundle(case: BundleCase, gemms: str) -> ProgramFigures:
    """Exposure of the bundle."""
    calls = op_calls(case.tp)
    bundle = BundledPrograms().bundle(calls[case.first], calls[case.second])
    return read_program(compile_call(bundle, GEMMS[gemms]))


def bundle_rows(cases: Sequence[BundleCase]) -> list[Mapping[str, Any]]:
    """Rows of exposed bytes, of which a bundle should have fewer, and of temporary memory."""
    rows: list[Mapping[str, Any]] = []
    for case in cases:
        for gemms in GEMMS:
            alone, bundled = exposure_alone(case, gemms), exposure_in_bundle(case, gemms)
            exposed = sum(program.exposed_bytes for program in alone)
            seconds = sum(exposed_seconds(program) for program in alone)
            temporary = max(program.temporary_bytes for program in alone)
            rows += [
                _row(f"{case}, {gemms}: exposed MiB", bundled.exposed_bytes / MIB, exposed / MIB, has_goal=True),
                _row(f"{case}, {gemms}: exposed ms", exposed_seconds(bundled) * 1e3, seconds * 1e3, has_goal=True),
                _row(f"{case}, {gemms}: temporary MiB", bundled.temporary_bytes / MIB, temporary / MIB, has_goal=False),
            ]
    return rows


def _row(name: str, value: float, alone: float, *, has_goal: bool) -> Mapping[str, Any]:
    goal, met = (alone, value < alone) if has_goal else (None, None)
    return {"name": name, "value": value, "goal": goal, "met": met, "alone": alone}
