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
from sharding.frames import make_frame
from sharding.html import numbers
from sharding.html.elements import element, join
from sharding.html.elements import table as html_table
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan

if TYPE_CHECKING:
    import pandas

COLUMNS = ("plan", "#devices", "#median", "#shortest", "#longest", "#simulated")
"""Headings of a table for people."""

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
    """

    name: str
    plan: Plan
    simulated: float
    times: StepTimes

    def figures(self) -> dict[str, Any]:
        """The figures for documents and frames: seconds, None where there are none, and the error."""
        seconds = self.times.seconds
        return {
            "name": self.name,
            "devices": self.plan.device_count,
            "simulated_seconds": self.simulated if math.isfinite(self.simulated) else None,
            "median_seconds": self.times.median if seconds else None,
            "shortest_seconds": min(seconds, default=None),
            "longest_seconds": max(seconds, default=None),
            "error": self.times.error,
        }

    def cells(self) -> tuple[str, ...]:
        """The cells of its line in a table for people, by `COLUMNS`."""
        figures = self.figures()
        seconds = [figures[f"{name}_seconds"] for name in ("median", "shortest", "longest", "simulated")]
        return (
            self.name,
            numbers.count(self.plan.device_count),
            *(NO_SECONDS if value is None else numbers.seconds(value) for value in seconds),
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
        rows = [timed.cells() for timed in self.plans]
        return join([html_table(COLUMNS, rows, self.caption, [0]), *(element("p", line) for line in self.remarks)])


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
    simulated: dict[str, float] = {}
    times: dict[str, StepTimes] = {}
    for name, plan in plans.items():
        try:
            resolve_plan(plan, problem.graph, len(devices), config.data.rows)
            simulated[name] = float(problem.simulate(plan).step)
        except PlanError as error:
            times[name] = StepTimes(error=str(error))
    times |= time_steps(config, {name: plans[name] for name in simulated}, steps, callback)
    timed = [TimedPlan(name, plan, simulated.get(name, math.inf), times[name]) for name, plan in plans.items()]
    return TimedPlans(
        tuple(sorted(timed, key=lambda timed_plan: timed_plan.times.median)),
        devices[0].device_kind,
        problem.cluster.name,
        remark_on_devices(problem.cluster),
    )


def print_timed_plans(timed: TimedPlans, console: Console) -> None:
    """Prints the seconds of the steps of plans, and why other plans could not run."""
    table = report_table(timed.caption, *(name.lstrip("#") for name in COLUMNS))
    for number, plan in enumerate(timed.plans):
        table.add_row(*plan.cells(), style=None if number else "bold")
    print_table(table, console)
    for line in timed.remarks:
        console.print(line, soft_wrap=True)
