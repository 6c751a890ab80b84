"""Tables of the schedule compiled for H100s: which matmuls hide which collectives of a layer."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.h100_schedule.compilation import CUBLAS, CompiledProgram, compile_for_h100
from benchmarks.h100_schedule.programs import ProgramCase, build_program
from configs.clusters import CLUSTERS
from mmjax.training.dry_run.overlap import Collective, Matmul, covered_by, find_collectives, find_matmuls

GEMMS = {"XLA": {}, "cuBLAS": CUBLAS}
"""Compiler options by who computes the matmuls: XLA's own kernels, its choice where it cannot try, or cuBLAS."""

MIB = 2**20
H100 = CLUSTERS["h100"]

_SENT = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0}


@dataclasses.dataclass(frozen=True)
class ScheduleReport:
    """The schedule of one compiled program: its collectives and matmuls."""

    case: ProgramCase
    gemms: str
    temporary_bytes: int
    collectives: tuple[Collective, ...]
    matmuls: tuple[Matmul, ...]

    @property
    def exposed(self) -> list[Collective]:
        """Collectives that no matmul hides."""
        return [collective for collective in self.collectives if not collective.hidden]

    @property
    def permutes(self) -> list[Collective]:
        """The permutes, which are the steps of rings."""
        return [collective for collective in self.collectives if collective.kind == "collective-permute"]

    def as_json(self) -> dict[str, Any]:
        """All figures as one JSON object."""
        issued = [
            dataclasses.asdict(collective) | {"hidden": collective.hidden, "flops": collective.flops}
            for collective in self.collectives
        ]
        flops = sum(matmul.flops for matmul in self.matmuls)
        return dataclasses.asdict(self.case) | {
            "gemms": self.gemms,
            "temporary_bytes": self.temporary_bytes,
            "matmul_flops": flops,
            "issued": issued,
        }


def make_report(case: ProgramCase, gemms: str) -> ScheduleReport:
    """Compiles a program and reads its schedule."""
    compiled: CompiledProgram = compile_for_h100(*build_program(case), GEMMS[gemms])
    collectives, products = find_collectives(compiled.program), find_matmuls(compiled.program)
    return ScheduleReport(case, gemms, compiled.temporary_bytes, tuple(collectives), tuple(products))


def bytes_sent(collective: Collective, ranks: int) -> float:
    """Bytes that a device sends. A permute sends all its bytes, another collective the bytes of an optimal ring."""
    if collective.kind == "collective-permute":
        return float(collective.size)
    return _SENT[collective.kind] * collective.size * (ranks - 1) / ranks


def seconds_to_send(collective: Collective, ranks: int) -> float:
    """Seconds at the link's bandwidth in the data sheet, with its latency once."""
    return bytes_sent(collective, ranks) / H100.intra_node.bandwidth + H100.intra_node.latency


def seconds_at_peak(flops: int) -> float:
    """The least seconds in which an H100 computes so many floating-point operations."""
    return flops / H100.peak_flops


def format_overview(reports: Iterable[ScheduleReport]) -> str:
    """A table with one line for each program."""
    rows = [
        (
            f"{report.case.part}, tp {report.case.ranks}, {'backward' if report.case.backward else 'forward'}",
            report.case.collectives,
            report.gemms,
            _counted(report.collectives),
            _counted(report.exposed) or "none",
            f"{sum(bytes_sent(collective, report.case.ranks) for collective in report.exposed) / MIB:,.0f}",
            f"{sum(matmul.flops for matmul in report.matmuls) / 1e12:.2f}",
            f"{report.temporary_bytes / MIB:,.0f}",
        )
        for report in reports
    ]
    head = "program", "collectives", "gemms", "issued", "exposed", "MiB sent, exposed", "TFLOP", "temporary MiB"
    return format_table(head, rows)


def format_collectives(report: ScheduleReport) -> str:
    """A table with one line for equal collectives of a program, in the order in which the first is issued."""
    ranks = report.case.ranks
    lines = [
        (
            collective.kind,
            f"{collective.size / MIB:,.2f}".rstrip("0").rstrip("."),
            covered_by(collective) or "**exposed**",
            f"{seconds_to_send(collective, ranks) * 1e6:,.0f}",
            f"{seconds_at_peak(collective.flops) * 1e6:,.0f}" if collective.hidden else "",
        )
        for collective in report.collectives
    ]
    rows = [(str(count), *line) for line, count in collections.Counter(lines).items()]
    return format_table(("times", "collective", "MiB", "hidden by", "us to send", "us of matmul at peak"), rows)


def _counted(collectives: Sequence[Collective]) -> str:
    counted = collections.Counter(collective.kind for collective in collectives)
    return ", ".join(f"{count} {kind}" for kind, count in counted.items())


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under a head, in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
