"""A planning problem: a training step to be laid out on a cluster, and the simulation by which plans are compared."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int

from configs.clusters import CLUSTERS, ClusterConfig
from configs.cost_effects import EffectName
from configs.device_generations import PUBLISHED
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts, LoadsByModule
from sharding.costs.cost_model import CostModel
from sharding.costs.published_errors import error_families
from sharding.costs.stages.plan_costs import plan_costs, unit_costs
from sharding.costs.stages.plan_work import plan_work, unit_work
from sharding.costs.step_costs import StageCosts, StageWork, StepCosts, StepWork
from sharding.planners.schedule_orders import ScheduleOrders
from sharding.planners.step_bound import least_step_seconds
from sharding.planners.tables.fixed_ranks import SINGLE_RANKS, FixedRanks, check_fixed_ranks
from sharding.planners.tables.module_table import ModuleTable
from sharding.planners.tables.replica_shares import OneRowEach, ReplicaShares, ReplicaSharing, replica_sharing
from sharding.planners.tables.tabulate import module_table
from sharding.plans.parallelism import CollectivesName
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.plan_purpose import (
    NamedConfiguration,
    OccupiedByHops,
    PlanPurpose,
    default_hops,
    mean_loads,
    module_sizes,
)
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.stage_graph import StageId
from sharding.plans.resolved.trained_parts import RequiredGradients
from sharding.plans.unit_plan import UnitPlan
from sharding.recently_used import RecentlyUsed
from sharding.schedules.named.build import training_op_graph
from sharding.schedules.named.registry import find_schedule
from sharding.simulation.simulator import RecentNodes, simulate
from sharding.simulation.timeline import Timeline
from sharding.specs.layers.layer import RECOMPUTE_POLICIES, LoadColumn, RecomputePolicy
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph
from sharding.specs.row_load_statistics import RowLoadStatistics

TENSOR_SIZES = (1, 2, 4, 8)

HopTiming = Literal["auto", "asynchronous", "rendezvous"]
"""What hops occupy (`OccupiedByHops`); `auto` takes `rendezvous` where the devices are on several nodes."""

STEP_SLACK = 0.02
"""Share by which a plan may take longer than the shortest step, to take fewer device-seconds."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PlanningProblem:
    """A training step to be laid out on a cluster.

    Attributes:
        graph: The modules.
        costs: The cost model.
        cluster: The devices.
        devices: Number of devices.
        rows: Rows of the global batch.
        data: Loads of representative rows.
        trained_parts: Parts that train.
        recompute_choices: Recomputation policies that a planner may choose; `fsdp` and the local search also try
            `offload` where devices have a link to their hosts' memory.
        chunk_choices: Numbers of virtual stages per pipeline rank of the backbone that a planner may choose.
        tensor_sizes: Tensor-parallel sizes that a planner may choose; sizes larger than a node are left out.
        fixed_ranks: Context-parallel and expert ranks by module, which no planner changes. Where none are given, the
            policies take one of each, and the local search tries others.
        seed: Seed of the rows that plans are simulated with.
        row_positions: Positions of a row by module, where they are known; sequence parallelism is left out where the
            tensor ranks do not divide them.
        row_capacities: Capacity of a row of the global batch by encoder or generator, where it is known: patches,
            frames or target images.
        configuration: The configuration that it was read from, which its plans name.
        hops: What hops occupy.
        without: Effects that `costs` leave out, which its plans name.
    """

    graph: ModuleGraph
    costs: CostModel
    cluster: ClusterConfig
    devices: int
    rows: int
    data: RowLoadStatistics
    trained_parts: frozenset[str]
    recompute_choices: tuple[RecomputePolicy, ...] = ("none", "selective", "full")
    chunk_choices: tuple[int, ...] = (1,)
    tensor_sizes: tuple[int, ...] = TENSOR_SIZES
    fixed_ranks: Mapping[str, FixedRanks] = dataclasses.field(default_factory=dict)
    seed: int = 0
    row_positions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    row_capacities: Mapping[str, int] = dataclasses.field(default_factory=dict)
    configuration: NamedConfiguration = NamedConfiguration()
    hops: HopTiming = "auto"
    without: tuple[EffectName, ...] = ()

    def __post_init__(self) -> None:
        for name in ("devices", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"PlanningProblem.{name} is {getattr(self, name)}; it must be at least 1")
        if self.hops not in get_args(HopTiming):
            raise PlanError(f"hops {self.hops!r}; choose from {', '.join(get_args(HopTiming))}")
        for name in ("recompute_choices", "chunk_choices", "tensor_sizes"):
            if not getattr(self, name):
                raise ValueError(f"PlanningProblem.{name} is empty; name at least one choice")
        check_fixed_ranks(self.fixed_ranks, self.graph, self.rows, self.row_positions)

    @functools.cached_property
    def purpose(self) -> PlanPurpose:
        """The model, rows, cluster and assumptions that its plans are made for."""
        is_default = self.occupied_by_hops == default_hops(self.cluster, self.devices)
        return PlanPurpose(
            configuration=self.configuration,
            model=module_sizes(self.graph),
            mean_row=mean_loads(self.data),
            rows=self.rows,
            cluster=self.cluster.name,
            described_cluster=None if self.cluster.name in CLUSTERS else self.cluster,
            devices=self.devices,
            hops=None if is_default else self.occupied_by_hops,
            without=self.without,
        )

    @property
    def occupied_by_hops(self) -> OccupiedByHops:
        """What hops occupy; for `auto` what it takes on these devices."""
        return default_hops(self.cluster, self.devices) if self.hops == "auto" else self.hops

    @property
    def rendezvous(self) -> bool:
        """Whether hops occupy the devices of both their ends."""
        return self.occupied_by_hops == "rendezvous"

    def with_devices(self, devices: int) -> "PlanningProblem":
        """The same problem on another number of devices; shares what does not depend on it."""
        other = dataclasses.replace(self, devices=devices)
        for name in ("module_tables", "sampled_rows", "sampled_costs", "_mean_costs", "kept_by_estimates"):
            other.__dict__[name] = getattr(self, name)
        return other

    def with_recompute_choices(self, choices: tuple[RecomputePolicy, ...]) -> "PlanningProblem":
        """The same problem with other recomputation policies; shares what does not depend on them."""
        other = dataclasses.replace(self, recompute_choices=choices)
        for name in ("sampled_rows", "sampled_costs", "_mean_costs", "sharing", "_shares"):
            other.__dict__[name] = getattr(self, name)
        return other

    def fixed_ranks_of(self, module: str) -> FixedRanks:
        """The context-parallel and expert ranks of a module."""
        return self.fixed_ranks.get(module, SINGLE_RANKS)

    def collectives_of(self, module: str, tp: int, cp: int | None = None) -> CollectivesName:
        """Collectives of `tp` tensor ranks of a module around split matmuls: the cost model's, if possible.

        Args:
            module: The module.
            tp: Tensor-parallel ranks of a replica.
            cp: Context-parallel ranks of a replica; by default the ones that are given for the module.
        """
        ranks = tp * (self.fixed_ranks_of(module).cp if cp is None else cp)
        return "all_reduce" if tp == 1 or self.row_positions.get(module, 0) % ranks else self.costs.collectives

    @functools.cached_property
    def searched_recompute(self) -> tuple[RecomputePolicy, ...]:
        """`recompute_choices`, and `offload` where devices reach their hosts' memory, from the least time on."""
        allowed: set[RecomputePolicy] = {*self.recompute_choices}
        if self.cluster.host_link and self.costs.has_all_policies:
            allowed.add("offload")
        return tuple(policy for policy in RECOMPUTE_POLICIES if policy in allowed)

    @functools.cached_property
    def has_generators(self) -> bool:
        """Whether a stage of generators comes after the backbone."""
        return any(map(self.is_generator, self.graph.names))

    def is_generator(self, module: str) -> bool:
        """Whether the backbone feeds a module."""
        return bool(self.graph[module].inputs) and not self.graph[module].is_backbone

    @functools.cached_property
    def row_divisors(self) -> Int[np.ndarray, " k"]:
        """Divisors of the rows, ascending: the possible data-parallel sizes and rows of a replica's microbatch."""
        numbers = np.arange(1, self.rows + 1)
        return numbers[self.rows % numbers == 0]

    def most_replicas(self, limit: int, ep: int) -> int:
        """The most replicas, up to a limit, that divide the rows and are a multiple of the expert ranks; or 0."""
        return max((int(dp) for dp in self.row_divisors if dp <= limit and dp % ep == 0), default=0)

    @functools.cached_property
    def module_tables(self) -> dict[str, ModuleTable]:
        """Seconds and bytes of every module under every candidate; computed once, from the mean row."""
        required = RequiredGradients(self.graph, self.trained_parts)
        tensor_sizes = tuple(tp for tp in self.tensor_sizes if tp <= self.cluster.devices_per_node)
        return {
            module.name: module_table(
                module,
                required,
                self.costs,
                self.data.loads[module.name],
                self.sharing[module.name].tabulated_rows,
                recompute=self.recompute_choices,
                chunks=self.chunk_choices if module.is_backbone else (1,),
                tensor_sizes=tensor_sizes,
                fixed_ranks=self.fixed_ranks_of(module.name),
            )
            for module in self.graph.modules
        }

    @functools.cached_property
    def kept_by_estimates(self) -> dict[bool, Any]:
        """What `StepEstimate` keeps, by `rendezvous`; it is the same on any number of devices."""
        return {}

    @functools.cached_property
    def sharing(self) -> Mapping[str, ReplicaSharing]:
        """How the replicas of every module share a microbatch."""
        return {module.name: self._sharing(module) for module in self.graph.modules}

    def _sharing(self, module: ModuleSpec) -> ReplicaSharing:
        name, ep = module.name, self.fixed_ranks_of(module.name).ep
        if module.is_backbone:
            return OneRowEach(ep)
        per_row = float(self.data.mean_load(name)[LoadColumn.ITEMS])
        return replica_sharing(self.sampled_rows[name], per_row, self.row_divisors, ep, self.devices)

    def replica_shares(self, module: str, dp: int) -> ReplicaShares:
        """Shares of a microbatch of a module's replicas beside a backbone of `dp` replicas."""
        if (module, dp) not in self._shares:
            self._shares[module, dp] = self.sharing[module].shares(dp)
        return self._shares[module, dp]

    @functools.cached_property
    def _shares(self) -> dict[tuple[str, int], ReplicaShares]:
        return {}

    def least_device_seconds(self, module: str, dp: int, tp: int) -> float:
        """Device-seconds that a microbatch of `dp` rows takes of a module at least, with `tp` tensor ranks."""
        if (module, dp, tp) not in self._device_seconds:
            count, rows = self.sharing[module].least_share(dp)
            seconds = self.module_tables[module].least_device_seconds(tp, rows)
            self._device_seconds[module, dp, tp] = count * seconds
        return self._device_seconds[module, dp, tp]

    @functools.cached_property
    def _device_seconds(self) -> dict[tuple[str, int, int], float]:
        return {}

    @functools.cached_property
    def sampled_rows(self) -> LoadsByModule:
        """Loads of the global batch's rows that plans are simulated with."""
        return self.data.sample_batch(self.rows, self.seed)

    @functools.cached_property
    def sampled_costs(self) -> BatchCosts:
        """Costs of layers for `sampled_rows`."""
        return self._batch_costs(self.sampled_rows)

    def _batch_costs(self, rows: LoadsByModule) -> BatchCosts:
        return BatchCosts(self.graph, self.costs, rows)

    def simulate(self, plan: Plan, rendezvous: bool | None = None, rows: LoadsByModule | None = None) -> Timeline:
        """Simulates one step of a plan.

        Args:
            plan: The plan.
            rendezvous: Whether hops occupy the devices of both their ends; by default as the problem has it.
            rows: Loads of the global batch's rows; `sampled_rows` by default.
        """
        resolved = self.resolve(plan)
        timeline = self.simulate_costs(resolved, self._step_costs(resolved, rows), rendezvous)
        return dataclasses.replace(
            timeline,
            purpose=self.purpose,
            device_memory=self.cluster.usable_memory,
            error_families=error_families(plan, self.graph) if self.is_comparable else (),
        )

    def simulate_costs(self, resolved: ResolvedPlan, costs: StepCosts, rendezvous: bool | None = None) -> Timeline:
        """Simulates one step of a plan with costs of its ops that are given."""
        occupies_ends = self.rendezvous if rendezvous is None else rendezvous
        return simulate(resolved, self._orders.schedule(resolved), costs, occupies_ends, self._recent_nodes)

    @functools.cached_property
    def _recent_nodes(self) -> RecentNodes:
        """Of two schedules, because the nodes of a large one take hundreds of megabytes."""
        return RecentNodes(2)

    @property
    def is_comparable(self) -> bool:
        """Whether published runs say how far its simulated steps are from measured ones."""
        return isinstance(self.costs, AnalyticCostModel) and self.costs.cluster.generation in PUBLISHED

    def step_costs(self, plan: Plan, rows: LoadsByModule | None = None) -> StepCosts:
        """Seconds and bytes of every op of a plan's step, with `sampled_rows` by default."""
        return self._step_costs(self.resolve(plan), rows)

    def _step_costs(self, resolved: ResolvedPlan, rows: LoadsByModule | None) -> StepCosts:
        return plan_costs(resolved, self._batch_costs(rows) if rows else self.sampled_costs)

    def resolve(self, plan: Plan) -> ResolvedPlan:
        """Resolves a plan for the problem's model; whether it can run is not checked."""
        return self._resolved.get(plan, lambda: ResolvedPlan(plan, self.graph, self.trained_parts))

    @functools.cached_property
    def _resolved(self) -> RecentlyUsed[ResolvedPlan]:
        return RecentlyUsed[ResolvedPlan](8)

    @functools.cached_property
    def _orders(self) -> ScheduleOrders:
        return ScheduleOrders()

    def least_step_seconds(self, plan: Plan, work: StepWork | None = None) -> float:
        """Seconds that the simulated step of a plan is not shorter than; takes a fraction of the simulation's time.

        Args:
            plan: The plan.
            work: Its `step_work`, where it is known.
        """
        resolved = self.resolve(plan)
        op_graph = training_op_graph(resolved, resolved.trained_stages)
        bundles = find_schedule(plan.schedule).bundles
        return least_step_seconds(op_graph, work or plan_work(resolved, self.sampled_costs), bundles=bundles)

    def step_work(self, plan: Plan) -> StepWork:
        """Lower bounds of the ops of a plan's step."""
        return plan_work(self.resolve(plan), self.sampled_costs)

    def mean_microbatch_costs(self, plan: Plan) -> dict[StageId, StageCosts]:
        """Costs of the stages of a plan for one microbatch of mean rows, on any pipeline replica of a unit."""
        count = self.rows // plan.microbatches
        if count not in self._mean_costs:
            rows = {name: np.tile(self.data.mean_load(name), (count, 1)) for name in self.graph.names}
            self._mean_costs[count] = self._batch_costs(rows)
        return {
            (unit.name, number): costs
            for unit in plan.units
            for number, costs in enumerate(unit_costs(unit, 1, self._mean_costs[count], self.trained_parts))
        }

    @functools.cached_property
    def _mean_costs(self) -> dict[int, BatchCosts]:
        """Costs of layers for one microbatch of mean rows, by the rows of the microbatch."""
        return {}

    def unit_work(self, unit: UnitPlan, microbatches: int) -> tuple[StageWork, ...]:
        """Lower bounds of every stage of a unit, on the rows that plans are simulated with."""
        return unit_work(unit, microbatches, self.sampled_costs, self.trained_parts)

    def unit_costs(self, unit: UnitPlan, microbatches: int) -> tuple[StageCosts, ...]:
        """Costs of every stage of a unit, wherever the others are, on the rows that plans are simulated with."""
        return unit_costs(unit, microbatches, self.sampled_costs, self.trained_parts)

    def memory_fraction(self, timeline: Timeline) -> float:
        """The largest share of a device's or of its host's memory that a step takes; more than 1 does not fit."""
        on_device = max(timeline.lane_peak_memory(lane) for lane in timeline.lanes) / self.cluster.usable_memory
        on_host = max(timeline.lane_peak_host_memory(lane) for lane in timeline.lanes)
        return max(on_device, on_host / self.cluster.host_memory) if on_host else on_device
