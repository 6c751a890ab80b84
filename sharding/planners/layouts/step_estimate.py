"""An estimate of a layout's step that sees what the search's objective leaves out (arXiv 2408.04275, equations 1, 2).

    seconds = max_module(path + (microbatches - 1) / microbatches * work) + stalls + update

`work` is all forwards and backwards of a module's slowest pipeline rank on the slowest of its replicas, with the rows
that plans are simulated with. `path` is one microbatch through all stages and back, behind gathers of weights and
before reductions of gradients, as far as other stages do not hide them. With chunks a microbatch passes a rank's share
of the path in pieces, so for this rank the path through its own unit counts once for all chunks; other modules wait for
all.

`stalls`: where items are dealt, all replicas of a module wait for each other in every microbatch, and modules for each
other as far as microbatches in flight leave no slack. A microbatch that takes one module long and the next that takes
another long then add up: over every WINDOW consecutive microbatches, the longest of the modules' sums counts.

Where hops occupy the devices at both ends, their seconds count in `work` and `path`, and modules wait for each other in
every microbatch. Ranks with chunks also wait for each other (`ring_waits`).
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.costs.step_costs import StageWork
from sharding.planners.layouts.disjoint_layout import DisjointLayout, ModuleChoice
from sharding.planners.layouts.hop_seconds import (
    EdgeSeconds,
    hops_between,
    hops_within,
    rank_hop_seconds,
    ring_waits,
)
from sharding.planners.layouts.placement import unit_of_choice
from sharding.planners.problem import PlanningProblem
from sharding.plans.unit_plan import UnitPlan

WINDOW = 3
"""Microbatches: one, and as many more as planned layouts leave memory for."""


class _ModuleSeconds(NamedTuple):
    """Seconds of one module's choice in a step.

    Attributes:
        slowest_rank: Seconds of all forwards and backwards of the slowest replica of its slowest pipeline rank.
        by_microbatch: Seconds of each microbatch on that rank, on the replica that takes longest for it.
        pp: Number of pipeline ranks.
        chunks: Virtual stages per pipeline rank.
        forward: Mean seconds of a microbatch's forward through all its stages; on the slowest replica if its items are
            dealt.
        backward: Mean seconds of a microbatch's backward, likewise.
        gather: Seconds in which its first pipeline rank gathers weights.
        reduce: Seconds in which its first pipeline rank, which runs the last backward, reduces gradients.
        update: Seconds of the optimizer on the slowest rank.
    """

    slowest_rank: float
    by_microbatch: Float[np.ndarray, " m"]
    pp: int
    chunks: int
    forward: float
    backward: float
    gather: float
    reduce: float
    update: float


class _RankSeconds(NamedTuple):
    """What `_ModuleSeconds` does not say of hops that occupy the devices at both ends.

    Attributes:
        unit: The choice as a unit.
        work: Seconds of all forwards, backwards and hops within the unit, on the slowest replica of each pipeline rank.
        by_microbatch: Seconds of each of its microbatches, on the replica that takes longest for it.
        path: Seconds of a microbatch's hops from the first stage to the last, and of its gradients' hops back.
    """

    unit: UnitPlan
    work: Float[np.ndarray, " p"]
    by_microbatch: Float[np.ndarray, "p m"]
    path: Float[np.ndarray, " 2"]


@dataclasses.dataclass(frozen=True, eq=False)
class _Known:
    """What estimates have in common, on any number of devices.

    Attributes:
        units: Choices as units.
        modules: Seconds of choices, by the microbatches of a step.
        ranks: The same where hops occupy both ends.
        edges: Hops between units.
    """

    units: dict[tuple[str, ModuleChoice], UnitPlan] = dataclasses.field(default_factory=dict)
    modules: dict[tuple[str, ModuleChoice, int], _ModuleSeconds] = dataclasses.field(default_factory=dict)
    ranks: dict[tuple[str, ModuleChoice, int], _RankSeconds] = dataclasses.field(default_factory=dict)
    edges: dict[tuple, EdgeSeconds] = dataclasses.field(default_factory=dict)


class StepEstimate:
    """Estimates the steps of layouts of one problem.

    The seconds of a choice of a module are computed once for all numbers of devices (`with_devices`).

    Args:
        problem: The problem.
    """

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self._known: _Known = problem.kept_by_estimates.setdefault(problem.rendezvous, _Known())

    def seconds(self, layout: DisjointLayout) -> float:
        """The estimate of a layout's step."""
        modules = {name: self._module(name, choice, layout.microbatches) for name, choice in layout.choices.items()}
        burst, window = 0.0, 1
        if self._problem.rendezvous:
            modules = self._with_hops(modules, layout)
        else:
            burst, window = self._burst(modules), WINDOW
        steady = (layout.microbatches - 1) / layout.microbatches
        longest = max(self._path(modules, name) + steady * module.slowest_rank for name, module in modules.items())
        stalls = _stalls(modules, window) if any(choice.dealt for choice in layout.choices.values()) else 0.0
        return longest + steady * stalls + burst + max(module.update for module in modules.values())

    def chunk_gain(self, layout: DisjointLayout) -> float:
        """Seconds by which more chunks of the backbone can shorten a layout's step at most: its path through them."""
        name = self._problem.graph.backbone.name
        module = self._module(name, layout.choices[name], layout.microbatches)
        return (module.forward + module.backward) / module.chunks * (module.pp - 1) / module.pp

    def _burst(self, modules: dict[str, _ModuleSeconds]) -> float:
        """Seconds by which a generator falls behind a backbone with chunks before it returns the first gradients.

        A rank runs its last chunk for `pp` microbatches in a row, each in a fraction of the time of a whole microbatch,
        then waits for their gradients. Meanwhile it runs as many others as it may hold beyond the schedule's limits.
        """
        name = self._problem.graph.backbone.name
        backbone = modules[name]
        if backbone.chunks == 1:
            return 0.0
        count = len(backbone.by_microbatch)
        chunk = backbone.slowest_rank / count / backbone.chunks
        behind = [
            modules[module.name].slowest_rank / count for module in self._problem.graph.modules if name in module.inputs
        ]
        slack = (WINDOW - 1) * backbone.chunks * chunk
        return max(0.0, backbone.pp * (max(behind, default=0.0) - chunk) - slack)

    def _path(self, modules: dict[str, _ModuleSeconds], bottleneck: str) -> float:
        """Seconds from the first gather to the last reduction, if one microbatch were all that passes a module.

        What comes after the module runs while it works on other microbatches.

        Args:
            modules: Seconds of every module.
            bottleneck: The module.
        """
        after_forward: dict[str, float] = {}
        after_backward: dict[str, float] = {}  # from the end of a module's backward to the last reduction
        for module in self._problem.graph.modules:  # each after the modules that feed it
            module_seconds, name = modules[module.name], module.name
            arrival = max((after_forward[source] for source in module.inputs), default=0.0)
            rest = max((modules[source].backward + after_backward[source] for source in module.inputs), default=0.0)
            if name == bottleneck:
                through = (module_seconds.forward + module_seconds.backward) / module_seconds.chunks
                return max(arrival, module_seconds.gather) + through + max(module_seconds.reduce, rest)
            after_forward[name] = max(arrival, module_seconds.gather) + module_seconds.forward
            after_backward[name] = max(module_seconds.reduce, rest)
        raise KeyError(bottleneck)

    def _unit(self, name: str, choice: ModuleChoice) -> UnitPlan:
        if (name, choice) not in self._known.units:
            self._known.units[name, choice] = unit_of_choice(self._problem, name, choice)
        return self._known.units[name, choice]

    def _module(self, name: str, choice: ModuleChoice, microbatches: int) -> _ModuleSeconds:
        key = (name, choice, microbatches)
        if key not in self._known.modules:
            unit = self._unit(name, choice)
            stages = self._problem.unit_work(unit, microbatches)
            ranks = [stages[rank :: unit.pp] for rank in range(unit.pp)]
            work = [float(np.max(sum(stage.work for stage in rank))) for rank in ranks]
            slowest = int(np.argmax(work))
            over_replicas = np.max if unit.phase_rows else np.mean  # an exchange waits for the slowest replica
            self._known.modules[key] = _ModuleSeconds(
                slowest_rank=work[slowest],
                by_microbatch=np.asarray(sum(stage.slowest for stage in ranks[slowest])),
                pp=unit.pp,
                chunks=unit.parallelism.chunks,
                forward=sum(float(over_replicas(stage.forward)) for stage in stages) / microbatches,
                backward=sum(float(over_replicas(stage.backward)) for stage in stages) / microbatches,
                gather=sum(stage.gather for stage in ranks[0]),
                reduce=sum(stage.reduce for stage in ranks[0]),
                update=max(sum(stage.update for stage in rank) for rank in ranks),
            )
            if self._problem.rendezvous:
                self._known.ranks[key] = self._rank_seconds(unit, stages, microbatches)
        return self._known.modules[key]

    def _rank_seconds(self, unit: UnitPlan, stages: Sequence[StageWork], microbatches: int) -> _RankSeconds:
        hops = hops_within(unit, microbatches, self._problem.sampled_costs)
        hops[1] *= [stage.backward.any() for stage in stages[:-1]]  # gradients go to the stages that compute some
        on_ranks = rank_hop_seconds(hops.sum(axis=0), unit.pp)
        ranks = [stages[rank :: unit.pp] for rank in range(unit.pp)]
        work = np.array([np.max(sum(stage.work for stage in rank)) for rank in ranks])
        by_microbatch = np.array([sum(stage.slowest for stage in rank) for rank in ranks])
        waits = 1 + (ring_waits(unit.parallelism.chunks) if unit.pp > 1 else 0.0)
        return _RankSeconds(
            unit=unit,
            work=waits * work + microbatches * on_ranks,
            by_microbatch=waits * by_microbatch + on_ranks[:, None],
            path=hops.sum(axis=1),
        )

    def _with_hops(self, modules: dict[str, _ModuleSeconds], layout: DisjointLayout) -> dict[str, _ModuleSeconds]:
        """The modules, with the seconds of hops that occupy their devices."""
        microbatches = layout.microbatches
        ranks = {name: self._known.ranks[name, choice, microbatches] for name, choice in layout.choices.items()}
        ends = {name: np.zeros((2, microbatches)) for name in modules}  # on the first rank, and on the last
        path = {name: module.path for name, module in ranks.items()}
        for source, target in self._problem.graph.edges:
            edge = self._edge(ranks[source].unit, ranks[target].unit, microbatches, modules[source].backward > 0)
            ends[source][1] += edge.forward + edge.backward
            ends[target][0] += edge.forward + edge.backward
            path[target] = path[target] + [edge.forward.mean(), edge.backward.mean()]
        with_hops = {}
        for name, module in modules.items():
            by_microbatch, work = ranks[name].by_microbatch.copy(), ranks[name].work.copy()
            for rank, seconds in zip((0, -1), ends[name], strict=True):
                by_microbatch[rank] += seconds
                work[rank] += seconds.sum()
            slowest = int(np.argmax(work))
            with_hops[name] = module._replace(
                slowest_rank=float(work[slowest]),
                by_microbatch=by_microbatch[slowest],
                forward=module.forward + float(path[name][0]),
                backward=module.backward + float(path[name][1]),
            )
        return with_hops

    def _edge(self, source: UnitPlan, target: UnitPlan, microbatches: int, has_gradients: bool) -> EdgeSeconds:
        """The hops between two units; they depend on the sizes of both alone."""
        sizes = (
            (unit.name, unit.parallelism, len(unit.stage_devices(0)), unit.phase_rows) for unit in (source, target)
        )
        key = (*sizes, microbatches)
        if key not in self._known.edges:
            edge = hops_between(source, target, microbatches, self._problem.sampled_costs)
            self._known.edges[key] = edge if has_gradients else edge._replace(backward=np.zeros(microbatches))
        return self._known.edges[key]


def _stalls(modules: dict[str, _ModuleSeconds], window: int) -> float:
    """Seconds by which modules that wait for each other take longer than the slowest of them alone."""
    seconds = np.stack([module.by_microbatch for module in modules.values()])
    windows = np.add.reduceat(seconds, np.arange(0, seconds.shape[1], window), axis=1)
    return float(windows.max(axis=0).sum() - seconds.sum(axis=1).max())
