"""Context-parallel and expert ranks, which planners take as given (as DistTrain does, arXiv 2408.04275, section 9)."""

import dataclasses
from collections.abc import Mapping

from sharding.plans.plan_error import PlanError
from sharding.plans.unit_checks import check_cp_and_ep, check_row_chunks
from sharding.specs.modules import ModuleGraph


@dataclasses.dataclass(frozen=True)
class FixedRanks:
    """Ranks of one module that planners do not choose.

    Attributes:
        cp: Context-parallel ranks of every replica.
        ep: Expert ranks: the number of replicas that divide the experts.
    """

    cp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for key in ("cp", "ep"):
            if getattr(self, key) < 1:
                raise PlanError(f"the given {key} is {getattr(self, key)}; it must be at least 1")


SINGLE_RANKS = FixedRanks()
"""One context-parallel rank and one expert rank."""


def check_fixed_ranks(
    fixed_ranks: Mapping[str, FixedRanks], graph: ModuleGraph, rows: int, positions: Mapping[str, int]
) -> None:
    """Raises PlanError, naming the module and the numbers, if no plan can have these ranks.

    Args:
        fixed_ranks: By module; a module that is left out has one rank of each kind.
        graph: The modules.
        rows: Rows of the global batch.
        positions: Positions of a row by module, where they are known.
    """
    for name, ranks in fixed_ranks.items():
        if name not in graph.names:
            raise PlanError(f"ranks are given for {name}, which the model lacks; it has {', '.join(graph.names)}")
        check_cp_and_ep(f"given for {name}", [graph[name]], ranks.cp, ranks.ep)
        if name in positions:
            check_row_chunks(f"given for {name}", ranks.cp, name, positions[name])
        if rows % ranks.ep:
            raise PlanError(
                f"given for {name}: ep {ranks.ep} does not divide the {rows:,} rows of the global batch, and so no "
                "data-parallel size that does; choose another ep, or another number of rows"
            )
