"""Pages of every sort, made of small inputs that are the same on every machine."""

import os
import pathlib
from collections.abc import Callable

from configs.architectures import ModelConfig
from data.report.html_page import html_page as data_page
from mmjax.api.data import describe_data
from mmjax.reporting.predicted_step import PredictedTimeline
from mmjax.reporting.run_folder import open_run
from mmjax.reporting.run_page import run_page
from mmjax.training.config import TrainConfig
from mmjax.training.metrics.step_timeline_file import write_step_timeline
from mmjax.training.metrics.writers import open_metrics_writer
from sharding.plans.plan import Plan
from sharding.simulation.pages.html_page import html_page as plan_page
from tests.mmjax.reporting.workdirs import finished_run
from tests.mmjax.training.trainer_runs import DATA, MODEL
from tests.sharding.planners.problems import BACKBONE, VISION, problem
from tests.sharding.steps import uneven_timeline
from tests.small_vqa import SmallVQA
from tests.unit_plans import module_unit

_TIME = 1_796_000_000  # of files, whose times a page shows; behind those of the starts


def plan(folder: pathlib.Path) -> str:
    """A pipeline whose stages and microbatches are uneven."""
    return plan_page(uneven_timeline(), "Simulated step of an uneven pipeline")


def sharded_plan(folder: pathlib.Path) -> str:
    """An encoder beside a fully sharded backbone."""
    planning_problem = problem(ModelConfig((VISION,), BACKBONE, ()), memory=2e7)
    units = (
        module_unit("vision", (0, 1, 2, 3), layers=(3,), dp=4),
        module_unit("backbone", (4, 5, 6, 7), layers=(4,), recompute=("full",), dp=4, fsdp=4),
    )
    return plan_page(
        planning_problem.simulate(Plan(units, microbatches=2)), "Simulated step of a fully sharded backbone"
    )


def data(folder: pathlib.Path) -> str:
    """Questions about pictures, descriptions to draw, and texts."""
    config = TrainConfig(dataset=SmallVQA, model=MODEL, data=DATA)
    return data_page(describe_data(config, samples=64), "Data of a small test")


def run(folder: pathlib.Path) -> str:
    """A run that was resumed twice and evaluated twice, with a simulated step and a measured one."""
    workdir = finished_run(folder / "run")
    writer = open_metrics_writer(workdir, resumed_step=12)
    for step, loss in ((8, 0.75), (12, 0.5)):
        writer.write(step, {"held_out_loss/backbone": loss})
    writer.write(12, {"once": 0.25})
    writer.close()
    timeline = uneven_timeline()
    write_step_timeline(workdir, 5, timeline)
    for path in workdir.rglob("*"):
        os.utime(path, (_TIME, _TIME))
    return run_page(open_run(workdir), PredictedTimeline(timeline, "the analytic costs of a made-up cluster"))


PAGES: dict[str, Callable[[pathlib.Path], str]] = {
    "plan": plan,
    "sharded_plan": sharded_plan,
    "data": data,
    "run": run,
}
"""By name, what makes the HTML of a page in an empty folder."""
