"""Post-balanced steps against the same samples in rows as drawn: values computed in every phase, and processor time.

Unbalanced, the samples of a step lie in its rows in random order, as many in each, and all modules share these rows.
Balanced, the rows of the backbone have even numbers of tokens (`grouping="post_balanced"`), and every other module has
rows of its own, one for each replica, over which its items are dealt. In both, rows are as long as the fullest needs.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from benchmarks.phases.executed_work import CAPACITIES, Work, planned_steps
from benchmarks.phases.figures import figure
from benchmarks.phases.steps import LOSS_GOAL, WARM_UP, compare_steps
from benchmarks.rows import Row
from data.packing.pipeline import BatchPipeline, training_pipeline
from data.packing.rows.row_planner import StepPlan
from mmjax.training.config import TrainConfig
from sharding.plans.plan import Plan

GOAL = 1.3


def balanced_rows(config: TrainConfig, plan: Plan, steps: int) -> list[Row]:
    """Values computed in each phase, FLOPs and processor time, unbalanced over balanced; and their losses."""
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, grouping="post_balanced"))
    balanced = planned_steps(_pipeline(config), WARM_UP + steps)
    random = np.random.default_rng(config.data.seed)
    unbalanced = [rows_as_drawn(step, random) for step in balanced]
    runs = [(with_fitting_rows(config, planned), planned) for planned in (unbalanced, balanced)]
    pipelines = [_pipeline(fitted) for fitted, _ in runs]
    drawn, dealt = (
        Work(fitted, plan, pipeline, planned) for pipeline, (fitted, planned) in zip(pipelines, runs, strict=True)
    )
    before, after = drawn.computed(None, is_dealt=False), dealt.computed(CAPACITIES, is_dealt=True)
    needed = dealt.needed()
    rows = [
        figure(
            f"values computed of {module}, unbalanced over balanced",
            before[module] / after[module],
            None,
            f"{before[module] / len(balanced):.0f} and {after[module] / len(balanced):.0f} a step, "
            f"{needed[module] / len(balanced):.0f} needed",
        )
        for module in before
    ]
    work = drawn.flops(before) / dealt.flops(after)
    arrays = [
        [pipeline.loader(step).arrays for step in planned]
        for pipeline, (_, planned) in zip(pipelines, runs, strict=True)
    ]
    own_rows = dealt.plan_of_own_rows(CAPACITIES)
    ratio, error = compare_steps(config, ((plan, arrays[0]), (own_rows, arrays[1])))
    return [
        *rows,
        figure("work of a step, unbalanced over balanced", work, GOAL, f"FLOPs; {len(balanced)} steps", least=True),
        figure("processor time of a step, unbalanced over balanced", ratio, GOAL, f"{steps} steps", least=True),
        figure("largest relative difference of their losses", error, LOSS_GOAL, "the same samples"),
    ]


def rows_as_drawn(step: StepPlan, random: np.random.Generator) -> StepPlan:
    """Puts the samples of a step into rows in random order, as many in each row."""
    samples = random.permutation([sample for row in step.rows for sample in row])
    rows = tuple(tuple(part.tolist()) for part in np.array_split(samples, len(step.rows)))
    return dataclasses.replace(step, rows=rows)


def _pipeline(config: TrainConfig) -> BatchPipeline:
    return training_pipeline(config.data, config.model, config.dataset("train"))


def with_fitting_rows(config: TrainConfig, steps: Sequence[StepPlan]) -> TrainConfig:
    """The configuration whose rows hold just as much of each quantity as the fullest of these rows."""
    rows = [[step.sizes[sample].row_units for sample in row] for step in steps for row in step.rows]
    most = {
        name: max(1, *(sum(units.get(name, 0) for units in row) for row in rows)) if capacity else 0
        for name, capacity in config.data.capacity.units.items()
    }
    others = tuple((field, most.pop(field)) for field, _ in config.data.capacities)
    data = dataclasses.replace(config.data, capacities=others, samples=max(map(len, rows)), **most)
    return dataclasses.replace(config, data=data)
