"""Plans timed on the devices of this process: measured seconds of a step beside the simulated ones, and the fastest.

`mmjax.time_plans` and `mmjax.plan --timed_plans` call it.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
from rich.console import Console

from configs.common.tables import print_table, report_table
from mmjax.planning.automatic import remark_on_devices
from mmjax.training.config import TrainConfig
from mmjax.training.profiling.step_times import StepTimes, time_steps
from sharding.costs.published_errors import StepRange
from sharding.frames import make_frame
from sharding.html import numbers
from sharding.html.elements import element, join
from sharding.html.elements import table as html_table
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.simulation.pages.html_tables import range_in_figures
from sharding.simulation.timeline import Timeline

if TYPE_CHECKING:
    import pandas

COLUMNS = ("plan", "#devices", "#median", "#shortest", "#longest", "#simulated")
"""Headings of a table for people."""

RANGE_COLUMN = "#simulated range"
"""Heading of one more column, where simulated steps have a range."""

NO_SECONDS = "·"
"""Text of a cell without a figure."""


@dataclasses.dataclass(frozen=True, eq=False)
class TimedPlan:
    """A plan, its simulated step and its measured steps.

    Attributes:
        name: Its name.
        plan: The plan.
        simulated: Seconds of a step by the simulation; infinite for a plan that cannot hold the model or the batch.
        times: Seconds of its steps, or why it could not run.
        simulated_range: The range of the simulated step; None without one.
    """

    name: str
    plan: Plan
    simulated: float
    times: StepTimes
    simulated_range: StepRange | None = None

    def figures(self) -> dict[str, Any]:
        """The figures for documents and frames: seconds, None where there are none, and the error."""
        seconds = self.times.seconds
        return {
            "name": self.name,
            "devices": self.plan.device_count,
            "simulated_seconds": self.simulated if math.isfinite(self.simulated) else None,
            "simulated_range_seconds": self.simulated_range and self.simulated_range[:2],
            "median_seconds": self.times.median if seconds else None,
            "shortest_seconds": min(seconds, default=None),
            "longest_seconds": max(seconds, default=None),
            "error": self.times.error,
        }

    def cells(self) -> tuple[str, ...]:
        """The cells of its line in a table for people, by `COLUMNS` and `RANGE_COLUMN`."""
        figures = self.figures()
        seconds = [figures[f"{name}_seconds"] for name in ("median", "shortest", "longest", "simulated")]
        return (
            self.name,
            numbers.count(self.plan.device_count),
            *(NO_SECONDS if value is None else numbers.seconds(value) for value in seconds),
            range_in_figures(self.simulated_range) or NO_SECONDS,
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TimedPlans:
    """Plans that were timed. In a notebook it shows itself as a table.

    Attributes:
        plans: The plans, by the median of their measured seconds; plans that could not run are last.
        measured_on: Kind of the devices.
        simulated_on: Name of the cluster of the simulation.
        remark: Assumptions of the simulation about devices that mmjax does not know; empty for known ones.
    """

    plans: tuple[TimedPlan, ...]
    measured_on: str
    simulated_on: str
    remark: str = ""

    @property
    def fastest(self) -> TimedPlan:
        """The plan with the shortest median; raises PlanError with the first one's error if none could run."""
        first = self.plans[0]
        if first.times.error:
            raise PlanError(f"none of the {len(self.plans)} plans could run; {first.name}: {first.times.error}")
        return first

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of the table."""
        has_ranges = any(timed.simulated_range for timed in self.plans)
        return (*COLUMNS, RANGE_COLUMN) if has_ranges else COLUMNS

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table, a tuple for each plan."""
        return [timed.cells()[: len(self.columns)] for timed in self.plans]

    @property
    def caption(self) -> str:
        """The caption of the table."""
        steps = max(len(timed.times.seconds) for timed in self.plans)
        return (
            f"Seconds a step, measured on {self.measured_on} over {steps} steps, and simulated on {self.simulated_on}"
        )

    @property
    def remarks(self) -> list[str]:
        """The remark, if there is one, and a line for every plan that could not run."""
        errors = [f"{timed.name} could not run: {timed.times.error}" for timed in self.plans if timed.times.error]
        return [self.remark, *errors] if self.remark else errors

    def document(self) -> dict[str, Any]:
        """Returns all figures and plans as a JSON document."""
        plans = [timed.figures() | {"plan": json.loads(timed.plan.to_json())} for timed in self.plans]
        return {
            "measured_on": self.measured_on,
            "simulated_on": self.simulated_on,
            "remark": self.remark,
            "plans": plans,
        }

    def to_frame(self) -> "pandas.DataFrame":
        """A frame with a row for every plan; raises UserError without pandas."""
        rows = [timed.figures() for timed in self.plans]
        return make_frame({name: [row[name] for row in rows] for name in rows[0]})

    def __repr__(self) -> str:
        medians = (f"{timed.name} {timed.cells()[2]}" for timed in self.plans)
        return f"TimedPlans({', '.join(medians)} on {self.measured_on})"

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        table = html_table(self.columns, self.rows, self.caption, [0])
        return join([table, *(element("p", line) for line in self.remarks)])


def time_on_devices(
    config: TrainConfig,
    problem: PlanningProblem,
    plans: Mapping[str, Plan],
    steps: int,
    callback: Callable[[int, int], None] = lambda done, total: None,
) -> TimedPlans:
    """Trains some steps under each of some plans on the devices of this process, in turns.

    Args:
        config: The run.
        problem: Simulates the plans.
        plans: Plans by name. One that cannot run has an error in the result.
        steps: Number of steps that are timed of each plan.
        callback: Called with the number of turns that are over, and the number of all turns.

    Raises:
        UserError: This is one of several processes.
        DataError: The data set does not fit the model or the data configuration.
    """
    devices = jax.devices()
    simulated: dict[str, Timeline] = {}
    times: dict[str, StepTimes] = {}
    for name, plan in plans.items():
        try:
            resolve_plan(plan, problem.graph, len(devices), config.data.rows)
            simulated[name] = problem.simulate(plan)
        except PlanError as error:
            times[name] = StepTimes(error=str(error))
    times |= time_steps(config, {name: plans[name] for name in simulated}, steps, callback)
    timed = [_timed_plan(name, plan, simulated.get(name), times[name]) for name, plan in plans.items()]
    return TimedPlans(
        tuple(sorted(timed, key=lambda timed_plan: timed_plan.times.median)),
        devices[0].device_kind,
        problem.cluster.name,
        remark_on_devices(problem.cluster),
    )


def _timed_plan(name: str, plan: Plan, timeline: Timeline | None, times: StepTimes) -> TimedPlan:
    """The record of a plan; without a timeline if it cannot hold the model or the batch."""
    if timeline is None:
        return TimedPlan(name, plan, math.inf, times)
    return TimedPlan(name, plan, timeline.step, times, timeline.step_range)


def print_timed_plans(timed: TimedPlans, console: Console) -> None:
    """Prints the seconds of the steps of plans, and why other plans could not run."""
    table = report_table(timed.caption, *(name.lstrip("#") for name in timed.columns))
    for number, cells in enumerate(timed.rows):
        table.add_row(*cells, style=None if number else "bold")
    print_table(table, console)
    for line in timed.remarks:
        console.print(line, soft_wrap=True)
