"""The policy `colocated`: pipeline replicas of encoders and generators on the backbone's devices, in its idle time.

Optimus's orchestration (arXiv 2408.03505, sections 3 and 4): backbone and encoders have plans of their own on the same
devices. The backbone's layout is searched by an estimate, `max(step of the backbone alone, work of all modules)`, and
by a lower bound of the step; the layouts of the other modules are the ones whose pipeline and tensor ranks divide the
backbone's, without layouts that do not fit beside it. What differs between the best of them, which microbatches
pipeline replicas take and into how many slices their stages are cut, is decided by simulating the schedule `colocated`.
"""

import dataclasses
import functools
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sharding.planners.colocation.backbone_layouts import BackboneLayout, ShortestLayouts, backbone_layouts
from sharding.planners.colocation.colocated_plan import colocated_plan, with_assigned_microbatches
from sharding.planners.colocation.replicated_layouts import ReplicatedLayout, replicated_layouts
from sharding.planners.layouts.schedule_fields import with_stage_seconds
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError

_BOUNDED = 40  # layouts of the backbone of which a lower bound of the step is computed, by the estimate
_BACKBONES = 3  # layouts of the backbone that are simulated, among the layouts that fit
_TRIED = 12  # at most, fitting or not
_MORE_RECOMPUTATION, _OTHER_RANKS = 1, 2  # further layouts of each other module that are simulated
_MOST_OPS = 16_000  # forwards and backwards of a plan, unless all have more
_SIMULATED_OPS = 60_000  # of all plans together; the first plan is simulated however many it has
_OPS_WITHOUT_GAIN = 20_000  # of all plans together, where none of them is shorter than another policy's
_FAR = 1.15  # times as long as another policy's step
_ASSIGNED = 0.05  # share by which plans whose microbatches are then divided may take longer than the shortest
_WAVES = (6, 5, 4, 3, 2, 1)  # numbers of waves in which generators take the microbatches of a step
_PLACED_PASSES = 500_000  # by the search for which pipeline replica takes which microbatch


class _ColocatedLayout(NamedTuple):
    """A layout of the backbone, and the layouts of all other modules.

    Attributes:
        seconds: Estimate of the step.
        backbone: Layout of the backbone.
        replicated: Layouts of the other modules.
    """

    seconds: float
    backbone: BackboneLayout
    replicated: tuple[ReplicatedLayout, ...]


class _PlanMemory(NamedTuple):
    """A plan, the seconds of its simulated step, and the share of the memory that it takes."""

    plan: Plan
    step: float
    memory: float


class _SimulatedLayout(NamedTuple):
    """Layouts, and a plan of them that was simulated."""

    backbone: BackboneLayout
    replicated: tuple[ReplicatedLayout, ...]
    simulated: _PlanMemory


def plans(problem: PlanningProblem, known_step: float = math.inf) -> list[Plan]:
    """Returns the best plans that fit; where none does, the plan that comes nearest.

    Args:
        problem: The problem.
        known_step: Seconds of the step of another policy's plan. Nothing is simulated where no step can be about as
            short, by the estimate and the lower bound of the layouts. The search ends with its first plan if that takes
            `_FAR` times as long: what is searched after it does not shorten a step by so much.

    Raises:
        PlanError: There is no module besides the backbone, a module has context-parallel ranks, or no layout
            leaves memory for the weights of all modules; or every layout takes longer than `known_step`, or the first
            plan does not fit and takes far longer.
    """
    _check(problem)
    search, fitting, others = _ColocatedSearch(problem, known_step), [], []
    for tried, candidate in enumerate(search.candidates()):
        if not tried and candidate.seconds > known_step * (1 + STEP_SLACK):
            raise PlanError(
                f"by estimates and lower bounds no step is as short as another policy's, {known_step:.3g} s; "
                "--policy=colocated searches on"
            )
        shortest = min((layout.simulated.step for layout in fitting), default=math.inf)
        is_long = candidate.seconds > min(shortest, known_step) * (1 + STEP_SLACK)
        if is_long or len(fitting) == _BACKBONES or tried == _TRIED or (tried and search.is_exhausted):
            break
        best = search.best_of(candidate)
        (fitting if best.simulated.memory <= 1 else others).append(best)
    if not fitting and not others:
        raise PlanError(
            f"no layout of {problem.graph.backbone.name} on {problem.devices} devices leaves memory for the weights of "
            "all other modules, of which each device has pipeline replicas; use more devices, or the policy "
            "disaggregated"
        )
    if not fitting and search.is_far:
        step = others[0].simulated.step
        raise PlanError(
            f"its first plan needs more memory than there is and takes {step:.3g} s, {step / known_step:.1f} times as "
            "long as another policy's; --policy=colocated searches on"
        )
    if not fitting:
        return [min(others, key=lambda layout: layout.simulated.memory).simulated.plan]
    if search.is_far:
        return [layout.simulated.plan for layout in fitting]
    near = _near_shortest(fitting, _ASSIGNED)
    improved = [search.with_larger_waves(search.with_assigned(layout)) for layout in near]
    return [layout.simulated.plan for layout in _near_shortest(improved, STEP_SLACK)]


def _near_shortest(layouts: Iterable[_SimulatedLayout], slack: float) -> list[_SimulatedLayout]:
    """The layouts whose step is longer than the shortest by no more than a share."""
    layouts = list(layouts)
    longest = min(layout.simulated.step for layout in layouts) * (1 + slack)
    return [layout for layout in layouts if layout.simulated.step <= longest]


def _check(problem: PlanningProblem) -> None:
    if len(problem.graph.modules) == 1:
        raise PlanError(f"{problem.graph.backbone.name} is the only module; there is none to compute in its idle time")
    for module in problem.graph.modules:
        if problem.fixed_ranks_of(module.name).cp > 1:
            raise PlanError(
                f"{module.name} is given cp {problem.fixed_ranks_of(module.name).cp}; pipeline replicas beside a "
                "backbone have no context-parallel ranks, so use the policy disaggregated"
            )


class _ColocatedSearch:
    """The candidates of one problem, and their simulated steps.

    Args:
        problem: The problem.
        known_step: Seconds of the step of another policy's plan.
    """

    def __init__(self, problem: PlanningProblem, known_step: float) -> None:
        self._problem, self._known_step, self._shortest = problem, known_step, math.inf
        self._others = [module.name for module in problem.graph.modules if not module.is_backbone]
        self._simulated_ops = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether as many ops have been simulated as take a reasonable time, or the first plan is far too long."""
        gains = self._shortest < self._known_step * (1 - STEP_SLACK / 2)  # perhaps without fitting
        return self._simulated_ops >= (_SIMULATED_OPS if gains else _OPS_WITHOUT_GAIN) or self.is_far

    @property
    def is_far(self) -> bool:
        """Whether plans were simulated, and all take far longer than the known step."""
        return self._known_step * _FAR < self._shortest < math.inf

    def candidates(self) -> Iterator[_ColocatedLayout]:
        """Layouts of the backbone with the first of all other modules that fit, by the estimate of the step.

        Where a lower bound of the step is longer than the estimate, it takes the estimate's place. It is computed only
        of layouts that would come next.
        """
        chosen = {}
        few, many = ShortestLayouts(_BOUNDED), ShortestLayouts(_BOUNDED)  # of at most `_MOST_OPS`, and of more
        for number, layout in enumerate(self._layouts):
            # No estimate is shorter than the step of the backbone alone.
            is_longer = layout.alone > self._known_step * (1 + STEP_SLACK)
            if few.are_shorter_than(layout.alone) or (is_longer and not few.is_empty):
                break
            if replicated := self._chosen(layout):
                chosen[layout] = replicated
                shortest = few if _op_count(layout, replicated, {}) <= _MOST_OPS else many
                shortest.add(_estimate(layout, replicated), number, layout)
        estimated = few.shortest() or many.shortest()
        waiting = [(seconds, number, False) for number, (seconds, _) in enumerate(estimated)]
        heapq.heapify(waiting)
        while waiting:
            seconds, number, is_bounded = heapq.heappop(waiting)
            layout = estimated[number][1]
            if is_bounded:
                yield _ColocatedLayout(seconds, layout, chosen[layout])
                continue
            bound = self._problem.least_step_seconds(colocated_plan(self._problem, layout, chosen[layout], {}))
            heapq.heappush(waiting, (max(seconds, bound), number, True))

    @functools.cached_property
    def _layouts(self) -> list[BackboneLayout]:
        """All layouts of the backbone, by the step of the backbone alone."""
        return backbone_layouts(self._problem)

    def _chosen(self, layout: BackboneLayout) -> tuple[ReplicatedLayout, ...] | None:
        """Chooses for every other module the first layout with which all fit beside the backbone; None if none do."""
        options = [self._replicated_layouts(name, layout) for name in self._others]
        if not all(options):
            return None
        least = [min(option.least_bytes for option in module_options) for module_options in options]
        room, chosen = self._problem.cluster.usable_memory - layout.peak_bytes, []
        for number, module_options in enumerate(options):
            left = room - sum(replicated.least_bytes for replicated in chosen) - sum(least[number + 1 :])
            fitting = next((option for option in module_options if option.least_bytes <= left), None)
            if fitting is None:
                return None
            chosen.append(fitting)
        return tuple(chosen)

    def _replicated_layouts(self, name: str, layout: BackboneLayout) -> list[ReplicatedLayout]:
        key = (name, *layout.division)
        if key not in self._replicated:
            self._replicated[key] = replicated_layouts(self._problem, name, layout)
        return self._replicated[key]

    @functools.cached_property
    def _replicated(self) -> dict[tuple, list[ReplicatedLayout]]:
        return {}

    def best_of(self, candidate: _ColocatedLayout) -> _SimulatedLayout:
        """Returns the fastest plan of a candidate that fits, or the plan that takes the least memory.

        First the layouts of the other modules are chosen, then their slices. Where the fastest does not fit, the
        backbone recomputes more beside it.
        """
        simulated_layouts = []
        for replicated in self._alternatives(candidate):
            if not simulated_layouts or not self.is_exhausted:
                simulated_layouts.append(self._simulate(candidate.backbone, replicated, {}))
        fastest = min(simulated_layouts, key=lambda layout: layout.simulated.step)
        if fastest.simulated.memory > 1 and not self.is_far:
            simulated_layouts += self._with_less_memory(fastest)
        best = _best(simulated_layouts)
        slices = self._slices(best.backbone, best.replicated)
        if max(slices.values()) > 1 and best.simulated.memory <= 1 and not self.is_exhausted:
            simulated_layouts.append(self._simulate(best.backbone, best.replicated, slices))
            best = _best(simulated_layouts)
        return best

    def with_assigned(self, best: _SimulatedLayout) -> _SimulatedLayout:
        """The layout with the division of microbatches among pipeline replicas that is found, if it is shorter."""
        replicated_ops = _op_count(best.backbone, best.replicated, {}) - _op_count(best.backbone, (), {})
        has_choice = any(layout.pipeline_replicas > 1 for layout in best.replicated)
        if not has_choice or best.backbone.microbatches * replicated_ops > _PLACED_PASSES:
            return best
        assigned = self._run(with_assigned_microbatches(self._problem, best.simulated.plan))
        return _best([best, best._replace(simulated=assigned)])

    def with_larger_waves(self, best: _SimulatedLayout) -> _SimulatedLayout:
        """The layout with more microbatches in flight, which generators take at once, as long as that shortens it."""
        backbone, plan = best.backbone, best.simulated.plan
        if not self._problem.has_generators or best.simulated.memory > 1:
            return best
        for waves in _WAVES:
            more = math.ceil(backbone.microbatches / waves) - backbone.pp
            if more <= 0:
                continue
            units = (
                unit.with_hints(extra_microbatches=min(more, backbone.microbatches * unit.parallelism.chunks - 1))
                for unit in plan.units
            )
            larger = self._run(dataclasses.replace(plan, units=tuple(units)))
            if larger.memory > 1 or larger.step >= best.simulated.step:
                break
            best = best._replace(simulated=larger)
        return best

    def _with_less_memory(self, fastest: _SimulatedLayout) -> list[_SimulatedLayout]:
        """The same layouts where the backbone recomputes so much more that all may fit, until one does."""
        backbone, simulated_layouts = fastest.backbone, []
        missing = (fastest.simulated.memory - 1) * self._problem.cluster.usable_memory
        for layout in self._layouts:
            same = (layout.division, layout.chunks) == (backbone.division, backbone.chunks)
            if same and layout.peak_bytes < backbone.peak_bytes - missing / 2:
                simulated_layouts.append(self._simulate(layout, fastest.replicated, {}))
                if simulated_layouts[-1].simulated.memory <= 1:
                    break
        return simulated_layouts

    def _alternatives(self, candidate: _ColocatedLayout) -> Iterator[tuple[ReplicatedLayout, ...]]:
        """The first layouts of the other modules, and further ones: with more recomputation, and on other ranks."""
        yield candidate.replicated
        for number, chosen in enumerate(candidate.replicated):
            options = self._replicated_layouts(chosen.module, candidate.backbone)
            later = options[options.index(chosen) + 1 :]
            same = [entry for entry in later if (entry.tp, entry.pp) == (chosen.tp, chosen.pp)][:_MORE_RECOMPUTATION]
            other = [entry for entry in later if (entry.tp, entry.pp) != (chosen.tp, chosen.pp)][:_OTHER_RANKS]
            for layout in (*same, *other):
                yield (*candidate.replicated[:number], layout, *candidate.replicated[number + 1 :])

    def _slices(self, backbone: BackboneLayout, replicated: Sequence[ReplicatedLayout]) -> Mapping[str, int]:
        """Into how many virtual stages each other module's ranks are cut, so that one takes as long as the backbone's.

        A module whose layers cannot be divided is not cut, and none into so many that the plan has too many ops.
        """
        op = backbone.work / backbone.microbatches / backbone.chunks
        slices = {}
        for layout in replicated:
            module = self._problem.graph[layout.module]
            stage_seconds = layout.work / math.ceil(backbone.microbatches / layout.pipeline_replicas)
            most = module.layer_count // layout.pp if module.divisible else 1
            slices[layout.module] = max(1, min(most, math.ceil(stage_seconds / op)))
        backbone_ops, all_ops = _op_count(backbone, (), {}), _op_count(backbone, replicated, slices)
        share = min(1.0, (_MOST_OPS - backbone_ops) / (all_ops - backbone_ops))
        return {name: max(1, int(count * share)) for name, count in slices.items()}

    def _simulate(
        self, backbone: BackboneLayout, replicated: Sequence[ReplicatedLayout], slices: Mapping[str, int]
    ) -> _SimulatedLayout:
        plan = colocated_plan(self._problem, backbone, replicated, slices)
        simulated = self._run(with_stage_seconds(self._problem, plan, communication=True))
        return _SimulatedLayout(backbone, tuple(replicated), simulated)

    def _run(self, plan: Plan) -> _PlanMemory:
        timeline = self._problem.simulate(plan)
        self._shortest = min(self._shortest, timeline.step)
        self._simulated_ops += 2 * plan.microbatches * sum(unit.stage_count for unit in plan.units)
        return _PlanMemory(plan, timeline.step, self._problem.memory_fraction(timeline))


def _best(layouts: Sequence[_SimulatedLayout]) -> _SimulatedLayout:
    """Returns the fastest plan that fits, or the plan that takes the least memory."""
    fitting = [layout for layout in layouts if layout.simulated.memory <= 1]
    if fitting:
        return min(fitting, key=lambda layout: layout.simulated.step)
    return min(layouts, key=lambda layout: layout.simulated.memory)


def _op_count(backbone: BackboneLayout, replicated: Sequence[ReplicatedLayout], slices: Mapping[str, int]) -> int:
    """Number of forwards and backwards of a step; every microbatch passes one pipeline replica of each module."""
    stages = backbone.pp * backbone.chunks + sum(
        module_layout.pp * slices.get(module_layout.module, 1) for module_layout in replicated
    )
    return 2 * backbone.microbatches * stages


def _estimate(backbone: BackboneLayout, replicated: Sequence[ReplicatedLayout]) -> float:
    """Seconds of a step whose idle time the other modules fill as far as their work goes."""
    alone, work = (
        backbone.alone + max(module_layout.fill for module_layout in replicated),
        backbone.work + sum(module_layout.work for module_layout in replicated),
    )
    return max(alone, work) + sum(module_layout.once for module_layout in replicated)
