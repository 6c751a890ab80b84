"""A planning problem as one of a chain, for the policy `balanced`: layouts, their lower bounds, layers as arrays."""

import functools
import itertools

import numpy as np

from sharding.costs.memory import train_state_bytes
from sharding.planners.problem import PlanningProblem
from sharding.planners.stages.chain_costs import layer_chain
from sharding.planners.stages.chain_layout import ChainLayout
from sharding.planners.stages.chain_layouts import ChainSizes, largest_dividing
from sharding.planners.stages.layer_chain import LayerChain
from sharding.planners.stages.microbatches_held import microbatches_held
from sharding.plans.parallelism import CollectivesName
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.trained_parts import RequiredGradients


class ChainProblem:
    """All modules of a problem as one chain.

    Args:
        problem: The problem.

    Attributes:
        problem: The problem.
        sizes: The sizes that its layouts are enumerated from.

    Raises:
        PlanError: The modules are no chain, or their fixed ranks cannot share a stage.
    """

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem = problem
        _check_chain(problem)
        self.sizes = ChainSizes(
            modules=problem.graph.names,
            tensor_sizes=_shared_tensor_sizes(problem),
            collectives={sizes: _collectives(problem, sizes) for sizes in _shared_tensor_sizes(problem)},
            layers=sum(module.layer_count if module.divisible else 1 for module in problem.graph.modules),
            rows=problem.rows,
            cp=problem.fixed_ranks_of(problem.graph.backbone.name).cp,
            ep=max(problem.fixed_ranks_of(name).ep for name in problem.graph.names),
            most_chunks=max(problem.chunk_choices),
        )

    def layers(self, layout: ChainLayout, extra_microbatches: int) -> LayerChain:
        """The layers under a layout, on the rows that plans are simulated with.

        Args:
            layout: The layout.
            extra_microbatches: Microbatches in flight beyond the schedule's limits for which bytes are computed.
        """
        most = microbatches_held(layout.pp, layout.chunks, layout.microbatches, extra_microbatches).max()
        problem = self.problem
        return layer_chain(problem.sampled_costs, problem.trained_parts, layout, problem.recompute_choices, int(most))

    def least_seconds(self, layout: ChainLayout) -> float:
        """Seconds of a step if the work of its microbatches could be divided at will, without recomputation."""
        work = 0.0
        for name in layout.modules:
            rows = self.problem.rows / layout.microbatches / layout.replicas_of(name)
            work += self._seconds_of_rows(name, layout.tensor_ranks_of(name), rows)
        return work / layout.pp * (layout.microbatches + (layout.pp - 1) / layout.chunks)

    def least_bytes(self, layout: ChainLayout) -> float:
        """A lower bound of the bytes on a device of the fullest rank: weights and optimizer state alone."""
        return (
            sum(
                self._state_bytes(name, layout.tensor_ranks_of(name), layout.replicas_of(name) * layout.cp)
                for name in layout.modules
            )
            / layout.pp
        )

    @functools.cached_property
    def _required(self) -> RequiredGradients:
        return RequiredGradients(self.problem.graph, self.problem.trained_parts)

    @functools.cache  # noqa: B019 as long-lived as the problem
    def _seconds_of_rows(self, module: str, tp: int, rows: float) -> float:
        """Seconds of so many rows on one stage; of more than the module's table has, in proportion."""
        table = self.problem.module_tables[module]
        tabulated = min(rows, float(table.rows[-1]))
        return table.least_device_seconds(tp, tabulated) / tp * (rows / tabulated)

    @functools.cache  # noqa: B019
    def _state_bytes(self, module: str, tp: int, replicas: int) -> float:
        layers = self._required.of_layers(module, 0, self.problem.graph[module].layer_count)
        sizes = np.array([run.count * run.layer.parameters_per_rank(tp) for run in layers])
        trained = np.array(["wgrad" in run.gradients for run in layers])
        return float(train_state_bytes(sizes.sum(), sizes @ trained, replicas, self.problem.costs))


def _check_chain(problem: PlanningProblem) -> None:
    graph = problem.graph
    for first, second in itertools.pairwise(graph.modules):
        if second.inputs != (first.name,):
            raise PlanError(
                f"the modules {', '.join(graph.names)} are no chain: {first.name} and {second.name} are side by side, "
                "so that one unit cannot hold all; use the policy disaggregated"
            )
    given = {name: problem.fixed_ranks_of(name).cp for name in graph.names}
    if len(set(given.values())) > 1:
        raise PlanError(
            f"modules of one unit have one cp, but they are given {', '.join(f'{n} {cp}' for n, cp in given.items())}; "
            "give all the same, or use the policy disaggregated"
        )


def _shared_tensor_sizes(problem: PlanningProblem) -> tuple[tuple[int, ...], ...]:
    """For each tensor-parallel size of the backbone, returns the sizes of all modules: the largest that divide it.

    Unlike ones are left out where context-parallel ranks or the costs do not allow them.
    """
    names, tables = problem.graph.names, problem.module_tables
    backbone = problem.graph.backbone.name
    cp = problem.fixed_ranks_of(backbone).cp
    only_equal = cp > 1 or not problem.costs.has_row_gathers
    shared = []
    for tp in tables[backbone].tensor_sizes:
        sizes = [largest_dividing(tables[name].tensor_sizes, tp) for name in names]
        if all(sizes) and (len(set(sizes)) == 1 or not only_equal):
            shared.append(tuple(size for size in sizes if size))
    if not shared:
        taken = "; ".join(f"{name}: {', '.join(map(str, tables[name].tensor_sizes))}" for name in names)
        raise PlanError(
            f"no {'equal ' * only_equal}tensor-parallel sizes of {' > '.join(names)} can share the devices of a stage "
            f"(they take {taken}); use the policy disaggregated"
        )
    return tuple(shared)


def _collectives(problem: PlanningProblem, sizes: tuple[int, ...]) -> CollectivesName:
    """The collectives that the tensor ranks of all modules can use around split matmuls."""
    collectives: list[CollectivesName] = [
        problem.collectives_of(name, tp) for name, tp in zip(problem.graph.names, sizes, strict=True) if tp > 1
    ]
    return collectives[0] if len(set(collectives)) == 1 else "all_reduce"
