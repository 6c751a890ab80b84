"""`python -m mmjax.simulate`: simulates a step of a plan: how long it takes, where devices idle and why, as a page."""

import dataclasses
import functools
import json
import pathlib
from typing import TYPE_CHECKING

from configs.common.whole_files import naming
from mmjax import cli
from mmjax.planning.plan_file import PlanFileArguments, read_plan_file
from mmjax.planning.problem_inputs import ProblemInputs, print_purpose

if TYPE_CHECKING:
    from sharding.plans.plan import Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulateArguments(PlanFileArguments, cli.JsonArguments):
    """Flags of the command."""

    page: str = cli.flag(
        "", "HTML file to draw the timeline in; it needs no other file.", metavar="FILE", parse=cli.output_file
    )
    trace: str = cli.flag(
        "", "File to write the timeline to, as a trace for ui.perfetto.dev.", metavar="FILE", parse=cli.output_file
    )


def prepare(arguments: SimulateArguments) -> cli.Work:
    """Reads the plan and the problem."""
    read = read_plan_file(arguments)
    return functools.partial(simulate, arguments, *read)


def simulate(arguments: SimulateArguments, plan: "Plan", inputs: ProblemInputs, devices: int) -> int:
    """Simulates a step, writes the page and the trace if asked, and prints the step's times."""
    from configs.common.console import plain_console
    from mmjax.planning.report import print_timeline
    from mmjax.training.metrics.activity import SIMULATING, display_call
    from sharding.planners.infeasible import check_gathered_layers
    from sharding.plans.unit_checks import check_positions
    from sharding.simulation.pages.html_page import html_page
    from sharding.simulation.pages.perfetto import perfetto_trace
    from sharding.simulation.summary import timeline_summary

    problem = inputs.problem(devices)
    check_positions(plan.units, problem.graph, problem.row_positions)
    check_gathered_layers(problem, plan)
    print_purpose(arguments.plan, plan, inputs, problem)
    with display_call() as display:
        display.show(SIMULATING, 0, 1)
        timeline = problem.simulate(plan)
    where = f"{plan.device_count:,} devices of {problem.cluster.name}"
    title = f"Simulated step of {problem.configuration.title} on {where}, plan {pathlib.Path(arguments.plan).name}"
    written = []
    for path, text in (
        (arguments.page, lambda: html_page(timeline, title)),
        (arguments.trace, lambda: perfetto_trace(timeline)),
    ):
        if path:
            with naming(path):
                pathlib.Path(path).write_text(text(), encoding="utf-8")
            written.append(path)
    if arguments.json:
        print(json.dumps({"plan": json.loads(plan.to_json()), **timeline_summary(timeline)}))
        return 0
    print_timeline(timeline, plan, problem, plain_console())
    if written:
        print(f"Written to {', '.join(written)}")
    return 0


COMMAND = cli.Command(
    name="mmjax.simulate",
    summary="Simulates a plan's step: its time, and why devices idle.",
    examples=("--plan=plan.json --page=timeline.html", "--plan=plan.json --cluster=h100"),
    arguments=SimulateArguments,
    prepare=prepare,
)
