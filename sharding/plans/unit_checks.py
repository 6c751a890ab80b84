"""Checks whether a model fits a unit: its devices, chain of modules, layers, and the sizes that its ranks divide.

`check_layout` calls these checks, and planners and commands call some of them.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

from sharding.plans.device_numbers import highest
from sharding.plans.parallelism import TENSOR_COLLECTIVES
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_layers import stage_layers
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph


def row_chunks(cp: int) -> int:
    """Equal chunks that the positions of a row have to be divided into: two for each context-parallel rank, if several.

    Ranks take chunks in ascending and descending order by turns, so that causal attention costs all of them the same.
    """
    return 2 * cp if cp > 1 else 1


def check_row_chunks(where: str, cp: int, module: str, positions: int, source: str = "the data configuration") -> None:
    """Raises PlanError if context-parallel ranks cannot divide the positions of a row.

    Args:
        where: Names the unit or the setting in messages.
        cp: Context-parallel ranks of a replica.
        module: The module.
        positions: Positions of its rows.
        source: The field that sets these positions, for messages.
    """
    if positions % (chunks := row_chunks(cp)):
        raise PlanError(
            f"{where}: cp {cp} takes two chunks a rank of each row, and {chunks} chunks do not divide the {positions} "
            f"positions of a row of {module}; use a multiple of {chunks} in {source}, or another cp"
        )


def check_rank_positions(unit: UnitPlan, module: str, positions: int, source: str = "the data configuration") -> None:
    """Raises PlanError if tensor ranks that divide the positions of a row (`Parallelism.collectives`) cannot do so.

    Args:
        unit: The unit.
        module: One of its modules, whose layers may have their positions divided.
        positions: Positions of its rows, which the context-parallel ranks divide.
        source: The field that sets these positions, for messages.
    """
    collectives = unit.parallelism.collectives
    tp = unit.tensor_ranks_of(module) if TENSOR_COLLECTIVES[collectives].sequence_parallel else 1
    rank_positions = positions // unit.parallelism.cp
    if rank_positions % tp:
        raise PlanError(
            f"unit {unit.name}: its {tp} tensor ranks do not divide the {rank_positions} positions of a row of "
            f'{module}, as collectives "{collectives}" has them; use a multiple of {tp} in {source}, or "all_reduce"'
        )


def check_positions(units: Iterable[UnitPlan], graph: ModuleGraph, positions: Mapping[str, int]) -> None:
    """Raises PlanError if context-parallel or tensor ranks cannot divide the rows of a global batch.

    Args:
        units: A plan's units; units with rows of their own, which are of other sizes, are left out.
        graph: The model's modules.
        positions: Positions of a row by module, where they are known.
    """
    for unit in units:
        for module in () if unit.phase_rows else unit.modules:
            if module in positions:
                check_row_chunks(f"unit {unit.name}", unit.parallelism.cp, module, positions[module])
                if graph[module].layer.sequence_parallel:
                    check_rank_positions(unit, module, positions[module])


def check_unit(unit: UnitPlan, graph: ModuleGraph, devices: int) -> None:
    """Raises PlanError if a unit cannot run: its devices, its chain, its layers, or what its ranks divide.

    Args:
        unit: The unit.
        graph: The model's modules.
        devices: Number of devices there are.
    """
    _check_devices(unit, devices)
    _check_chain(unit, graph)
    stage_layers(unit, graph)
    _check_ranks(unit, graph)
    if unit.phase_rows and (len(unit.modules) > 1 or any(graph[name].is_backbone for name in unit.modules)):
        raise PlanError(
            f"unit {unit.name} holds {', '.join(unit.modules)} and has rows of its own; only a unit of one encoder or "
            "one generator can"
        )


def _check_devices(unit: UnitPlan, devices: int) -> None:
    if highest(unit.devices) >= devices:
        raise PlanError(
            f"unit {unit.name} needs device {highest(unit.devices)}, but there are {devices} devices "
            f"(0 to {devices - 1}); use fewer, or start more"
        )


def _check_chain(unit: UnitPlan, graph: ModuleGraph) -> None:
    for source, target in itertools.pairwise(unit.modules):
        if source not in graph[target].inputs:
            raise PlanError(
                f"unit {unit.name}: {source} does not feed {target}, so they are no chain; "
                "give each a unit of its own (units may share devices)"
            )
    for position, target in enumerate(unit.modules):
        for source in unit.modules[: max(position - 1, 0)]:
            if source in graph[target].inputs:
                raise PlanError(
                    f"unit {unit.name}: {source} feeds {target} past {unit.modules[position - 1]}, but a stage hands "
                    f"on the activation of one module only; give {target} a unit of its own (units may share devices)"
                )


HEAD_SPLITS = ("heads", "kv_heads")
"""Names of `ModuleSpec.tensor_splits` that are of attention heads."""


def _check_ranks(unit: UnitPlan, graph: ModuleGraph) -> None:
    for name in unit.modules:
        tp = unit.tensor_ranks_of(name)
        for dimension, size in graph[name].tensor_splits:
            if size % tp:
                raise PlanError(
                    f"unit {unit.name}: tp {tp} does not divide {dimension} = {size} of {name}; "
                    "choose a tp that divides it, or another architecture"
                )
        _check_head_exchange(unit, graph[name])
    check_cp_and_ep(
        f"unit {unit.name}", [graph[name] for name in unit.modules], unit.parallelism.cp, unit.parallelism.ep
    )


def _check_head_exchange(unit: UnitPlan, module: ModuleSpec) -> None:
    """Raises PlanError if context-parallel ranks are to trade positions for heads that they do not divide."""
    cp, tp = unit.parallelism.cp, unit.parallelism.tp
    if cp == 1 or unit.parallelism.context_transfer != "all_to_all":
        return
    ranks = cp * tp
    for dimension, size in module.tensor_splits:
        if dimension in HEAD_SPLITS and size % ranks:
            raise PlanError(
                f"unit {unit.name}: cp {cp} x tp {tp} = {ranks} ranks do not divide {dimension} = {size} of "
                f'{module.name}, which context_transfer "all_to_all" deals to them; use "ring", or fewer ranks'
            )


def check_cp_and_ep(where: str, modules: Sequence[ModuleSpec], cp: int, ep: int) -> None:
    """Raises PlanError if a chain of modules has no sequence or no experts to divide, or `ep` does not divide them.

    Args:
        where: Names the unit or the setting in messages.
        modules: Modules of one unit.
        cp: Context-parallel ranks of a replica.
        ep: Expert ranks.
    """
    for module in modules:
        if cp > 1 and not module.supports_cp:
            raise PlanError(f"{where}: cp {cp}, but {module.name} has no sequence to divide; leave cp at 1 there")
        if module.expert_count % ep:
            raise PlanError(
                f"{where}: ep {ep} does not divide the {module.expert_count} experts of {module.name}; choose an ep "
                "that divides them"
            )
    if ep > 1 and not any(module.expert_count for module in modules):
        names = ", ".join(module.name for module in modules)
        raise PlanError(f"{where}: ep {ep}, but no layer of {names} has experts; leave ep at 1")
