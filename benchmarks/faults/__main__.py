"""`python -m benchmarks.faults`: randomized faults over runs of 2 to 4 local processes under `mmjax launch`.

Real processes, real files: processes are killed and frozen, checkpoints torn, disks full, producers of batches killed,
images damaged, and runs continued with fewer processes. Every run must end as the undisturbed one does.
"""

import dataclasses
import json
import os
import pathlib
import signal
import sys
import tempfile

from benchmarks.command import run_benchmark
from mmjax import cli


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultArguments(cli.JsonArguments):
    """Flags of the command."""

    faults: int = cli.flag(200, "Faults in all.", metavar="N", parse=cli.integer(1))
    seed: int = cli.flag(0, "Seed of kinds, moments, processes and files.", metavar="N", parse=cli.integer(0))


def main(arguments: FaultArguments) -> int:
    """Prints each run on standard error and the figures at the end; 1 if a goal is missed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that launchers and producers end too
    os.environ["JAX_PLATFORMS"] = "cpu"  # end states are compared here, beside runs on simulated devices
    from benchmarks.faults.campaign import Campaign
    from benchmarks.faults.launched_run import kill_everything_started
    from benchmarks.faults.report import describe_run, goal_rows, kind_rows, kind_table
    from benchmarks.rows import every_goal_met, package_versions, print_table

    folder = pathlib.Path(tempfile.mkdtemp(prefix="mmjax-faults-"))
    campaign = Campaign(folder, lambda outcome: print(describe_run(outcome), file=sys.stderr, flush=True))
    try:
        outcomes = campaign.run(arguments.faults, arguments.seed)
    finally:
        kill_everything_started()
    rows = goal_rows(outcomes, arguments.faults)
    kinds = kind_rows([fault for outcome in outcomes for fault in outcome.faults])
    if arguments.json:
        runs = [dataclasses.asdict(outcome) for outcome in outcomes]
        print(json.dumps({"rows": rows, "kinds": kinds, "runs": runs, "versions": package_versions()}))
    else:
        print_table(rows, "note", 4)
        print(kind_table(kinds))
    if not every_goal_met(rows):
        print(f"the files of the runs that missed a goal are in {folder}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    run_benchmark(
        main,
        FaultArguments,
        name="benchmarks.faults",
        summary="Lets randomized faults hit runs of several processes, and compares how they end.",
        examples=("--faults=20 --seed=1",),
    )
