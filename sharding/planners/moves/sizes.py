"""Changes of how the devices of a unit divide its work: two sizes by a factor, groups of fsdp, experts, collectives."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from sharding.planners.moves.change import Change, UnitChange
from sharding.planners.problem import PlanningProblem
from sharding.plans.parallelism import CollectivesName
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan

_SIZES = ("dp", "tp", "cp", "pp", "pipeline_replicas")


def size_changes(problem: PlanningProblem, plan: Plan) -> Iterator[Change]:
    """On as many devices: a size of a unit twice, another half; and with twice or half the microbatches."""
    tensor_sizes = [tp for tp in problem.tensor_sizes if tp <= problem.cluster.devices_per_node]
    for unit in plan.units:
        given = not problem.fixed_ranks.keys().isdisjoint(unit.modules)
        for grown, shrunk in itertools.permutations(_SIZES, 2):
            change = _traded(unit, grown, shrunk)
            if change is None or (given and "cp" in (grown, shrunk)):
                continue
            if "tp" in (grown, shrunk) and change.parallelism["tp"] not in tensor_sizes:
                continue
            words = f"{unit.name}: {grown} x 2, {shrunk} / 2"
            yield Change(words, {unit.name: change})
            if problem.graph.backbone.name in unit.modules and "dp" in (grown, shrunk):
                count = plan.microbatches // 2 if grown == "dp" else 2 * plan.microbatches
                yield Change(f"{words}, microbatches {count}", {unit.name: change}, microbatches=max(1, count))
        for field, value in _other_groups(unit):
            if given and field == "ep":
                continue
            words = f"{unit.name}: {field} {getattr(unit.parallelism, field)} -> {value}"
            yield Change(words, {unit.name: UnitChange(parallelism={field: value})})
        yield from _chunk_changes(problem, plan, unit)
        if unit.phase_rows and unit.parallelism.pipeline_replicas == 1:
            yield Change(f"{unit.name}: whole rows", {unit.name: UnitChange(phase_rows=0)})
        elif len(unit.modules) == 1 and not problem.graph[unit.modules[0]].is_backbone:
            rows = unit.parallelism.dp
            yield Change(f"{unit.name}: phase_rows 0 -> {rows}", {unit.name: UnitChange(phase_rows=rows)})


def resized(unit: UnitPlan, dp: int, **parallelism: Any) -> UnitChange:
    """The change to another number of replicas, each with as many rows of its own as before."""
    rows = unit.phase_rows // unit.parallelism.dp * dp if unit.phase_rows else None
    return UnitChange(phase_rows=rows, parallelism={"dp": dp, **parallelism})


def _traded(unit: UnitPlan, grown: str, shrunk: str) -> UnitChange | None:
    """The change to twice one size and half the other; None if it is odd, or modules differ in tp."""
    sizes = {name: unit.pp if name == "pp" else getattr(unit.parallelism, name) for name in _SIZES}
    if sizes[shrunk] % 2 or unit.parallelism.module_tp:
        return None
    sizes[grown] *= 2
    sizes[shrunk] //= 2
    layers = unit.layers
    if "pp" in (grown, shrunk):
        layers = _halved(layers) if grown == "pp" else tuple(map(sum, zip(layers[::2], layers[1::2], strict=True)))
        if min(layers) < 1:
            return None
    del sizes["pp"]
    rows = unit.phase_rows // unit.parallelism.dp * sizes["dp"] if unit.phase_rows else None
    return UnitChange(layers=layers, phase_rows=rows, parallelism=sizes)


def _halved(layers: tuple[int, ...]) -> tuple[int, ...]:
    """Every stage as two."""
    return tuple(half for count in layers for half in (count - count // 2, count // 2))


def _chunk_changes(problem: PlanningProblem, plan: Plan, unit: UnitPlan) -> Iterator[Change]:
    """More and fewer chunks, with layers divided evenly among the stages.

    Of the backbone the next numbers that a planner may choose, and only on several pipeline ranks; of other units twice
    as many and half.
    """
    old, total = unit.parallelism.chunks, sum(unit.layers)
    near = {2 * old, old // 2}
    if problem.graph.backbone.name in unit.modules:
        choices = sorted({*problem.chunk_choices, old})
        place = choices.index(old)
        near = set(choices[max(0, place - 1) : place + 2]) if unit.pp > 1 else set()
    for chunks in sorted(near - {0, old}):
        stages = unit.pp * chunks
        if stages <= total:
            layers = tuple(total * (stage + 1) // stages - total * stage // stages for stage in range(stages))
            change = UnitChange(layers=layers, parallelism={"chunks": chunks})
            schedule = _schedule_with(plan, {unit.name: chunks})
            yield Change(f"{unit.name}: chunks {old} -> {chunks}", {unit.name: change}, schedule=schedule)


def _schedule_with(plan: Plan, chunks: Mapping[str, int]) -> str | None:
    """The schedule of a plan whose units have these chunks; None for the plan's own."""
    if plan.schedule == "colocated":
        return None
    has_chunks = any(chunks.get(unit.name, unit.parallelism.chunks) > 1 for unit in plan.units)
    return "interleaved" if has_chunks else "1f1b"


def _other_groups(unit: UnitPlan) -> Iterator[tuple[str, Any]]:
    """Other groups of fsdp, numbers of expert ranks, and collectives."""
    parallelism = unit.parallelism
    for fsdp in sorted({1, parallelism.fsdp // 2, 2 * parallelism.fsdp, parallelism.dp} - {0, parallelism.fsdp}):
        yield "fsdp", fsdp
    for ep in (parallelism.ep // 2, 2 * parallelism.ep):
        if ep:
            yield "ep", ep
    if parallelism.tp > 1:
        for name in get_args(CollectivesName):
            if name not in (parallelism.collectives, "mosaic"):
                yield "collectives", name
