"""All modules on the same devices, their weights fully sharded (ZeRO-3, PyTorch FSDP; OrchMLLM, arXiv 2503.23830).

Every module is a unit of one stage. The backbone's replicas divide the rows of a microbatch; an encoder or generator
has no tensor parallelism, so that it has more replicas, with rows of its own over which its items are dealt
(`UnitPlan.phase_rows`): every phase is balanced. Weights are divided over all replicas, or over hybrid groups of whole
nodes (`Parallelism.fsdp`). There is no pipeline, and the fewer microbatches, the less often weights are gathered.

Layouts, which are the backbone's tensor ranks, its groups and the number of microbatches, are tried in the order of
their lower bounds, until the next cannot be the fastest. As many layers of each module recompute as the memory needs.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

from sharding.planners.capacities import capacities_of
from sharding.planners.infeasible import check_gathered_layers
from sharding.planners.layouts.placement import make_unit
from sharding.planners.least_recompute import LayerPolicies, SimulatedMemory, least_recompute
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy

_GROUP_GROWTH = 4  # how many times larger the next hybrid group is


class _Layout(NamedTuple):
    """A layout of the backbone's replicas.

    Attributes:
        tp: Tensor ranks of the backbone.
        dp: Replicas of the backbone.
        group: How many of them divide its weights.
        microbatches: Microbatches of a step.
    """

    tp: int
    dp: int
    group: int
    microbatches: int


def plans(problem: PlanningProblem) -> list[Plan]:
    """A plan of every layout that fits and may be the fastest; else the plan that comes nearest to fitting.

    Raises:
        PlanError: No number of replicas divides the rows, or fixed ranks do not suit modules on the same devices; or
            no plan fits, and the nearest gathers a layer that does not.
    """
    search, plans, shortest = _Search(problem), [], math.inf
    for bound, layout in search.layouts():
        if bound > shortest * (1 + STEP_SLACK):
            break
        best = search.best_with(layout, shortest * (1 + STEP_SLACK))
        if best:
            plans.append(best.plan)
            shortest = min(shortest, best.step)
    if not plans:
        plans = [search.smallest()]
        check_gathered_layers(problem, plans[0])
    return plans


class _Search:
    """The layouts and plans of one problem."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self._backbone = problem.graph.backbone.name
        self._ranks = problem.fixed_ranks_of(self._backbone)
        self._nearest: SimulatedMemory | None = None  # of the plans that do not fit

    def layouts(self) -> list[tuple[float, _Layout]]:
        """All layouts, each with seconds that its step is not shorter than, ascending.

        Raises:
            PlanError: There is none.
        """
        layouts = [
            _Layout(tp, dp, group, microbatches)
            for tp in self._problem.module_tables[self._backbone].tensor_sizes
            if (dp := self._most_replicas(tp))
            for group in self._groups(tp, dp)
            for microbatches in range(1, self._problem.rows // dp + 1)
            if self._problem.rows // dp % microbatches == 0
        ]
        if not layouts:
            given = [(module.name, self._problem.fixed_ranks_of(module.name)) for module in self._problem.graph.modules]
            ranks = ", ".join(f"{name} cp {module_ranks.cp} ep {module_ranks.ep}" for name, module_ranks in given)
            raise PlanError(
                f"on {self._problem.devices} devices no number of replicas divides the {self._problem.rows} rows with "
                f"these ranks on the same devices: {ranks}; use more devices, or the policy disaggregated"
            )
        least = LayerPolicies(self._choices[0])
        bounds = [self._problem.least_step_seconds(self._plan(layout, least)) for layout in layouts]
        return sorted(zip(bounds, layouts, strict=True))

    def best_with(self, layout: _Layout, longest: float) -> SimulatedMemory | None:
        """The fastest plan of a layout that fits; None if there is none, or it would take longer than `longest`."""
        if self._simulate(layout, LayerPolicies(self._choices[0])).step > longest:
            return None
        largest = layout._replace(group=layout.dp)  # takes the least memory
        fitting = self._fitting(largest) and self._fitting(layout)
        return min(fitting, key=lambda simulated: simulated.step, default=None)

    def smallest(self) -> Plan:
        """Returns the plan that comes nearest, where no plan fits."""
        assert self._nearest is not None
        return self._nearest.plan

    @functools.cached_property
    def _choices(self) -> Sequence[RecomputePolicy]:
        """The recomputation policies to choose from, from the least to the most."""
        return sorted(self._problem.recompute_choices, key=get_args(RecomputePolicy).index)

    def _most_replicas(self, tp: int) -> int:
        """The most replicas of the backbone, or 0."""
        return self._problem.most_replicas(self._problem.devices // (tp * self._ranks.cp), self._ranks.ep)

    def _groups(self, tp: int, dp: int) -> list[int]:
        """Replicas of the backbone that divide its weights, ascending: hybrid groups of whole nodes, and all."""
        replica = tp * self._ranks.cp  # devices
        group, groups = max(2, math.gcd(dp, self._problem.cluster.devices_per_node // replica)), []
        while group < dp:
            groups.append(group)
            group *= _GROUP_GROWTH
        return [group for group in (*groups, dp) if dp % group == 0 and self._suits(tp, group * replica)]

    def _suits(self, tp: int, devices: int) -> bool:
        """Whether so many devices are whole replicas of every module, with all its experts."""
        for module in self._problem.graph.modules:
            fixed_ranks = self._problem.fixed_ranks_of(module.name)
            replicas, rest = divmod(devices, fixed_ranks.cp * (tp if module.is_backbone else 1))
            if rest or replicas % fixed_ranks.ep:
                return False
        return True

    @functools.cache  # noqa: B019 as long-lived as the search
    def _fitting(self, layout: _Layout) -> tuple[SimulatedMemory, ...]:
        """The plans of a layout with the least recomputation that fit."""
        fitting_plans = least_recompute(self._choices, functools.partial(self._simulate, layout))
        if not fitting_plans.fitting:
            nearest = [fitting_plans.nearest, *([self._nearest] if self._nearest else [])]
            self._nearest = min(nearest, key=lambda simulated: simulated.memory)
        return fitting_plans.fitting

    @functools.cache  # noqa: B019
    def _simulate(self, layout: _Layout, policies: LayerPolicies) -> SimulatedMemory:
        plan = self._plan(layout, policies)
        timeline = self._problem.simulate(plan)
        return SimulatedMemory(plan, timeline.step, self._problem.memory_fraction(timeline))

    def _plan(self, layout: _Layout, policies: LayerPolicies) -> Plan:
        """Returns the plan of a layout."""
        devices = layout.dp * layout.tp * self._ranks.cp
        units: list[UnitPlan] = []
        for module in self._problem.graph.modules:
            ranks = self._problem.fixed_ranks_of(module.name)
            tp = layout.tp if module.is_backbone else 1
            replicas = devices // (tp * ranks.cp)
            unit = make_unit(
                (module.name,),
                dp=replicas,
                tp=tp,
                layers=(module.layer_count,),
                recompute=policies.recompute,
                fixed_ranks=ranks,
                collectives=self._problem.collectives_of(module.name, tp),
                rows=0 if module.is_backbone else replicas,
            )
            capacities = () if module.is_backbone else self._capacities(unit, layout.microbatches)
            layer_policies = policies.of_stage(module.layer_count)
            fsdp = layout.group * replicas // layout.dp
            units.append(
                dataclasses.replace(
                    unit,
                    recompute=(layer_policies,),
                    capacities=capacities,
                    parallelism=dataclasses.replace(unit.parallelism, fsdp=fsdp),
                )
            )
        return Plan(tuple(units), layout.microbatches)

    def _capacities(self, unit: UnitPlan, microbatches: int) -> tuple[int, ...]:
        key = (unit.name, unit.phase_rows, microbatches)
        if key not in self._drawn_capacities:
            self._drawn_capacities[key] = capacities_of(self._problem, unit, microbatches)
        return self._drawn_capacities[key]

    @functools.cached_property
    def _drawn_capacities(self) -> dict[tuple[str, int, int], tuple[int, ...]]:
        return {}
