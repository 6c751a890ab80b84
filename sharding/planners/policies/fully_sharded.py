"""All modules on the same devices, their weights fully sharded (ZeRO-3, PyTorch FSDP; OrchMLLM, arXiv 2503.23830).

Every module is a unit of one stage. The backbone's replicas divide the rows of a microbatch; an encoder or generator
has no tensor parallelism, so that it has more replicas, with rows of its own over which its items are dealt
(`UnitPlan.phase_rows`): every phase is balanced. Weights are divided over all replicas, or over hybrid groups of whole
nodes (`Parallelism.fsdp`). There is no pipeline, and the fewer microbatches, the less often weights are gathered.

Layouts, which are the backbone's tensor ranks, its groups and the number of microbatches, are tried in the order of
their lower bounds, until the next cannot be the fastest. In each, the layers of every module recompute, or offload what
they save, so that the step is shortest in the memory that there is (`module_recompute`).
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sharding.planners.capacities import capacities_of
from sharding.planners.infeasible import check_gathered_layers
from sharding.planners.layouts.placement import make_unit
from sharding.planners.module_recompute import ModulePolicies, NeedsByPolicy, PolicyNeeds, least_seconds, modelled_bytes
from sharding.planners.problem import STEP_SLACK, PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.text.recompute_text import recompute_text
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy

_GROUP_GROWTH = 4  # how many times larger the next hybrid group is
_TRIES = 5  # estimates of what a device holds beyond the bytes of its modules


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


class _FittingPlan(NamedTuple):
    """A plan that fits, and the seconds of its step."""

    plan: Plan
    step: float


def plans(problem: PlanningProblem) -> list[Plan]:
    """A plan of every layout that fits and may be the fastest; else the plan that comes nearest to fitting.

    Raises:
        PlanError: No number of replicas divides the rows, or fixed ranks do not suit modules on the same devices; or
            no plan fits, and the nearest gathers a layer that does not.
    """
    search, fitting = _Search(problem), list[_FittingPlan]()
    layouts = search.layouts()
    for bound, layout in layouts:
        longest = _longest_of_use(fitting, search.devices_of(layout))
        if bound > longest * (1 + STEP_SLACK):
            break
        best = search.best_with(layout, longest) if bound <= longest else None
        if best:
            fitting.append(best)
    if fitting:
        return [plan for plan, _ in fitting]
    nearest = search.smallest([layout for _, layout in layouts])
    check_gathered_layers(problem, nearest)
    return [nearest]


def _longest_of_use(fitting: Sequence[_FittingPlan], devices: int) -> float:
    """Seconds that a step on so many devices may take to be the shortest, or nearly and with fewer device-seconds."""
    shortest = min((step for _, step in fitting), default=math.inf)
    least = min((plan.device_count * step for plan, step in fitting), default=math.inf)
    return max(shortest, min(least / devices, shortest * (1 + STEP_SLACK)))


class _Search:
    """The layouts and plans of one problem."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self._backbone = problem.graph.backbone.name
        self._ranks = problem.fixed_ranks_of(self._backbone)
        self._layers = {module.name: module.layer_count for module in problem.graph.modules}

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
        least = self._alike(self._problem.searched_recompute[0])
        bounds = [self._problem.least_step_seconds(self._plan(layout, least)) for layout in layouts]
        return sorted(zip(bounds, layouts, strict=True))

    def devices_of(self, layout: _Layout) -> int:
        """Number of devices of a layout."""
        return layout.dp * layout.tp * self._ranks.cp

    def best_with(self, layout: _Layout, longest: float) -> _FittingPlan | None:
        """The fastest plan of a layout that fits; None if there is none, or it would take longer than `longest`.

        What a device holds beyond the bytes that its modules are known for is taken from the plan that was simulated
        before. Few layers change with that, so that a plan which takes far longer is the last.
        """
        best, tried, beyond = None, set[Plan](), 0.0
        for _ in range(_TRIES):
            policies = self._policies_with(layout, beyond)
            if policies is None:
                break
            plan = self._plan(layout, policies)
            if plan in tried or self._problem.least_step_seconds(plan) > longest:
                break
            tried.add(plan)
            timeline = self._problem.simulate(plan)
            if self._problem.memory_fraction(timeline) <= 1 and (best is None or timeline.step < best.step):
                best = _FittingPlan(plan, timeline.step)
            if timeline.step > longest * (1 + STEP_SLACK):
                break
            beyond = max(map(timeline.lane_peak_memory, timeline.lanes)) - modelled_bytes(self._needs(layout), policies)
        return best

    def smallest(self, layouts: list[_Layout]) -> Plan:
        """Returns the plan that comes nearest, where no plan of these layouts fits."""
        nearest = (
            self._plan(layout, self._alike(policy))
            for layout in layouts
            if layout.group == layout.dp  # takes the least memory
            for policy in self._problem.recompute_choices
        )
        return min(nearest, key=lambda plan: self._problem.memory_fraction(self._problem.simulate(plan)))

    def _alike(self, policy: RecomputePolicy) -> ModulePolicies:
        policies: dict[str, tuple[RecomputePolicy, ...]] = {}
        for module, count in self._layers.items():
            policies[module] = (policy,) * count
        return policies

    def _policies_with(self, layout: _Layout, beyond: float) -> ModulePolicies | None:
        """The policies with which the step is shortest where a device holds so many bytes beyond the modules'."""
        room, host_room = self._problem.cluster.usable_memory - beyond, self._problem.cluster.host_memory
        return least_seconds(self._layers, self._needs(layout), room, host_room)

    @functools.cache  # noqa: B019 as long-lived as the search
    def _needs(self, layout: _Layout) -> Mapping[str, NeedsByPolicy]:
        """By module, what it takes of a step of a layout with each policy."""
        needs: dict[str, dict[RecomputePolicy, PolicyNeeds]] = {module: {} for module in self._layers}
        for policy in self._problem.searched_recompute:
            for unit in self._plan(layout, self._alike(policy)).units:
                (costs,) = self._problem.unit_costs(unit, layout.microbatches)
                needs[unit.name][policy] = PolicyNeeds(
                    seconds=float((costs.forward + costs.backward).max(axis=1).sum()),
                    device_bytes=float(costs.saved_bytes.max()),
                    host_bytes=float(costs.offloaded_bytes.max()) + costs.host_bytes,
                    static_bytes=sum(costs.static),
                )
        return needs

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

    def _plan(self, layout: _Layout, policies: ModulePolicies) -> Plan:
        """Returns the plan of a layout."""
        devices = self.devices_of(layout)
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
                recompute="none",
                fixed_ranks=ranks,
                collectives=self._problem.collectives_of(module.name, tp),
                rows=0 if module.is_backbone else replicas,
            )
            capacities = () if module.is_backbone else self._capacities(unit, layout.microbatches)
            fsdp = layout.group * replicas // layout.dp
            units.append(
                dataclasses.replace(
                    unit,
                    recompute=(recompute_text(policies[module.name]),),
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
