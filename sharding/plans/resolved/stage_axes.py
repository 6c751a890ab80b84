"""The mesh axes of a unit's stages, and what each module of the unit uses them for.

Modules with unlike tensor-parallel sizes share one mesh. Every prime factor of a size belongs to an axis of the modules
whose sizes have it, so that the axes of a module multiply to its size: 5 beside 2 make axes of 5 and 2, 4 beside 2 an
axis of 2 for both and one of 2 for the first alone. A module divides rows over the tensor axes of others.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sharding.axes import Axes
from sharding.plans.unit_plan import UnitPlan

STAGE_AXES = Axes(data=("data", "fsdp", "expert"), tensor=("tensor",), expert=("expert",))
"""The axes of a stage whose modules all have one tensor-parallel size and whole weights on every replica.

Consecutive data ranks split the experts; fully sharded weights are divided over these ranks and the ranks along "fsdp".
"""


def tensor_axes(sizes: Mapping[str, int]) -> dict[frozenset[str], int]:
    """Returns sizes of tensor axes by the modules that use them; none is 1, and axes of few modules come first.

    Args:
        sizes: Tensor-parallel ranks of each module.
    """
    levels: dict[frozenset[str], int] = {}
    for prime, exponent in _prime_factors(math.lcm(*sizes.values())):
        for level in range(1, exponent + 1):
            users = frozenset(module for module, size in sizes.items() if size % prime**level == 0)
            levels[users] = levels.get(users, 1) * prime
    order = list(sizes)
    return dict(sorted(levels.items(), key=lambda item: (len(item[0]), sorted(map(order.index, item[0])))))


def _prime_factors(number: int) -> list[tuple[int, int]]:
    """Primes and their exponents."""
    factors, prime = [], 2
    while number > 1:
        exponent = 0
        while number % prime == 0:
            number, exponent = number // prime, exponent + 1
        if exponent:
            factors.append((prime, exponent))
        prime += 1
    return factors


PIPELINE_AXIS = "stage"
"""The axis of pipeline ranks, before the others, of a unit that is one program."""


@dataclasses.dataclass(frozen=True)
class StageAxes:
    """The mesh of a unit's stages.

    Attributes:
        sizes: Size of every axis, in mesh order.
        modules: By module, what the axes are for; its data axes are in mesh order, so each device has consecutive rows.
    """

    sizes: Mapping[str, int]
    modules: Mapping[str, Axes]


def stage_axes(unit: UnitPlan) -> StageAxes:
    """The mesh of each stage of a unit: "data", "fsdp", "expert", and one axis or several for tensor parallelism.

    Context parallelism adds an axis "context", and a unit that is one program an axis "stage" before all others.
    """
    own_axes = dataclasses.replace(
        STAGE_AXES,
        fsdp=("fsdp", "expert") if unit.parallelism.fsdp > 1 else (),
        context=("context",) if unit.parallelism.cp > 1 else (),
        context_transfer=unit.parallelism.context_transfer,
        pipeline=(PIPELINE_AXIS,) if unit.is_compiled else (),
    )
    if not unit.parallelism.module_tp:
        pipeline = {PIPELINE_AXIS: unit.pp} if unit.is_compiled else {}
        sizes = pipeline | _data_sizes(unit, unit.parallelism.dp) | {"tensor": unit.parallelism.tp}
        return StageAxes(sizes, dict.fromkeys(unit.modules, own_axes))
    factors = tensor_axes({module: unit.tensor_ranks_of(module) for module in unit.modules})
    names = {users: _axis_name(users, unit.modules) for users in factors}
    shared = unit.parallelism.dp * unit.parallelism.tp // math.prod(factors.values())
    sizes = _data_sizes(unit, shared) | {names[users]: size for users, size in factors.items()}
    tensor = {module: tuple(names[users] for users in factors if module in users) for module in unit.modules}
    return StageAxes(
        sizes,
        {
            module: dataclasses.replace(
                own_axes, data=tuple(name for name in sizes if name not in module_axes), tensor=module_axes
            )
            for module, module_axes in tensor.items()
        },
    )


def _data_sizes(unit: UnitPlan, replicas: int) -> dict[str, int]:
    """Sizes of the axes over which all modules divide rows, together `replicas`, and of the one for positions."""
    sharded = max(unit.parallelism.fsdp, unit.parallelism.ep)
    sizes = {"data": replicas // sharded, "fsdp": sharded // unit.parallelism.ep, "expert": unit.parallelism.ep}
    return sizes | ({"context": unit.parallelism.cp} if unit.parallelism.cp > 1 else {})


def _axis_name(users: frozenset[str], modules: Sequence[str]) -> str:
    """The name of a tensor axis: `tensor` if all modules use it, `tensor/vision` if a module alone does."""
    axis_users = [module for module in modules if module in users]
    return "tensor" if len(axis_users) == len(modules) else f"tensor/{'+'.join(axis_users)}"


class RowReshard(NamedTuple):
    """How rows get from a module's devices to the next one's, within a stage.

    Attributes:
        gather: Data axes of the sender over which rows are gathered.
        split: Data axes of the receiver over which the gathered rows are split.
    """

    gather: tuple[str, ...]
    split: tuple[str, ...]


def row_reshard(sender: Axes, receiver: Axes) -> RowReshard:
    """Returns the axes over which rows are gathered and split again: each end's axes from the first that differs."""
    common = 0
    while sender.data[common : common + 1] == receiver.data[common : common + 1] != ():
        common += 1
    return RowReshard(sender.data[common:], receiver.data[common:])
