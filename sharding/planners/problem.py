"""What a planner is given, and the rehearsal by which its plans are compared."""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from configs.clusters import ClusterConfig
from sharding.costs.cost_model import CostModel
from sharding.costs.plan_costs import LoadsByModule, plan_costs
from sharding.planners.fixed_ranks import SINGLE_RANKS, FixedRanks, check_fixed_ranks
from sharding.planners.module_table import ModuleTable, module_table
from sharding.plans.plan import Plan
from sharding.plans.trained_parts import RequiredGradients, trained_stages
from sharding.schedules.build import build_schedule
from sharding.simulation.simulator import simulate
from sharding.simulation.timeline import Timeline
from sharding.specs.layer import RECOMPUTE_POLICIES
from sharding.specs.modules import ModuleGraph
from sharding.specs.row_load_statistics import RowLoadStatistics

TENSOR_SIZES = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True, eq=False)
class PlanningProblem:
    """A training step to be laid out on a cluster.

    Attributes:
        graph: The modules.
        costs: What layers, collectives and hops take; also what is given, such as sequence parallelism.
        cluster: The devices.
        devices: How many of them there are.
        rows: Rows of the global batch.
        data: Loads of rows that stand for all.
        trains: Parts that train.
        recompute: Choices of recomputation that a planner may take.
        chunks: Numbers of virtual stages on each of the backbone's stages that a planner may take.
        tensor: Tensor-parallel sizes that a planner may take; those larger than a node are left out.
        given: Sequence ranks and expert ranks by module, which a planner takes as they are; one of each by default.
        seed: Of the rows that plans are rehearsed with.
        positions: Of a row, by module, where they are known; tensor ranks that do not divide them are not asked to.
    """

    graph: ModuleGraph
    costs: CostModel
    cluster: ClusterConfig
    devices: int
    rows: int
    data: RowLoadStatistics
    trained_parts: frozenset[str]
    recompute_choices: tuple[str, ...] = RECOMPUTE_POLICIES
    chunk_choices: tuple[int, ...] = (1,)
    tensor_sizes: tuple[int, ...] = TENSOR_SIZES
    fixed_ranks: Mapping[str, FixedRanks] = dataclasses.field(default_factory=dict)
    seed: int = 0
    row_positions: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("devices", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"Problem.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("recompute_choices", "chunk_choices", "tensor_sizes"):
            if not getattr(self, name):
                raise ValueError(f"Problem.{name} is empty; name at least one choice")
        check_fixed_ranks(self.fixed_ranks, self.graph, self.rows)

    def fixed_ranks_of(self, module: str) -> FixedRanks:
        """The sequence and expert ranks of a module."""
        return self.fixed_ranks.get(module, SINGLE_RANKS)

    def collectives_of(self, module: str, tp: int) -> str:
        """What so many tensor ranks of a module do around split matmuls: as costs have it, where that can be."""
        return "reduce" if tp == 1 or self.row_positions.get(module, 0) % tp else self.costs.collectives

    @functools.cached_property
    def has_generators(self) -> bool:
        """Whether something, one stage long, comes behind the backbone."""
        return any(module.inputs and not module.is_backbone for module in self.graph.modules)

    @functools.cached_property
    def row_divisors(self) -> Int[np.ndarray, " k"]:
        """Of the rows, ascending: what data parallelism and the rows of an instance's microbatch can be."""
        numbers = np.arange(1, self.rows + 1)
        return numbers[self.rows % numbers == 0]

    @functools.cached_property
    def module_tables(self) -> dict[str, ModuleTable]:
        """What every module takes under every choice; made once, from the mean row."""
        turns = RequiredGradients(self.graph, self.trained_parts)
        tables = {}
        for module in self.graph.modules:
            alone = not module.is_backbone
            tables[module.name] = module_table(
                module,
                turns,
                self.costs,
                self.data.loads[module.name],
                self.row_divisors if alone else self.row_divisors[:1],
                self.recompute_choices,
                (1,) if alone else self.chunk_choices,
                tuple(tp for tp in self.tensor_sizes if tp <= self.cluster.devices_per_node),
                longest=1 if module.inputs and alone else module.layer_count,
                given=self.fixed_ranks_of(module.name),
            )
        return tables

    @functools.cached_property
    def sampled_rows(self) -> LoadsByModule:
        """The rows of the global batch that plans are rehearsed with."""
        return self.data.sample_batch(self.rows, self.seed)

    def simulate(self, plan: Plan, rendezvous: bool = False, rows: LoadsByModule | None = None) -> Timeline:
        """A step of a plan, simulated on the drawn rows, or on other ones; for `rendezvous` see `simulate`."""
        trains = trained_stages(plan, self.graph, self.trained_parts)
        schedule = build_schedule(plan, self.graph, trains)
        costs = plan_costs(plan, self.graph, self.costs, rows or self.sampled_rows, self.trained_parts)
        return simulate(plan, schedule, costs, rendezvous)

    def memory_fraction(self, timeline: Timeline) -> float:
        """The largest share of a device's memory that a step takes; more than 1 does not fit."""
        return max(timeline.lane_peak_memory(lane) for lane in timeline.lanes) / self.cluster.memory
