"""What DistTrain's Algorithm 1 goes through (arXiv 2408.04275): sizes of data and tensor parallelism; their bounds."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from sharding.planners.module_table import ModuleTable
from sharding.planners.problem import PlanningProblem
from sharding.planners.relaxation import RelaxedProblems


@dataclasses.dataclass(frozen=True, eq=False)
class RelaxedOptima:
    """All sizes that DistTrain's Algorithm 1 goes through, and their relaxed optima.

    Attributes:
        dp: Data-parallel size of the backbone.
        tp: Tensor-parallel sizes, in the order of the modules.
        chunks: Of the backbone.
        seconds: Relaxed optimum; infinite where the modules need more devices than there are.
        shares: Devices of each module there.
    """

    dp: Int[np.ndarray, " c"]
    tp: Int[np.ndarray, "c i"]
    chunks: Int[np.ndarray, " c"]
    seconds: Float[np.ndarray, " c"]
    devices: Float[np.ndarray, "c i"]


def solve_relaxations(problem: PlanningProblem) -> RelaxedOptima:
    """Every candidate's relaxed optimum, which no integer layout of it beats."""
    dp, tp, chunks, convex = relaxed_problems(problem)
    return RelaxedOptima(dp, tp, chunks, *convex.solve(problem.devices))


def relaxed_problems(
    problem: PlanningProblem,
) -> tuple[Int[np.ndarray, " c"], Int[np.ndarray, "c i"], Int[np.ndarray, " c"], RelaxedProblems]:
    """All candidates' dp, tp and chunks as in `Candidates`, and their convex problems."""
    names = problem.graph.names
    counts = [np.arange(len(problem.row_divisors)), np.array(problem.chunk_choices)]
    counts += [np.array(list(problem.module_tables[name].device_seconds_per_row)) for name in names]
    index, chunks, *tps = (part.ravel() for part in np.meshgrid(*counts, indexing="ij"))
    dp = problem.row_divisors[index]
    work, least = np.zeros((len(dp), len(names))), np.zeros((len(dp), len(names)))
    warm, constant, fastest = np.zeros_like(work), np.zeros(len(dp)), np.zeros(len(dp))
    for column, (name, tp) in enumerate(zip(names, tps, strict=True)):
        table = problem.module_tables[name]
        if table.module.is_backbone:
            seconds, shortest, longest = (part[index, tp, chunks] for part in _backbone(problem, table))
            ranks = dp * tp * table.fixed_ranks.cp
            work[:, column], least[:, column] = ranks * seconds, ranks * shortest
            constant, fastest = seconds / chunks, seconds / longest
            continue
        for size, rate in table.device_seconds_per_row.items():
            here = tp == size
            work[here, column] = warm[here, column] = dp[here] * rate[index[here]]
            least[here, column] = table.min_devices(size, problem.cluster.memory)
    return (
        dp,
        np.stack(tps, axis=1),
        chunks,
        RelaxedProblems(work, warm, constant, problem.rows / dp - 1, least, fastest),
    )


def _backbone(problem: PlanningProblem, table: ModuleTable) -> tuple[Float[np.ndarray, "d t v"], ...]:
    """Of the ways that fit the memory, by dp, tp and chunks: least seconds of a row, fewest stages, most stages.

    Where none fits, the fewest stages are more than there are devices.
    """
    dp, ways = problem.row_divisors, np.arange(len(table.tp))
    grid = [part.ravel() for part in np.meshgrid(np.arange(len(dp)), ways, indexing="ij")]
    behind = table.max_stages_behind(
        grid[1], np.ones_like(grid[0]), dp[grid[0]], problem.cluster.memory, problem.rows // dp[grid[0]]
    )
    fits = (behind >= int(problem.has_generators)) & (dp[grid[0]] % table.fixed_ranks.ep == 0)
    index, way = (part[fits] for part in grid)
    shape = (len(dp), int(table.tp.max()) + 1, max(problem.chunk_choices) + 1)
    seconds, shortest, longest = np.full(shape, np.inf), np.full(shape, problem.devices + 1.0), np.ones(shape)
    place = (index, table.tp[way], table.chunks[way])
    np.minimum.at(seconds, place, table.fill[way, 0] * table.chunks[way])
    np.minimum.at(shortest, place, table.pp[way])
    np.maximum.at(longest, place, table.pp[way])
    return np.where(np.isfinite(seconds), seconds, 1.0), shortest, longest
