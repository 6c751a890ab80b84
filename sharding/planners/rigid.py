"""Megatron-LM's layout retrofitted to encoders and generators (DistTrain, arXiv 2408.04275, sections 2.2 and 8).

One tensor-parallel and one data-parallel size for all. Every encoder and generator is one more pipeline stage, and as
it is small, it is replicated over the devices of the backbone's tensor-parallel group, each taking other images: a unit
of dp * tp instances without tensor parallelism. Their rows are dealt out image by image (`instance_loads`), which the
trainer does not do: `check_plan` rightly refuses such a plan, which is there to be compared with. The other form, which
Optimus compares with (arXiv 2408.03505), puts all encoders into the backbone's first stage. Where the backbone is given
sequence ranks, its instances are so many times larger, and the others are replicated over all of an instance's devices,
each replica with the sequence ranks given to that module.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from sharding.planners.placement import make_unit, place_units
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import PlanError, UnitPlan

MAX_SIMULATED = 3


class _Piece(NamedTuple):
    """A module's part in a rigid layout: what it promises, and its unit's layout."""

    stage: float
    warm: float
    bytes: float
    dp: int
    tp: int
    recompute: str


def plans(problem: PlanningProblem, pp: int | None = None) -> list[Plan]:
    """Encoders and generators as stages of their own.

    Args:
        problem: The problem.
        pp: Stages of the backbone; by default, those that promise the shortest steps.
    """
    return _rigid(problem, pp, inside=False)


def first_stage_plans(problem: PlanningProblem, pp: int | None = None) -> list[Plan]:
    """All encoders in the backbone's first stage, tensor-parallel as it is; generators as stages of their own."""
    return _rigid(problem, pp, inside=True)


def _rigid(problem: PlanningProblem, pp: int | None, inside: bool) -> list[Plan]:
    """With the largest tp that divides the backbone, and the encoders in its stages, and fits the devices."""
    sizes = sorted(problem.module_tables[problem.graph.backbone.name].device_seconds_per_row, reverse=True)
    _check_given(problem, inside)
    if inside:
        sizes = _shared_sizes(problem, sizes)
    for tp in sizes:
        found = _with_tp(problem, pp, inside, tp)
        if found:
            return found
    raise PlanError(
        f"no layout with one tp and one dp for all fits the memory of {problem.devices} devices; use more, or the "
        "policy disaggregated"
    )


def _with_tp(problem: PlanningProblem, pp: int | None, inside: bool, tp: int) -> list[Plan]:
    """The most promising plans; none if nothing fits."""
    layers, own_ranks = problem.graph.backbone.layer_count, problem.fixed_ranks_of(problem.graph.backbone.name)
    depths = [pp] if pp else [count for count in range(1, layers + 1) if layers % count == 0]
    own = len(problem.graph.modules) - 1 - inside * len(_encoders(problem))
    found = []
    for depth in depths:
        most = problem.devices // (tp * own_ranks.cp * (depth + own))
        dps = [int(dp) for dp in problem.row_divisors if dp <= most and dp % own_ranks.ep == 0]
        pieces = _pieces(problem, tp, depth, dps[-1], inside) if dps else None
        if pieces:
            found.append((_promise(problem, pieces, dps[-1], inside), depth, dps[-1], pieces))
    return [
        _plan(problem, depth, dp, pieces, inside)
        for _, depth, dp, pieces in sorted(found, key=lambda made: made[:2])[:MAX_SIMULATED]
    ]


def _check_given(problem: PlanningProblem, inside: bool) -> None:
    """Raises PlanError where modules are given ranks that one layout for all cannot have."""
    backbone = problem.graph.backbone.name
    own = problem.fixed_ranks_of(backbone)
    for module in problem.graph.modules:
        given = problem.fixed_ranks_of(module.name)
        if own.cp % given.cp:
            raise PlanError(
                f"with one layout for all, {module.name} lies on the devices of {backbone}'s instances: its cp "
                f"{given.cp} must divide their cp {own.cp}; give it another, or use the policy disaggregated"
            )
        if not inside or module.name not in _encoders(problem):
            continue
        if given.cp != own.cp or (module.expert_count and given.ep != own.ep):
            raise PlanError(
                f"{module.name} shares {backbone}'s first stage and so its ranks, cp {own.cp} and ep {own.ep}, but it "
                f"is given cp {given.cp} and ep {given.ep}; give it the same, or use the policy disaggregated"
            )


def _shared_sizes(problem: PlanningProblem, sizes: list[int]) -> list[int]:
    """The tensor-parallel sizes that divide the encoders too."""
    shared = [
        tp
        for tp in sizes
        if all(tp in problem.module_tables[name].device_seconds_per_row for name in _encoders(problem))
    ]
    if not shared:
        raise PlanError("no tensor-parallel size divides the backbone and all encoders, which share its first stage")
    return shared


def _encoders(problem: PlanningProblem) -> list[str]:
    return [module.name for module in problem.graph.modules if not module.inputs and not module.is_backbone]


def _pieces(problem: PlanningProblem, tp: int, depth: int, dp: int, inside: bool) -> dict[str, _Piece] | None:
    """Every module's piece; None if one does not fit."""
    deep = int(problem.has_generators)
    pieces: dict[str, _Piece] = {}
    taken = 0.0
    for module in sorted(problem.graph.modules, key=lambda module: module.is_backbone):  # what shares a stage first
        shares = inside and not module.inputs and not module.is_backbone
        behind = depth + deep if not module.inputs else 0
        given = problem.fixed_ranks_of(module.name)
        wider = (
            problem.fixed_ranks_of(problem.graph.backbone.name).cp // given.cp
        )  # instances on those of the backbone's
        layouts = [(tp, dp * wider, 1 / wider)]
        if not shares and not module.is_backbone:
            layouts = [(1, dp * wider * tp, 1 / (wider * tp)), *layouts]
        layouts = [layout for layout in layouts if layout[1] % given.ep == 0]
        room = problem.cluster.memory
        if module.is_backbone:
            behind, room = deep, room - taken
        found = [_piece(problem, module.name, depth, behind, *layout) for layout in layouts]
        fits = [piece for options in found for piece in options if piece.bytes <= room]
        if not fits:
            return None
        pieces[module.name] = fits[0]
        taken += fits[0].bytes * shares
    return pieces


def _piece(problem: PlanningProblem, name: str, depth: int, behind: int, tp: int, dp: int, rows: float) -> list[_Piece]:
    """With each choice of recomputation: of rows in a microbatch, perhaps a part of one."""
    table = problem.module_tables[name]
    pp = depth if table.module.is_backbone else 1
    pieces = []
    for way in np.flatnonzero((table.tp == tp) & (table.pp == pp) & (table.chunks == 1)):
        ways, most = np.array([way]), np.array([problem.rows // dp or 1])
        need = table.peak_bytes(ways, np.array([rows]), np.array([dp]), np.array([float(behind)]), most)
        seconds = (float(part[way, 0]) * rows for part in (table.slowest_stage, table.fill))
        pieces.append(_Piece(*seconds, float(need[0]), dp, tp, table.recompute[way]))
    return pieces


def _promise(problem: PlanningProblem, pieces: dict[str, _Piece], dp: int, inside: bool) -> float:
    """Seconds of a step by DistTrain's equations 1 and 2."""
    stages = {name: piece.stage for name, piece in pieces.items()}
    if inside:
        stages[problem.graph.backbone.name] += sum(stages.pop(name) for name in _encoders(problem))
    warm = sum(piece.warm for piece in pieces.values())
    return warm + (problem.rows // dp - 1) * max(stages.values())


def _plan(problem: PlanningProblem, depth: int, dp: int, pieces: dict[str, _Piece], inside: bool) -> Plan:
    encoders = _encoders(problem) if inside else []
    units = [_unit(problem, name, depth, piece) for name, piece in pieces.items() if name not in encoders]
    units.sort(key=lambda made: problem.graph.names.index(made.name))
    backbone = problem.graph.backbone.name
    if len(encoders) == 1:  # a chain; several are units that share the first stage's devices
        units = [_led(made, encoders[0], problem) if made.name == backbone else made for made in units]
    plan = place_units(units, problem.rows // dp)
    if len(encoders) < 2:
        return plan
    devices = plan.unit_of(backbone).stage_devices(0)
    guests = [dataclasses.replace(_unit(problem, name, 1, pieces[name]), devices=devices) for name in encoders]
    return Plan((*guests, *plan.units), plan.microbatches)


def _unit(problem: PlanningProblem, name: str, depth: int, piece: _Piece) -> UnitPlan:
    module = problem.graph[name]
    pp = depth if module.is_backbone else 1
    cut = ((module.layer_count // pp,) * pp, piece.recompute)
    way = _waited_for(problem.collectives_of(name, piece.tp))
    return make_unit((name,), piece.dp, piece.tp, *cut, given=problem.fixed_ranks_of(name), collectives=way)


def _waited_for(collectives: str) -> str:
    """As Megatron-LM has them."""
    return "gather" if collectives == "ring" else collectives


def _led(made: UnitPlan, encoder: str, problem: PlanningProblem) -> UnitPlan:
    """A unit with an encoder in front of its first stage."""
    layers = (problem.graph[encoder].layer_count + made.layers[0], *made.layers[1:])
    both = {made.collectives, _waited_for(problem.collectives_of(encoder, made.tp))}
    way = "reduce" if "reduce" in both else made.collectives
    return dataclasses.replace(made, modules=(encoder, *made.modules), layers=layers, collectives=way)
