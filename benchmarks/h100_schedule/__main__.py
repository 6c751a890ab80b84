"""`python -m benchmarks.h100_schedule`: which collectives XLA hides on H100s, without an H100.

Compiles a layer of Llama3-70B on one row of 8,192 tokens in bfloat16, forward and backward, for ranks of one host
(`pip install -e '.[aot]'`), and prints for each program what it exposes and what memory it takes, then what every
collective of the rings is hidden by. Times are computed from the data sheet, not measured: nothing runs.
"""

import dataclasses
import itertools
import json

from benchmarks.command import hide_devices, run_benchmark
from configs.common.errors import UserError
from mmjax import cli


@dataclasses.dataclass(frozen=True, kw_only=True)
class H100ScheduleArguments(cli.JsonArguments):
    """Flags of the command."""

    ranks: tuple[int, ...] = cli.flag(
        (4, 8), "Ranks of tensor parallelism.", metavar="RANKS", parse=cli.list_of(cli.integer(2, 8))
    )
    part: tuple[str, ...] = cli.flag(
        ("matmuls", "layer"), "What to compile.", metavar="PARTS", parse=cli.list_of(cli.one_of("matmuls", "layer"))
    )


def main(arguments: H100ScheduleArguments) -> int:
    """Compiles and prints; 1 if a permute other than a program's first is exposed."""
    from benchmarks.h100_schedule.programs import COMPARED_COLLECTIVES, ProgramCase
    from benchmarks.h100_schedule.report import GEMMS, format_collectives, format_overview, make_report
    from mmjax.training.dry_run.targets import missing_plugin

    if reason := missing_plugin():
        raise UserError(reason)
    programs = itertools.product(arguments.part, arguments.ranks, (False, True), COMPARED_COLLECTIVES, GEMMS)
    reports = [
        make_report(ProgramCase(part, ranks, backward, how), gemms) for part, ranks, backward, how, gemms in programs
    ]
    if arguments.json:
        print(json.dumps([report.as_json() for report in reports]))
    else:
        print(format_overview(reports))
        for report in reports:
            if report.permutes and report.gemms == "cuBLAS":
                title = (
                    f"{report.case.part}, tp {report.case.ranks}, {'backward' if report.case.backward else 'forward'}"
                )
                print(f"\n## {title}\n\n{format_collectives(report)}")
    exposed = [permute for report in reports for permute in report.permutes[1:] if not permute.hidden]
    return 1 if exposed else 0


if __name__ == "__main__":
    hide_devices()
    run_benchmark(
        main,
        H100ScheduleArguments,
        name="benchmarks.h100_schedule",
        summary="Compiles for H100s, and reports which collectives XLA hides there.",
        examples=("--ranks=4 --part=layer",),
    )
