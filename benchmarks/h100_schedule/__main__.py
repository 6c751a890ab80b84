"""`python -m benchmarks.h100_schedule`: which collectives XLA hides on H100s, without an H100.

Compiles a layer of Llama3-70B on one row of 8,192 tokens in bfloat16, forward and backward, for ranks of one host
(`pip install -e '.[aot]'`), and prints for each program what it exposes and what memory it takes, then what every
collective of the rings is hidden by. Times are computed from the data sheet, not measured: nothing runs.
"""

import itertools
import json
import os

from absl import flags

from configs.errors import UserError
from mmjax import cli

_RANKS = flags.DEFINE_multi_integer("ranks", [4, 8], "Ranks of tensor parallelism.", lower_bound=2, upper_bound=8)
_PARTS = flags.DEFINE_multi_string("part", ["matmuls", "layer"], "What to compile: matmuls or layer. Repeatable.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")


def main() -> int:
    """Compiles and prints; 1 if a permute other than a program's first is exposed."""
    from benchmarks.h100_schedule.compilation import missing_plugin
    from benchmarks.h100_schedule.programs import COMPARED_COLLECTIVES, PROGRAM_PARTS, ProgramCase
    from benchmarks.h100_schedule.report import GEMMS, format_collectives, format_overview, make_report

    if reason := missing_plugin():
        raise UserError(reason)
    if unknown := set(_PARTS.value) - set(PROGRAM_PARTS):
        raise UserError(f"--part={unknown.pop()}: choose from {', '.join(PROGRAM_PARTS)}")
    programs = itertools.product(_PARTS.value, _RANKS.value, (False, True), COMPARED_COLLECTIVES, GEMMS)
    reports = [
        make_report(ProgramCase(part, ranks, backward, how), gemms) for part, ranks, backward, how, gemms in programs
    ]
    if _JSON.value:
        print(json.dumps([of.as_json() for of in reports]))
    else:
        print(format_overview(reports))
        for of in reports:
            if of.permutes and of.gemms == "cuBLAS":
                title = f"{of.case.part}, tp {of.case.ranks}, {'backward' if of.case.backward else 'forward'}"
                print(f"\n## {title}\n\n{format_collectives(of)}")
    exposed = [permute for of in reports for permute in of.permutes[1:] if not permute.hidden]
    return 1 if exposed else 0


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"  # what it compiles for is not here
    cli.run(main)
