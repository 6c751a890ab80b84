"""The best integer layout by trying all layouts."""

import itertools
from collections.abc import Iterator

import numpy as np

from sharding.planners.layouts.disjoint_layout import DisjointLayout, ModuleChoice
from sharding.planners.problem import PlanningProblem


def seconds_of(problem: PlanningProblem, dp: int, choices: dict[str, ModuleChoice]) -> float:
    """DistTrain's objective, equations 1 and 2, of one layout."""
    stages, warm = [], 0.0
    for name, choice in choices.items():
        stage, fill = seconds_of_choice(problem, dp, name, choice)
        stages.append(stage)
        warm += fill
    return float(warm + (problem.rows // dp - 1) * max(stages))


def seconds_of_choice(problem: PlanningProblem, dp: int, name: str, choice: ModuleChoice) -> tuple[float, float]:
    """Mean seconds of a microbatch on a module's slowest stage, and of its pipeline fill."""
    stage, fill = problem.module_tables[name].stage_seconds(np.array([choice.candidate]), np.array([choice.rows]))
    active = problem.replica_shares(name, dp).active
    return float(active * stage[0]), float(active * fill[0])


def fits(problem: PlanningProblem, dp: int, name: str, choice: ModuleChoice, downstream: float) -> bool:
    """Whether a module's fullest stage fits a device, with so many stages downstream of it."""
    candidates, rows, replicas = (np.array([number]) for number in (choice.candidate, choice.rows, choice.dp))
    need = problem.module_tables[name].peak_bytes(
        candidates, rows, replicas, np.array([float(downstream)]), np.array([problem.rows // dp])
    )
    return bool(need[0] <= problem.cluster.usable_memory)


def options(problem: PlanningProblem, dp: int, name: str) -> list[ModuleChoice]:
    """Every choice of a module beside a backbone of `dp` replicas."""
    table, cp = problem.module_tables[name], problem.fixed_ranks_of(name).cp
    replicas, rows, _ = problem.replica_shares(name, dp)
    return [
        ModuleChoice(
            candidate,
            float(load),
            int(count),
            int(table.tp[candidate] * table.pp[candidate]) * cp * int(count),
            problem.sharing[name].deals_items(dp, int(count)),
        )
        for candidate in range(len(table.tp))
        for count, load in zip(replicas, rows, strict=True)
        if int(table.tp[candidate] * table.pp[candidate]) * cp * int(count) <= problem.devices
    ]


def best_layout(problem: PlanningProblem) -> DisjointLayout | None:
    """The best of all layouts that fit; None if none does."""
    return min(all_layouts(problem), key=lambda layout: layout.seconds, default=None)


def all_layouts(problem: PlanningProblem) -> Iterator[DisjointLayout]:
    """All layouts that fit; of those with equal devices and seconds of every module, one."""
    backbone = problem.graph.backbone.name
    others = [name for name in problem.graph.names if name != backbone]
    generators = [name for name in others if problem.graph[name].inputs]
    depths = sorted({int(pp) for name in generators for pp in problem.module_tables[name].pp}) or [0]
    for dp, deep in itertools.product(map(int, problem.row_divisors), depths):
        for backbone_choice in options(problem, dp, backbone):
            if backbone_choice.devices > problem.devices or not fits(problem, dp, backbone, backbone_choice, deep):
                continue
            downstream = float(
                problem.module_tables[backbone].downstream_stages_of_sources(
                    np.array([backbone_choice.candidate]), float(deep)
                )[0]
            )
            stage = {name: 0 if name in generators else downstream for name in others}
            room = problem.devices - backbone_choice.devices
            lists = [
                [option for option in options(problem, dp, name) if option.devices <= room]
                for name in others
            ]  # fmt: skip
            lists = [
                _thin(
                    problem,
                    dp,
                    name,
                    [option for option in module_options if fits(problem, dp, name, option, stage[name])],
                )
                for name, module_options in zip(others, lists, strict=True)
            ]
            stages = {name: problem.module_tables[name].pp for name in generators}
            lists = [
                [option for option in module_options if name not in stages or stages[name][option.candidate] <= deep]
                for name, module_options in zip(others, lists, strict=True)
            ]
            for chosen in itertools.product(*lists):
                if sum(option.devices for option in chosen) <= room:
                    choices = {backbone: backbone_choice, **dict(zip(others, chosen, strict=True))}
                    yield DisjointLayout(seconds_of(problem, dp, choices), problem.rows // dp, choices)


def _thin(problem: PlanningProblem, dp: int, name: str, choices: list[ModuleChoice]) -> list[ModuleChoice]:
    """One choice of each (devices, slowest stage, fill); equal ones cannot be better."""
    return list(
        {(choice.devices, *seconds_of_choice(problem, dp, name, choice)): choice for choice in choices}.values()
    )
