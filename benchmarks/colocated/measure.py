"""The rows of a setting: every system's step, and the most that hiding all encoders behind the backbone could gain."""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.colocated import settings
from benchmarks.colocated.cases import OptimusCase
from benchmarks.colocated.settings import OptimusSetting
from benchmarks.colocated.systems import (
    ALPA,
    BACKBONE,
    COLOCATED,
    FSDP,
    MEGATRON,
    MEGATRON_BALANCED,
    systems_of,
)
from benchmarks.rows import paper_row
from sharding.planners.simulated_plan import SimulatedPlan

Row = dict[str, Any]

GOALS: Mapping[str, float] = {MEGATRON_BALANCED: 1.0}
"""Least throughput over the first system's throughput, by system."""

COLOCATED_GOAL = 1.20
"""Least throughput of `colocated` over Megatron-LM with ViT-22B and GPT-175B, in the strong scaling."""


def measure_case(case: OptimusCase) -> list[Row]:
    """The rows of one setting."""
    setting = case.setting
    steps = {name: simulate(case) for name, simulate in systems_of(case).items()}
    first, *others = steps
    rows = [row for name, step in steps.items() for row in _step_rows(case, name, step)]
    rows += [
        paper_row(
            f"{setting.title}, {name}: throughput over {first}", _gain(steps, name, first), goal=_goal(setting, name)
        )
        for name in others
        if not name.startswith(BACKBONE)
    ]
    rows += [
        paper_row(f"{setting.title}, {COLOCATED}: throughput over {name}", _gain(steps, COLOCATED, name))
        for name in steps
        if name not in (first, COLOCATED)
    ]
    rows += [
        paper_row(_gain_name(setting, name), _gain(steps, BACKBONE, name), _paper_gain(setting, name))
        for name in steps
        if not name.startswith(BACKBONE)
    ]
    if setting.devices == settings.LARGEST:
        rows += [
            row for name, step in steps.items() if name.startswith(MEGATRON) for row in bubble_rows(case, name, step)
        ]
    return rows


def mean_gain_rows(rows: list[Row], measured: tuple[OptimusSetting, ...]) -> list[Row]:
    """The mean of what hiding the encoders could gain over Megatron-LM, and over the balanced form, where they are."""
    values = {row["name"]: row["value"] for row in rows}
    mean_rows = []
    for system in (MEGATRON, MEGATRON_BALANCED):
        gains = [values[name] for setting in measured if (name := _gain_name(setting, system)) in values]
        if gains:
            name = f"{_most(system)}, mean of {len(gains)} settings"
            mean_rows.append(paper_row(name, statistics.mean(gains), settings.PAPER_MEAN_OVER_BASELINES))
    return mean_rows


def _step_rows(case: OptimusCase, name: str, step: SimulatedPlan) -> list[Row]:
    title, timeline = f"{case.setting.title}, {name}", step.timeline
    rows = [paper_row(f"{title}: seconds of a step", timeline.step)]
    if not name.startswith(BACKBONE):  # whose FLOPs are not the model's
        rows += [
            paper_row(f"{title}: MFU", timeline.mfu),
            paper_row(f"{title}: MFU, squares whole", timeline.mfu_whole_squares),
        ]
    memory = case.problem.memory_fraction(timeline)
    return [*rows, paper_row(f"{title}: share of a device's memory", memory, goal=1.0, most=True)]


def bubble_rows(case: OptimusCase, name: str, step: SimulatedPlan) -> list[Row]:
    """Idle shares of a step by cause, beside the shares of the paper's own task."""
    shares = {cause: seconds / step.timeline.step for cause, seconds in step.timeline.idle.items()}
    title = f"{case.setting.title}, {name}: share of the step idle"
    difference = sum(abs(shares[cause] - paper) for cause, paper in settings.PAPER_BUBBLES.items())
    return [
        *(paper_row(f"{title}, {cause}", shares[cause], paper) for cause, paper in settings.PAPER_BUBBLES.items()),
        paper_row(f"{title}, sum of differences from table 1", difference),
    ]


def _goal(setting: OptimusSetting, name: str) -> float | None:
    is_strong = setting.experiment == settings.STRONG_SCALING[0].experiment
    return (
        COLOCATED_GOAL if name == COLOCATED and is_strong and setting.patches == settings.PATCHES else GOALS.get(name)
    )


def _gain(steps: Mapping[str, SimulatedPlan], name: str, over: str) -> float:
    return steps[over].timeline.step / steps[name].timeline.step


def _most(over: str) -> str:
    return f"most that hiding all encoders can gain over {over}"


def _gain_name(setting: OptimusSetting, over: str) -> str:
    return f"{setting.title}: {_most(over)}"


def _paper_gain(setting: OptimusSetting, over: str) -> float | None:
    """The published gain of Optimus in a setting."""
    if setting is settings.SMALL:
        return {ALPA: settings.PAPER_OVER_ALPA, FSDP: settings.PAPER_OVER_FSDP}.get(over)
    is_baseline = over in (MEGATRON, MEGATRON_BALANCED)
    return settings.PAPER_OVER_MEGATRON if setting.devices == settings.LARGEST and is_baseline else None
