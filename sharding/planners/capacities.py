"""Capacities of the rows that planned units have of their own: few sizes, with which the least padding is computed.

What the fullest row of a microbatch holds is counted on microbatches drawn from the statistics; the sizes are the ones
with the least padding for them. A microbatch that fits into no size would end a run, so there is a larger one: what
rows of the global batch need as wholes, where a row's capacity is known; else so much that a microbatch of rows like
the drawn ones needs more with a probability of at most `OVERFLOW`.
"""

import dataclasses
import functools
import math

import numpy as np
from jaxtyping import Float

from sharding.balancing.capacities import least_padding_capacities
from sharding.costs.own_rows import fullest_row, item_values
from sharding.planners.problem import PlanningProblem
from sharding.plans.parallelism import TENSOR_COLLECTIVES
from sharding.plans.plan import Plan
from sharding.plans.unit_checks import row_chunks
from sharding.plans.unit_plan import MOST_CAPACITIES, UnitPlan
from sharding.specs.layers.layer import LoadColumn
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.row_load_statistics import RowLoadStatistics

OVERFLOW = 1e-9
"""Probability of a microbatch for which the largest capacity is too small, if rows are drawn independently."""

_DRAWN = 256  # microbatches; fewer where they would have more than _DRAWN_ROWS rows together
_DRAWN_ROWS = 2**19
_LEAST_DRAWN = 32  # microbatches, however many rows they have
_BLOCK = 64  # positions
_MANY_BLOCKS = 16  # so that rounding up costs little


def with_capacities(problem: PlanningProblem, plan: Plan) -> Plan:
    """The plan with capacities for the units that have rows of their own."""
    units = tuple(
        dataclasses.replace(unit, capacities=capacities_of(problem, unit, plan.microbatches))
        if unit.phase_rows
        else unit
        for unit in plan.units
    )
    return dataclasses.replace(plan, units=units)


def capacities_of(problem: PlanningProblem, unit: UnitPlan, microbatches: int) -> tuple[int, ...]:
    """The capacities of one unit with rows of its own, ascending."""
    module = problem.graph[unit.modules[0]]
    rows = problem.rows // microbatches
    drawn = _drawn_microbatches(problem.data, problem.rows, problem.seed, module.name, rows)
    needs = np.ceil(fullest_row(drawn, unit.phase_rows, module) - 1e-6).astype(int).tolist()
    slots = _slots(unit, module)
    multiple = _multiple(module, slots, max(needs))
    largest = _sufficient(problem, module, rows, unit.phase_rows, slots, multiple)
    sizes = least_padding_capacities(needs, MOST_CAPACITIES, multiple)
    if sizes and largest <= sizes[-1]:
        return sizes
    return (*least_padding_capacities(needs, MOST_CAPACITIES - 1, multiple), largest)


def _slots(unit: UnitPlan, module: ModuleSpec) -> int:
    """Returns the values that every capacity is a multiple of.

    A token slot, or one for each tensor rank where these divide the positions, in each chunk of a row that
    context-parallel ranks take.
    """
    divides_positions = (
        TENSOR_COLLECTIVES[unit.parallelism.collectives].sequence_parallel and module.layer.sequence_parallel
    )
    ranks = unit.parallelism.tp if divides_positions else 1
    return module.values_per_slot * ranks * row_chunks(unit.parallelism.cp)


def _multiple(module: ModuleSpec, slots: int, most: int) -> int:
    """Returns the size of which most capacities are whole multiples: `slots`, or of rows with many blocks whole blocks.

    A block are positions that kernels compute at a time.
    """
    block = math.lcm(slots, _BLOCK * module.values_per_position)
    return block if module.layer.sequence_parallel and most >= _MANY_BLOCKS * block else slots


# A planner draws them again for many plans.
@functools.lru_cache(maxsize=32)
def _drawn_microbatches(
    data: RowLoadStatistics, batch_rows: int, seed: int, module: str, rows: int
) -> Float[np.ndarray, "m 4"]:
    """Returns the loads of drawn microbatches of so many rows, from several global batches if one has few."""
    wanted = max(_LEAST_DRAWN * rows, min(_DRAWN * rows, _DRAWN_ROWS))
    batches = -(-wanted // batch_rows)
    drawn = [data.sample_module(module, batch_rows, seed + number) for number in range(batches)]
    return np.concatenate(drawn).reshape(-1, rows, len(LoadColumn)).sum(axis=1)


def _sufficient(
    problem: PlanningProblem, module: ModuleSpec, rows: int, own_rows: int, slots: int, multiple: int
) -> int:
    """Returns a capacity that holds any microbatch, or all but very few."""
    row_capacity = problem.row_capacities.get(module.name)
    if row_capacity is not None:
        return slots * -(-row_capacity * -(-rows // own_rows) // slots)
    loads = problem.data.loads[module.name]
    values = item_values(loads, module)
    one_item = float((values / np.maximum(loads[:, LoadColumn.ITEMS], 1)).max())
    sufficient = sum_bound(values, rows, OVERFLOW) / own_rows + one_item
    return multiple * max(1, math.ceil(sufficient / multiple - 1e-6))


def sum_bound(values: Float[np.ndarray, " n"], count: int, probability: float) -> float:
    """Returns a bound that a sum of `count` independent draws of these values exceeds with at most this probability.

    Bernstein's inequality: P(sum - mean > t) <= exp(-t^2 / (2 (count variance + range t / 3))), and never more than
    `count` times the largest.
    """
    exponent, spread = -math.log(probability), float(values.max() - values.mean())
    linear = exponent * spread / 3
    margin = linear + math.sqrt(linear**2 + 2 * exponent * count * float(values.var()))
    return min(count * float(values.mean()) + margin, count * float(values.max()))
