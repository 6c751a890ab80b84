"""All modules on the same devices, their weights fully sharded (ZeRO-3, PyTorch FSDP; OrchMLLM, arXiv 2503.23830).

Every module is a unit of one stage. The backbone's replicas divide the rows of a microbatch; an encoder or generator
has no tensor parallelism, so that it has more replicas, with rows of its own over which its items are dealt
(`UnitPlan.rows`): every phase is balanced. Weights are divided over all replicas, or over hybrid groups of whole nodes
(`UnitPlan.fsdp`). There is no pipeline, and the fewer microbatches, the less often weights are gathered.

Layouts, which are the backbone's tensor ranks, its groups and the number of microbatches, are tried in the order of
their lower bounds, until the next cannot be the fastest. As many layers of each module recompute as the memory needs.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

from sharding.planners.capacities import capacities_of
from sharding.planners.placement import make_unit
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import PlanError, UnitPlan
from sharding.specs.layer import RecomputePolicy

_GROUP_GROWTH = 4  # how many times larger the next hybrid group is
_MIXTURES = 3  # how often a share of recomputing layers is raised, where the first does not fit
_SHARE_STEP = 1 / 32


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


class _Simulated(NamedTuple):
    """A plan, the seconds of its step, the share of the memory that it takes, and how its layers recompute."""

    plan: Plan
    step: float
    memory: float
    recompute: RecomputePolicy


def plans(problem: PlanningProblem) -> list[Plan]:
    """A plan of every layout that fits and may be the fastest; else the plan that comes nearest to fitting.

    Raises:
        PlanError: No number of replicas divides the rows, or fixed ranks do not suit modules on the same devices.
    """
    search, found, shortest = _Search(problem), [], math.inf
    for bound, layout in search.layouts():
        if bound > shortest * (1 + STEP_SLACK):
            break
        best = search.best_with(layout, shortest * (1 + STEP_SLACK))
        if best:
            found.append(best.plan)
            shortest = min(shortest, best.step)
    return found or [search.smallest()]


class _Search:
    """The layouts and plans of one problem."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self._backbone = problem.graph.backbone.name
        self._ranks = problem.fixed_ranks_of(self._backbone)
        self._nearest: _Simulated | None = None  # of the plans that do not fit

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
            ranks = ", ".join(f"{name} cp {own.cp} ep {own.ep}" for name, own in given)
            raise PlanError(
                f"on {self._problem.devices} devices no number of replicas divides the {self._problem.rows} rows with "
                f"these ranks on the same devices: {ranks}; use more devices, or the policy disaggregated"
            )
        bounds = [self._problem.least_step_seconds(self._plan(layout, self._choices[0])) for layout in layouts]
        return sorted(zip(bounds, layouts, strict=True))

    def best_with(self, layout: _Layout, longest: float) -> _Simulated | None:
        """The fastest plan of a layout that fits; None if there is none, or it would take longer than `longest`."""
        if self._uniform(layout, self._choices[0]).step > longest:
            return None
        largest = layout._replace(group=layout.dp)  # takes the least memory
        fitting = self._fitting(largest) and self._fitting(layout)
        return min(fitting, key=lambda simulated: simulated.step, default=None)

    def smallest(self) -> Plan:
        """Where no plan fits, that which comes nearest."""
        assert self._nearest is not None
        return self._nearest.plan

    @functools.cached_property
    def _choices(self) -> Sequence[RecomputePolicy]:
        """From the least recomputation to the most."""
        return sorted(self._problem.recompute_choices, key=get_args(RecomputePolicy).index)

    def _most_replicas(self, tp: int) -> int:
        """The most replicas of the backbone, or 0."""
        most = self._problem.devices // (tp * self._ranks.cp)
        sizes = [int(dp) for dp in self._problem.row_divisors if dp <= most and dp % self._ranks.ep == 0]
        return sizes[-1] if sizes else 0

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
            own = self._problem.fixed_ranks_of(module.name)
            replicas, rest = divmod(devices, own.cp * (tp if module.is_backbone else 1))
            if rest or replicas % own.ep:
                return False
        return True

    @functools.cache  # noqa: B019 as long-lived as the search
    def _fitting(self, layout: _Layout) -> tuple[_Simulated, ...]:
        """The plan with the least recomputation in all layers that fits, and mixtures of it with less that does not."""
        uniform: list[_Simulated] = []
        for choice in self._choices:
            uniform.append(self._uniform(layout, choice))
            if uniform[-1].memory <= 1:
                break
        *faster, fitting = uniform
        if fitting.memory > 1:
            nearest = [*uniform, *([self._nearest] if self._nearest else [])]
            self._nearest = min(nearest, key=lambda simulated: simulated.memory)
            return ()
        mixed = [self._mixture(layout, each, fitting) for each in faster]
        return (fitting, *(each for each in mixed if each))

    def _mixture(self, layout: _Layout, faster: _Simulated, fitting: _Simulated) -> _Simulated | None:
        """A plan of which as few layers as possible recompute as in a plan that fits, and the others as in a faster."""
        share = (faster.memory - 1) / (faster.memory - fitting.memory)
        for _ in range(_MIXTURES):
            if share > 1:
                break
            plan = self._plan(layout, faster.recompute, fitting.recompute, share)
            simulated = self._simulate(plan, fitting.recompute)
            if simulated.memory <= 1:
                return simulated
            share += _SHARE_STEP
        return None

    @functools.cache  # noqa: B019
    def _uniform(self, layout: _Layout, recompute: RecomputePolicy) -> _Simulated:
        return self._simulate(self._plan(layout, recompute), recompute)

    def _simulate(self, plan: Plan, recompute: RecomputePolicy) -> _Simulated:
        timeline = self._problem.simulate(plan)
        return _Simulated(plan, timeline.step, self._problem.memory_fraction(timeline), recompute)

    def _plan(
        self,
        layout: _Layout,
        recompute: RecomputePolicy,
        first: RecomputePolicy = "none",
        share: float = 0.0,
    ) -> Plan:
        """A plan of a layout.

        Args:
            layout: The layout.
            recompute: The recomputation policy of the layers.
            first: That of a share of the layers of each module, its first ones.
            share: The share.
        """
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
                recompute=recompute,
                fixed_ranks=ranks,
                collectives=self._problem.collectives_of(module.name, tp),
                rows=0 if module.is_backbone else replicas,
            )
            capacities = () if module.is_backbone else self._capacities(unit, layout.microbatches)
            of_layers = _mixed(module.layer_count, recompute, first, share)
            fsdp = layout.group * replicas // layout.dp
            units.append(dataclasses.replace(unit, fsdp=fsdp, recompute=(of_layers,), capacities=capacities))
        return Plan(tuple(units), layout.microbatches)

    def _capacities(self, unit: UnitPlan, microbatches: int) -> tuple[int, ...]:
        key = (unit.name, unit.rows, microbatches)
        if key not in self._drawn_capacities:
            self._drawn_capacities[key] = capacities_of(self._problem, unit, microbatches)
        return self._drawn_capacities[key]

    @functools.cached_property
    def _drawn_capacities(self) -> dict[tuple[str, int, int], tuple[int, ...]]:
        return {}


def _mixed(layers: int, recompute: RecomputePolicy, first: RecomputePolicy, share: float) -> str:
    """`UnitPlan.recompute` of a stage of which the first layers recompute otherwise."""
    count = math.ceil(share * layers)
    if count == 0:
        return recompute
    return first if count == layers else f"{count} {first}, {layers - count} {recompute}"
