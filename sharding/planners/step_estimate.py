"""An estimate of a layout's step that sees what the search's objective leaves out (arXiv 2408.04275, equations 1, 2).

    seconds = path + (microbatches - 1) / microbatches * max_rank work + update

`work` is all forwards and backwards of a pipeline rank on the slowest of its replicas, with the rows that plans are
simulated with. `path` is one microbatch through all stages and back, behind gathers of weights and before reductions of
gradients, as far as other stages do not hide them. With chunks a microbatch passes a rank's part of the path in pieces,
so the path through the unit counts once for all chunks.
"""

from typing import NamedTuple

import numpy as np

from sharding.planners.layout_search import DisjointLayout, ModuleChoice
from sharding.planners.placement import unit_of_choice
from sharding.planners.problem import PlanningProblem


class _ModuleSeconds(NamedTuple):
    """What one module's choice takes in a step.

    Attributes:
        slowest_rank: Seconds of all forwards and backwards of the slowest replica of its slowest pipeline rank.
        forward: Mean seconds of a microbatch's forward through all its stages, over the chunks; on the slowest replica
            if its items are dealt.
        backward: The same of its backward.
        gather: Seconds in which its first stage gathers weights.
        reduce: Seconds in which its first stage, which runs the last backward, reduces gradients.
        update: Seconds of the optimizer on the slowest rank.
    """

    slowest_rank: float
    forward: float
    backward: float
    gather: float
    reduce: float
    update: float


class StepEstimate:
    """Estimates the steps of layouts of one problem; what a choice of a module takes is computed once.

    Args:
        problem: The problem.
    """

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self._modules: dict[tuple[str, ModuleChoice, int], _ModuleSeconds] = {}

    def seconds(self, layout: DisjointLayout) -> float:
        """The estimate of a layout's step."""
        of = {name: self._module(name, choice, layout.microbatches) for name, choice in layout.choices.items()}
        slowest = max(module.slowest_rank for module in of.values())
        steady = slowest * (layout.microbatches - 1) / layout.microbatches
        return self._path(of) + steady + max(module.update for module in of.values())

    def _path(self, of: dict[str, _ModuleSeconds]) -> float:
        """Seconds from the first gather to the last reduction, if one microbatch were all."""
        after_forward: dict[str, float] = {}
        after_backward: dict[str, float] = {}  # from the end of a module's backward to the last reduction
        modules = self._problem.graph.modules
        longest = 0.0
        for module in modules:  # each after those that feed it
            own = of[module.name]
            arrival = max((after_forward[source] for source in module.inputs), default=0.0)
            after_forward[module.name] = max(arrival, own.gather) + own.forward
            rest = (of[source].backward + after_backward[source] for source in module.inputs)
            after_backward[module.name] = max(own.reduce, max(rest, default=0.0))
            longest = max(longest, after_forward[module.name] + own.backward + after_backward[module.name])
        return longest

    def _module(self, name: str, choice: ModuleChoice, microbatches: int) -> _ModuleSeconds:
        key = (name, choice, microbatches)
        if key not in self._modules:
            unit = unit_of_choice(self._problem, name, choice)
            stages = self._problem.unit_work(unit, microbatches)
            ranks = [stages[rank :: unit.pp] for rank in range(unit.pp)]
            passes = microbatches * unit.chunks
            of_microbatch = np.max if unit.rows else np.mean  # an exchange waits for the slowest replica
            self._modules[key] = _ModuleSeconds(
                slowest_rank=max(float(np.max(sum(stage.work for stage in rank))) for rank in ranks),
                forward=sum(float(of_microbatch(stage.forward)) for stage in stages) / passes,
                backward=sum(float(of_microbatch(stage.backward)) for stage in stages) / passes,
                gather=stages[0].gather,
                reduce=stages[0].reduce,
                update=max(sum(stage.update for stage in rank) for rank in ranks),
            )
        return self._modules[key]
