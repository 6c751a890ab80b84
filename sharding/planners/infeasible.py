"""Why nothing fits: which unit lacks how many bytes, and the smallest cluster that would do."""

import numpy as np

from sharding.planners.module_table import ModuleTable
from sharding.planners.problem import PlanningProblem
from sharding.plans.unit_plan import PlanError


def infeasible_error(problem: PlanningProblem) -> PlanError:
    """The error to raise where no layout of disjoint modules fits a problem's devices."""
    memory, name = problem.cluster.memory, problem.cluster.name
    least = min_devices(problem)
    if least is None:
        culprit, need = max(
            ((name, _least_bytes(problem, name)) for name in problem.graph.names), key=lambda pair: pair[1]
        )
        return PlanError(
            f"unit {culprit} needs {_gb(need)} on each device however it is cut, {_gb(need - memory)} more than "
            f"the {_gb(memory)} of {name}; no number of these devices will do; use larger ones, or shorter rows"
        )
    total = sum(least.values())
    culprit = max(least, key=lambda module: least[module])
    would_do = f"The smallest cluster of {name} that would do has {total} devices ({_list(least)})"
    if problem.devices < len(least):
        return PlanError(f"{problem.devices} devices are too few for {len(least)} units of their own. {would_do}")
    room = max(1, problem.devices - (total - least[culprit]))
    need = _least_bytes(problem, culprit, room)
    lack = f"it needs {_gb(need)} on each, {_gb(need - memory)} more than {name} has"
    if need <= memory:
        lack = f"it does not fit together with them: it needs {least[culprit]}"
    left = f"on the {room} of {problem.devices} devices that the other units leave it at most"
    return PlanError(f"unit {culprit}: {left}, {lack}. {would_do}")


def min_devices(problem: PlanningProblem) -> dict[str, int] | None:
    """The fewest devices on which the modules fit, each on its own; None if no number of them will do."""
    backbone = problem.graph.backbone.name
    best: dict[str, int] | None = None
    for dp in map(int, problem.row_divisors):
        front = _ways(problem, backbone, dp)
        table = problem.module_tables[backbone]
        fits = front.behind >= int(problem.has_generators)
        for index in np.flatnonzero(fits)[np.argsort(front.devices[fits], kind="stable")]:
            way = front.way[index]
            if best and front.devices[index] >= sum(best.values()):
                break
            stages = table.stages_behind_sources(np.array([way]), int(problem.has_generators))[0]
            found = {name: _fewest(problem, name, dp, stages) for name in problem.graph.names if name != backbone}
            found = {name: found.get(name, int(front.devices[index])) for name in problem.graph.names}
            if all(found.values()) and (best is None or sum(found.values()) < sum(best.values())):
                best = found
    return best


class _Ways:
    """Every way of a module with every number of rows, at one dp of the backbone."""

    def __init__(self, problem: PlanningProblem, table: ModuleTable, dp: int) -> None:
        way, column = (part.ravel() for part in np.meshgrid(np.arange(len(table.tp)), table.replica_options(dp)[0]))
        self.way, self.rows = way, table.rows[column]
        self.dp = dp // self.rows
        self.devices = table.replica_devices[way] * self.dp
        self.most = np.full(len(way), problem.rows // dp)
        self.behind = table.max_stages_behind(way, self.rows, self.dp, problem.cluster.memory, self.most)


def _ways(problem: PlanningProblem, name: str, dp: int) -> _Ways:
    return _Ways(problem, problem.module_tables[name], dp)


def _fewest(problem: PlanningProblem, name: str, dp: int, stages: float) -> int:
    """The fewest devices of a module beside the backbone; 0 if it never fits."""
    ways = _ways(problem, name, dp)
    needed = 0 if problem.graph[name].inputs else stages
    fits = ways.behind >= needed
    return int(ways.devices[fits].min()) if fits.any() else 0


def _least_bytes(problem: PlanningProblem, name: str, devices: int | None = None) -> float:
    """The fewest bytes on each device on which a module can be made to lie."""
    table, best = problem.module_tables[name], np.inf
    last = bool(table.module.inputs) and not table.module.is_backbone
    for dp in map(int, problem.row_divisors):
        ways = _ways(problem, name, dp)
        behind = np.full(len(ways.way), 0.0 if last else float(problem.has_generators))
        need = table.peak_bytes(ways.way, ways.rows, ways.dp, behind, ways.most)
        need = need[ways.devices <= devices] if devices is not None else need
        best = min(best, float(need.min(initial=np.inf)))
    return best


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.3f} MB"


def _list(least: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in least.items())
