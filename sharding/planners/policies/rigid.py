"""Megatron-LM's layout with encoders and generators added to it (DistTrain, arXiv 2408.04275, sections 2.2 and 8).

One tensor-parallel and one data-parallel size serve all modules. Every encoder and generator is one more pipeline
stage. As it is small, it is replicated over the devices of the backbone's tensor-parallel group, and each replica takes
other images: a unit of dp * tp replicas without tensor parallelism. Rows are then dealt out image by image
(`replica_loads`), which the trainer does not do: `resolve_plan` refuses such a plan, which serves for comparison. The
other form, which Optimus compares with (arXiv 2408.03505), puts all encoders into the backbone's first stage. Where the
backbone has a fixed cp, its replicas are that many times larger, and the other modules are replicated over all of a
replica's devices, with the cp that is fixed for them.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from sharding.planners.layouts.placement import make_unit, place_units
from sharding.planners.problem import PlanningProblem
from sharding.plans.parallelism import CollectivesName
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from sharding.specs.layers.layer import RecomputePolicy

_SIMULATED = 3  # how many of the best plans are simulated


class _ModuleLayout(NamedTuple):
    """A module in a rigid layout.

    Attributes:
        slowest_stage: Predicted seconds of its slowest stage.
        fill: Predicted seconds of its pipeline fill.
        peak_bytes: Bytes on a device of its fullest stage.
        dp: Number of replicas.
        tp: Tensor ranks of a replica.
        recompute: Recomputation policy of all its stages.
    """

    slowest_stage: float
    fill: float
    peak_bytes: float
    dp: int
    tp: int
    recompute: RecomputePolicy


def plans(problem: PlanningProblem, pp: int | None = None) -> list[Plan]:
    """Encoders and generators as stages of their own.

    Args:
        problem: The problem.
        pp: Stages of the backbone; by default, the numbers with the shortest predicted steps.
    """
    return _rigid_plans(problem, pp, share_first_stage=False)


def first_stage_plans(problem: PlanningProblem, pp: int | None = None) -> list[Plan]:
    """All encoders in the backbone's first stage, tensor-parallel as it is; generators as stages of their own."""
    return _rigid_plans(problem, pp, share_first_stage=True)


def _rigid_plans(problem: PlanningProblem, pp: int | None, share_first_stage: bool) -> list[Plan]:
    """Plans with the largest tp that fits; it must divide the backbone, and the encoders that share its stage."""
    backbone = problem.module_tables[problem.graph.backbone.name]
    sizes = sorted(backbone.tensor_sizes, reverse=True)
    _check_fixed_ranks(problem, share_first_stage)
    if share_first_stage:
        sizes = _shared_sizes(problem, sizes)
    for tp in sizes:
        fitting = _plans_with_tp(problem, pp, share_first_stage, tp)
        if fitting:
            return fitting
    raise PlanError(
        f"no layout with one tp and one dp for all fits the memory of {problem.devices} devices; use more, or the "
        "policy disaggregated"
    )


def _plans_with_tp(problem: PlanningProblem, pp: int | None, share_first_stage: bool, tp: int) -> list[Plan]:
    """The plans with the shortest predicted steps; none if nothing fits."""
    backbone = problem.graph.backbone
    ranks = problem.fixed_ranks_of(backbone.name)
    depths = (
        [pp] if pp else [count for count in range(1, backbone.layer_count + 1) if backbone.layer_count % count == 0]
    )
    other_stages = len(problem.graph.modules) - 1 - share_first_stage * len(_encoders(problem))
    predicted = []
    for depth in depths:
        dp = problem.most_replicas(problem.devices // (tp * ranks.cp * (depth + other_stages)), ranks.ep)
        if not dp:
            continue
        layouts = _module_layouts(problem, tp, depth, dp, share_first_stage)
        if layouts:
            predicted.append((_predicted_step(problem, layouts, dp, share_first_stage), depth, dp, layouts))
    return [
        _plan(problem, depth, dp, layouts, share_first_stage)
        for _, depth, dp, layouts in sorted(predicted, key=lambda entry: entry[:2])[:_SIMULATED]
    ]


def _check_fixed_ranks(problem: PlanningProblem, share_first_stage: bool) -> None:
    """Raises PlanError where modules have fixed ranks that one layout for all cannot have."""
    backbone = problem.graph.backbone.name
    backbone_ranks = problem.fixed_ranks_of(backbone)
    for module in problem.graph.modules:
        ranks = problem.fixed_ranks_of(module.name)
        if backbone_ranks.cp % ranks.cp:
            raise PlanError(
                f"with one layout for all, {module.name} is on the devices of {backbone}'s replicas: its cp "
                f"{ranks.cp} must divide their cp {backbone_ranks.cp}; give it another, or use the policy disaggregated"
            )
        if not share_first_stage or module.name not in _encoders(problem):
            continue
        if ranks.cp != backbone_ranks.cp or (module.expert_count and ranks.ep != backbone_ranks.ep):
            raise PlanError(
                f"{module.name} shares {backbone}'s first stage and so its ranks, cp {backbone_ranks.cp} and "
                f"ep {backbone_ranks.ep}, but it is given cp {ranks.cp} and ep {ranks.ep}; give it the same, or use "
                "the policy disaggregated"
            )


def _shared_sizes(problem: PlanningProblem, sizes: list[int]) -> list[int]:
    """The tensor-parallel sizes that divide the encoders too."""
    tables = [problem.module_tables[name] for name in _encoders(problem)]
    shared = [tp for tp in sizes if all(tp in table.tensor_sizes for table in tables)]
    if not shared:
        raise PlanError("no tensor-parallel size divides the backbone and all encoders, which share its first stage")
    return shared


def _encoders(problem: PlanningProblem) -> list[str]:
    return [module.name for module in problem.graph.modules if not module.inputs and not module.is_backbone]


def _module_layouts(
    problem: PlanningProblem, tp: int, depth: int, dp: int, share_first_stage: bool
) -> dict[str, _ModuleLayout] | None:
    """Every module's layout; None if a module does not fit."""
    generators = int(problem.has_generators)
    layouts: dict[str, _ModuleLayout] = {}
    shared_bytes = 0.0
    backbone_cp = problem.fixed_ranks_of(problem.graph.backbone.name).cp
    for module in sorted(problem.graph.modules, key=lambda module: module.is_backbone):  # what shares its stage first
        shares = share_first_stage and not module.inputs and not module.is_backbone
        downstream_stages = depth + generators if not module.inputs else 0
        ranks = problem.fixed_ranks_of(module.name)
        replicas = backbone_cp // ranks.cp  # of the module on the devices of one replica of the backbone
        sizes = [(tp, dp * replicas, 1 / replicas)]  # (tp, dp, rows of a microbatch)
        if not shares and not module.is_backbone:
            sizes = [(1, dp * replicas * tp, 1 / (replicas * tp)), *sizes]
        room = problem.cluster.usable_memory
        if module.is_backbone:
            downstream_stages, room = generators, room - shared_bytes
        options = (
            option
            for size in sizes
            if size[1] % ranks.ep == 0
            for option in _layout_options(problem, module.name, depth, downstream_stages, *size)
        )
        layout = next((option for option in options if option.peak_bytes <= room), None)
        if layout is None:
            return None
        layouts[module.name] = layout
        shared_bytes += layout.peak_bytes * shares
    return layouts


def _layout_options(
    problem: PlanningProblem, name: str, depth: int, downstream_stages: int, tp: int, dp: int, rows: float
) -> list[_ModuleLayout]:
    """Layouts of a module with each recomputation policy; `rows` of a microbatch may be less than one."""
    table = problem.module_tables[name]
    pp = depth if table.module.is_backbone else 1
    options = []
    for candidate in np.flatnonzero((table.tp == tp) & (table.pp == pp) & (table.chunks == 1)):
        peak_bytes = table.peak_bytes(
            np.array([candidate]),
            np.array([rows]),
            np.array([dp]),
            np.array([float(downstream_stages)]),
            np.array([problem.rows // dp or 1]),
        )
        slowest_stage, fill = table.stage_seconds(np.array([candidate]), np.array([rows]))
        options.append(
            _ModuleLayout(
                slowest_stage=float(slowest_stage[0]),
                fill=float(fill[0]),
                peak_bytes=float(peak_bytes[0]),
                dp=dp,
                tp=tp,
                recompute=table.recompute[candidate],
            )
        )
    return options


def _predicted_step(
    problem: PlanningProblem, layouts: dict[str, _ModuleLayout], dp: int, share_first_stage: bool
) -> float:
    """Seconds of a step by DistTrain's equations 1 and 2."""
    stages = {name: layout.slowest_stage for name, layout in layouts.items()}
    if share_first_stage:
        stages[problem.graph.backbone.name] += sum(stages.pop(name) for name in _encoders(problem))
    fill = sum(layout.fill for layout in layouts.values())
    return fill + (problem.rows // dp - 1) * max(stages.values())


def _plan(
    problem: PlanningProblem, depth: int, dp: int, layouts: dict[str, _ModuleLayout], share_first_stage: bool
) -> Plan:
    encoders = _encoders(problem) if share_first_stage else []
    units = [_unit(problem, name, depth, layout) for name, layout in layouts.items() if name not in encoders]
    units.sort(key=lambda unit: problem.graph.names.index(unit.name))
    backbone = problem.graph.backbone.name
    if len(encoders) == 1:  # the encoder and the backbone are one unit's chain
        units = [_with_encoder(unit, encoders[0], problem) if unit.name == backbone else unit for unit in units]
    plan = place_units(units, problem.rows // dp)
    if len(encoders) < 2:
        return plan
    # Several encoders are units of their own that share the devices of the first stage.
    devices = plan.unit_of(backbone).stage_devices(0)
    shared = [dataclasses.replace(_unit(problem, name, 1, layouts[name]), devices=devices) for name in encoders]
    return Plan((*shared, *plan.units), plan.microbatches)


def _unit(problem: PlanningProblem, name: str, depth: int, layout: _ModuleLayout) -> UnitPlan:
    module = problem.graph[name]
    pp = depth if module.is_backbone else 1
    return make_unit(
        (name,),
        dp=layout.dp,
        tp=layout.tp,
        layers=(module.layer_count // pp,) * pp,
        recompute=layout.recompute,
        fixed_ranks=problem.fixed_ranks_of(name),
        collectives=_not_overlapped(problem.collectives_of(name, layout.tp)),
    )


def _not_overlapped(collectives: CollectivesName) -> CollectivesName:
    """The collectives of Megatron-LM, which do not overlap the matmuls."""
    return "sequence_parallel" if collectives == "ring" else collectives


def _with_encoder(unit: UnitPlan, encoder: str, problem: PlanningProblem) -> UnitPlan:
    """A unit with an encoder in front of its first stage."""
    layers = (problem.graph[encoder].layer_count + unit.layers[0], *unit.layers[1:])
    both = (unit.parallelism.collectives, _not_overlapped(problem.collectives_of(encoder, unit.parallelism.tp)))
    collectives = "all_reduce" if "all_reduce" in both else unit.parallelism.collectives
    return dataclasses.replace(
        unit,
        modules=(encoder, *unit.modules),
        layers=layers,
        parallelism=dataclasses.replace(unit.parallelism, collectives=collectives),
    )
