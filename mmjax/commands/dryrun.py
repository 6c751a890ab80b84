"""`python -m mmjax.dryrun`: compiles every distinct program of a plan for GPUs that are not here; nothing runs."""

import dataclasses
import functools
import json
import os
import pathlib
from typing import TYPE_CHECKING

from configs.common.whole_files import naming
from mmjax import cli
from mmjax.planning.plan_file import PlanFileArguments, read_plan_file
from mmjax.planning.problem_inputs import ProblemInputs, print_purpose
from mmjax.training.dry_run.targets import TARGETS, check_target

if TYPE_CHECKING:
    from sharding.plans.plan import Plan

DOES_NOT_FIT = 1
"""Exit code where the programs take more memory than a device has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DryRunArguments(PlanFileArguments, cli.JsonArguments):
    """Flags of the command."""

    target: str = cli.flag(
        "h100", f"GPU to compile for: {', '.join(TARGETS)}.", metavar="GPU", parse=cli.one_of(*TARGETS)
    )
    page: str = cli.flag(
        "", "HTML file to write the figures to; it needs no other file.", metavar="FILE", parse=cli.output_file
    )


def prepare(arguments: DryRunArguments) -> cli.Work:
    """Reads the plan and the problem."""
    read = read_plan_file(arguments)
    check_target(arguments.target)
    return functools.partial(dryrun, arguments, *read)


def dryrun(arguments: DryRunArguments, plan: "Plan", inputs: ProblemInputs, devices: int) -> int:
    """Compiles the programs, writes the page if asked, and prints the figures; 1 if they do not fit."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no device of this host is needed
    from configs.common.console import plain_console
    from mmjax.planning.batch_shapes import batch_shapes
    from mmjax.reporting.dry_run_page import dry_run_page
    from mmjax.reporting.dry_run_tables import dry_run_document, print_dry_run
    from mmjax.training.dry_run.dry_run import dry_run
    from mmjax.training.metrics.activity import COMPILING, display_activity, progress_console
    from sharding.plans.unit_checks import check_positions

    problem, console = inputs.problem(devices), plain_console()
    check_positions(plan.units, problem.graph, problem.row_positions)
    print_purpose(arguments.plan, plan, inputs, problem)
    shapes = batch_shapes(inputs.config, problem)
    with display_activity(COMPILING, progress_console(console, arguments.json)) as show:
        run = dry_run(problem, plan, inputs.config.model, shapes, arguments.target, inputs.config.optimizer, show)
    title = f"Dry run of {problem.configuration.title}, plan {pathlib.Path(arguments.plan).name}"
    if arguments.page:
        with naming(arguments.page):
            pathlib.Path(arguments.page).write_text(dry_run_page(run, title), encoding="utf-8")
    if arguments.json:
        print(json.dumps({"plan": json.loads(plan.to_json()), **dry_run_document(run)}))
    else:
        print_dry_run(run, console)
        if arguments.page:
            print(f"Written to {arguments.page}")
    return 0 if run.fits else DOES_NOT_FIT


COMMAND = cli.Command(
    name="mmjax.dryrun",
    summary="Compiles a plan for GPUs that are not here: memory, FLOPs.",
    examples=("--plan=plan.json --target=h100 --page=dry_run.html", "--plan=plan.json --target=h200 --json"),
    arguments=DryRunArguments,
    prepare=prepare,
)
