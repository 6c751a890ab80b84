"""The best integer layout by trying all."""

import itertools

import numpy as np

from sharding.planners.problem import Problem
from sharding.planners.search import Choice, Layout


def seconds_of(problem: Problem, dp: int, choices: dict[str, Choice]) -> float:
    """DistTrain's objective, equations 1 and 2, of one layout."""
    stages, warm = [], 0.0
    for name, choice in choices.items():
        table = problem.tables[name]
        column = 0 if table.module.backbone else list(table.rows).index(choice.rows)
        stages.append(table.stage[choice.way, column])
        warm += table.warm[choice.way, column]
    return float(warm + (problem.rows // dp - 1) * max(stages))


def fits(problem: Problem, dp: int, name: str, choice: Choice, behind: float) -> bool:
    """Whether a module's fullest stage fits a device, with so many stages behind it."""
    ways, rows, instances = (np.array([each]) for each in (choice.way, choice.rows, choice.dp))
    need = problem.tables[name].bytes(ways, rows, instances, np.array([float(behind)]), np.array([problem.rows // dp]))
    return bool(need[0] <= problem.cluster.memory)


def options(problem: Problem, dp: int, name: str) -> list[Choice]:
    """Every way of a module beside a backbone of `dp` instances."""
    table = problem.tables[name]
    sizes = [1] if table.module.backbone else [int(rows) for rows in table.rows if dp % rows == 0]
    given = problem.given_of(name)
    return [
        Choice(way, rows, dp // rows, int(table.tp[way] * table.pp[way]) * given.cp * (dp // rows))
        for way in range(len(table.tp))
        for rows in sizes
        if dp // rows % given.ep == 0
    ]


def best_layout(problem: Problem) -> Layout | None:
    """The best of all layouts that fit; None if none does."""
    backbone, deep = problem.graph.backbone.name, int(problem.deep)
    others = [name for name in problem.graph.names if name != backbone]
    best = None
    for dp in map(int, problem.divisors):
        for own in options(problem, dp, backbone):
            if own.devices > problem.devices or not fits(problem, dp, backbone, own, deep):
                continue
            behind = float(problem.tables[backbone].behind_source(np.array([own.way]), deep)[0])
            stage = {name: 0 if problem.graph[name].inputs else behind for name in others}
            room = problem.devices - own.devices
            lists = [
                [each for each in options(problem, dp, name) if each.devices <= room]
                for name in others
            ]  # fmt: skip
            lists = [
                _thin(problem, dp, name, [each for each in found if fits(problem, dp, name, each, stage[name])])
                for name, found in zip(others, lists, strict=True)
            ]
            for chosen in itertools.product(*lists):
                if sum(each.devices for each in chosen) <= room:
                    choices = {backbone: own, **dict(zip(others, chosen, strict=True))}
                    seconds = seconds_of(problem, dp, choices)
                    if best is None or seconds < best.seconds:
                        best = Layout(seconds, problem.rows // dp, choices)
    return best


def _thin(problem: Problem, dp: int, name: str, found: list[Choice]) -> list[Choice]:
    """One of each (devices, stage, warm-up): more of the same cannot be better."""
    table = problem.tables[name]
    kinds = {}
    for choice in found:
        column = list(table.rows).index(choice.rows)
        kinds[choice.devices, table.stage[choice.way, column], table.warm[choice.way, column]] = choice
    return list(kinds.values())
