"""What a planner is given, and the rehearsal by which its plans are compared."""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from configs.clusters import ClusterConfig
from sharding.costs import Costs
from sharding.data_statistics import DataStatistics
from sharding.plan import Plan
from sharding.plan_costs import Rows, plan_costs
from sharding.planners.given import ALONE, Given, check_all_given
from sharding.planners.module_table import ModuleTable, module_table
from sharding.schedule import build_schedule, training_work
from sharding.simulate import simulate
from sharding.specs import ModuleGraph
from sharding.timeline import Timeline
from sharding.trainable import Turns, trained_stages
from sharding.unit_plan import RECOMPUTE

TENSOR_SIZES = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
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
    costs: Costs
    cluster: ClusterConfig
    devices: int
    rows: int
    data: DataStatistics
    trains: frozenset[str]
    recompute: tuple[str, ...] = RECOMPUTE
    chunks: tuple[int, ...] = (1,)
    tensor: tuple[int, ...] = TENSOR_SIZES
    given: Mapping[str, Given] = dataclasses.field(default_factory=dict)
    seed: int = 0
    positions: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("devices", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"Problem.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("recompute", "chunks", "tensor"):
            if not getattr(self, name):
                raise ValueError(f"Problem.{name} is empty; name at least one choice")
        check_all_given(self.given, self.graph, self.rows)

    def given_of(self, module: str) -> Given:
        """The sequence and expert ranks of a module."""
        return self.given.get(module, ALONE)

    def collectives_of(self, module: str, tp: int) -> str:
        """What so many tensor ranks of a module do around split matmuls: as costs have it, where that can be."""
        return "reduce" if tp == 1 or self.positions.get(module, 0) % tp else self.costs.collectives

    @functools.cached_property
    def deep(self) -> bool:
        """Whether something, one stage long, comes behind the backbone."""
        return any(module.inputs and not module.backbone for module in self.graph.modules)

    @functools.cached_property
    def divisors(self) -> Int[np.ndarray, " k"]:
        """Of the rows, ascending: what data parallelism and the rows of an instance's microbatch can be."""
        numbers = np.arange(1, self.rows + 1)
        return numbers[self.rows % numbers == 0]

    @functools.cached_property
    def tables(self) -> dict[str, ModuleTable]:
        """What every module takes under every choice; made once, from the mean row."""
        turns = Turns(self.graph, self.trains)
        tables = {}
        for module in self.graph.modules:
            alone = not module.backbone
            tables[module.name] = module_table(
                module,
                turns,
                self.costs,
                self.data.loads[module.name],
                self.divisors if alone else self.divisors[:1],
                self.recompute,
                (1,) if alone else self.chunks,
                tuple(tp for tp in self.tensor if tp <= self.cluster.devices_per_node),
                longest=1 if module.inputs and alone else module.layers,
                given=self.given_of(module.name),
            )
        return tables

    @functools.cached_property
    def drawn(self) -> Rows:
        """The rows of the global batch that plans are rehearsed with."""
        return self.data.drawn(self.rows, self.seed)

    def rehearse(self, plan: Plan, rendezvous: bool = False, rows: Rows | None = None) -> Timeline:
        """A step of a plan, simulated on the drawn rows, or on other ones; for `rendezvous` see `simulate`."""
        trains = trained_stages(plan, self.graph, self.trains)
        work = training_work(plan, self.graph, trains)
        schedule = build_schedule(plan, self.graph, trains)
        costs = plan_costs(plan, self.graph, self.costs, rows or self.drawn, self.trains)
        return simulate(plan, schedule, work, costs, rendezvous)

    def fullness(self, timeline: Timeline) -> float:
        """The largest share of a device's memory that a step takes; more than 1 does not fit."""
        return max(timeline.memory_of(lane) for lane in timeline.lanes) / self.cluster.memory
