"""Capacities of the rows that planned units have of their own: few sizes, with which the least padding is computed.

What the fullest row of a microbatch holds is counted on microbatches drawn from the statistics. Of all sets of at most
so many sizes that hold them, that with the least sum over these microbatches is found exactly. A microbatch that fits
into no size would end a run, so the largest size is more than any that was drawn needs: what rows of the global batch
need as wholes, where a row's capacity is known; else so much that a microbatch of rows like those drawn needs more
with a probability of at most `OVERFLOW`.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float, Int

from sharding.costs.own_rows import fullest_row, item_values
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import MOST_CAPACITIES, UnitPlan
from sharding.specs.module_spec import ModuleSpec

OVERFLOW = 1e-9
"""Probability of a microbatch for which the largest capacity is too small, if rows are drawn independently."""

_DRAWN = 256  # microbatches at least


def with_capacities(problem: PlanningProblem, plan: Plan) -> Plan:
    """The plan with capacities for the units that have rows of their own."""
    units = tuple(
        dataclasses.replace(unit, capacities=capacities_of(problem, unit, plan.microbatches)) if unit.rows else unit
        for unit in plan.units
    )
    return dataclasses.replace(plan, units=units)


def capacities_of(problem: PlanningProblem, unit: UnitPlan, microbatches: int) -> tuple[int, ...]:
    """The capacities of one unit with rows of its own, ascending."""
    module = problem.graph[unit.modules[0]]
    rows = problem.rows // microbatches
    drawn = _drawn_microbatches(problem, module.name, rows)
    cell = module.values_per_cell
    needs = _in_cells(fullest_row(drawn, unit.rows, module), cell)
    largest = _sufficient(problem, module, rows, unit.rows, int(needs.max(initial=1)))
    return tuple(cell * size for size in best_sizes(needs[needs > 0], largest, MOST_CAPACITIES))


def _drawn_microbatches(problem: PlanningProblem, module: str, rows: int) -> Float[np.ndarray, "m 3"]:
    """Loads of microbatches of so many rows: those of several global batches, if one has few."""
    batches = -(-_DRAWN * rows // problem.rows)
    drawn = [problem.data.sample_batch(problem.rows, problem.seed + number)[module] for number in range(batches)]
    return np.concatenate(drawn).reshape(-1, rows, 3).sum(axis=1)


def _in_cells(values: Float[np.ndarray, " m"], cell: int) -> Int[np.ndarray, " m"]:
    return np.ceil(values / cell - 1e-6).astype(np.int64)


def _sufficient(problem: PlanningProblem, module: ModuleSpec, rows: int, own_rows: int, needed: int) -> int:
    """A size, in cells, that holds any microbatch, or hardly any that it does not."""
    of_row = problem.row_capacities.get(module.name)
    if of_row is not None:
        return of_row // module.values_per_cell * -(-rows // own_rows)
    loads = problem.data.loads[module.name]
    values = item_values(loads, module)
    largest_item = float((values / np.maximum(loads[:, 2], 1)).max())
    bound = sum_bound(values, rows, OVERFLOW) / own_rows + largest_item
    return max(needed, int(_in_cells(np.array([bound]), module.values_per_cell)[0]))


def sum_bound(values: Float[np.ndarray, " n"], count: int, probability: float) -> float:
    """What a sum of `count` independent draws of these values exceeds with at most this probability.

    Bernstein's inequality: P(sum - mean > t) <= exp(-t^2 / (2 (count variance + range t / 3))), and never more than
    `count` times the largest.
    """
    exponent, spread = -math.log(probability), float(values.max() - values.mean())
    linear = exponent * spread / 3
    margin = linear + math.sqrt(linear**2 + 2 * exponent * count * float(values.var()))
    return min(count * float(values.mean()) + margin, count * float(values.max()))


def best_sizes(needs: Int[np.ndarray, " n"], largest: int, most: int) -> tuple[int, ...]:
    """At most `most` sizes, ascending and ending with `largest`, whose sum over all needs is least.

    Each need takes the smallest size that holds it. Found exactly, by dynamic programming over the needs that differ.
    """
    sizes, times = np.unique(np.append(np.minimum(needs, largest), largest), return_counts=True)
    times[-1] -= 1  # `largest` is a size, whether a need takes it or not
    upto = np.cumsum(times)
    between = upto[None, :] - upto[:, None]  # [i, j]: needs that size j holds and size i does not
    is_smaller = np.tri(len(sizes), k=-1, dtype=bool).T
    least = (upto * sizes).astype(float)  # of the needs up to a size, if it is the last
    before: list[np.ndarray] = []
    for _ in range(min(most, len(sizes)) - 1):
        sums = np.where(is_smaller, least[:, None] + between * sizes, np.inf)
        before.append(sums.argmin(axis=0))
        least = sums.min(axis=0)
    chosen = [len(sizes) - 1]
    for of_last in reversed(before):
        chosen.append(int(of_last[chosen[-1]]))
    return tuple(sizes[chosen[::-1]].tolist())
