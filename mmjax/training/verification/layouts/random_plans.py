"""Random plans: drawn combinations of parallelism that are valid for a model, its rows and its devices.

`python -m mmjax.verify --random` compares them like the layouts of `default_layouts.py`.
"""

import dataclasses
import itertools
import math
import random
from typing import get_args

from configs.common.short_repr import shown_fields
from mmjax.training.verification.layouts.divided_plans import GlobalRows, divides_positions
from sharding.axes import ContextTransfer
from sharding.expert_transfer import ExpertTransferChoice
from sharding.plans.parallelism import CollectivesName, Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.plans.schedule_hints import ScheduleHints
from sharding.plans.text.device_ranges import device_ranges
from sharding.plans.text.recompute_text import recompute_text
from sharding.plans.unit_checks import check_unit, row_chunks
from sharding.plans.unit_plan import MOST_CAPACITIES, UnitPlan
from sharding.schedules.named.registry import BUILT_IN_SCHEDULES
from sharding.specs.layers.layer import RECOMPUTE_POLICIES
from sharding.specs.modules import ModuleGraph

MOST_MICROBATCHES = 4
LARGEST_SIZES = {"tp": 4, "pp": 4, "chunks": 2, "pipeline_replicas": 3}
CONTEXT_RANKS = (2, 4)
COLLECTIVES: tuple[CollectivesName, ...] = ("all_reduce", "sequence_parallel", "ring")
MOST_ROWS = 3  # largest number of a unit's own rows for each replica
UNIT_ATTEMPTS = 100
PLAN_ATTEMPTS = 100


def random_plans(graph: ModuleGraph, rows: GlobalRows, devices: int, seed: int, count: int) -> dict[str, Plan]:
    """Draws random plans, by a name that describes them; plan i depends on the seed and i alone.

    Args:
        graph: The model's modules.
        rows: Rows of the global batch.
        devices: Number of available devices.
        seed: Seed of the plans.
        count: Number of plans.

    Raises:
        PlanError: No valid plan was found.
    """
    plans = [random_plan(graph, rows, devices, random.Random(f"{seed}/{number}")) for number in range(count)]
    return {f"random plan {number} of seed {seed}: {_describe(plan)}": plan for number, plan in enumerate(plans)}


def random_plan(graph: ModuleGraph, rows: GlobalRows, devices: int, generator: random.Random) -> Plan:
    """Draws one plan: microbatches, schedule, units with their devices and parallelism, and recomputation."""
    for _ in range(PLAN_ATTEMPTS):
        microbatches = generator.choice([m for m in range(1, MOST_MICROBATCHES + 1) if rows.count % m == 0])
        chains = _random_chains(graph, generator)
        units = tuple(_random_unit(chain, graph, rows, microbatches, devices, generator) for chain in chains)
        schedule = generator.choice(list(BUILT_IN_SCHEDULES))
        units = tuple(_with_random_order(unit, microbatches, schedule, generator) for unit in units)
        plan = _with_random_executor(Plan(units, microbatches, schedule), graph, rows.count, devices, generator)
        try:
            resolve_plan(plan, graph, devices, rows.count)
        except PlanError:
            continue
        return plan
    raise PlanError(
        f"no valid plan for {rows.count} rows on {devices} devices was found in {PLAN_ATTEMPTS} random attempts"
    )


def _random_chains(graph: ModuleGraph, generator: random.Random) -> list[tuple[str, ...]]:
    """Draws chains: each module in a unit of its own, or behind a module that feeds it."""
    chains: list[tuple[str, ...]] = []
    for module in graph.modules:
        feeding = [chain for chain in chains if chain[-1] in module.inputs]
        if feeding and generator.random() < 0.4:
            before = generator.choice(feeding)
            chains[chains.index(before)] = (*before, module.name)
        else:
            chains.append((module.name,))
    return chains


def _random_unit(
    chain: tuple[str, ...],
    graph: ModuleGraph,
    rows: GlobalRows,
    microbatches: int,
    devices: int,
    generator: random.Random,
) -> UnitPlan:
    """Draws a valid unit of a chain; undivided on one device if none is found.

    Args:
        chain: Names of its modules.
        graph: The model's modules.
        rows: Rows of the global batch.
        microbatches: Number of microbatches.
        devices: Number of available devices.
        generator: Source of all choices.
    """
    name, total = "_".join(chain), sum(graph[module].layer_count for module in chain)
    may_have_rows = len(chain) == 1 and chain[0] != graph.backbone.name
    for _ in range(UNIT_ATTEMPTS):
        own_rows = may_have_rows and generator.random() < 0.4
        dp = generator.choice(
            [size for size in range(1, devices + 1) if own_rows or rows.count // microbatches % size == 0]
        )
        tp, pp, chunks, pipeline_replicas = (generator.randint(1, largest) for largest in LARGEST_SIZES.values())
        pipeline_replicas = min(pipeline_replicas, microbatches) if generator.random() < 0.5 else 1
        cp = generator.choice(CONTEXT_RANKS) if generator.random() < 0.5 else 1
        if pipeline_replicas * dp * cp * tp * pp > devices or pp * chunks > total:
            continue
        if not all(divides_positions(graph[module], cp, tp, rows) for module in chain):
            continue
        module_tp = _random_module_tp(len(chain), dp * tp, tp, generator) if cp == 1 else ()
        module_replicas = [dp * tp // size for size in module_tp or (tp,)]
        if not own_rows and any(rows.count // microbatches % replicas for replicas in module_replicas):
            continue
        shared = dp * tp // math.lcm(tp, *module_tp)
        layers = _random_layers(total, pp * chunks, generator)
        sizes = [size for size in range(1, shared + 1) if shared % size == 0]
        ep = generator.choice(sizes) if any(graph[module].expert_count for module in chain) else 1
        unit = UnitPlan(
            name,
            chain,
            tuple(generator.sample(range(devices), pipeline_replicas * dp * cp * tp * pp)),
            layers=layers,
            recompute=tuple(_random_recompute(count, generator) for count in layers),
            phase_rows=dp * generator.randint(1, MOST_ROWS) if own_rows else 0,
            parallelism=Parallelism(
                dp=dp,
                tp=tp,
                module_tp=module_tp,
                chunks=chunks,
                cp=cp,
                context_transfer=generator.choice(get_args(ContextTransfer)) if cp > 1 else "ring",
                ep=ep,
                expert_transfer=generator.choice(get_args(ExpertTransferChoice)) if ep > 1 else "auto",
                fsdp=generator.choice([1, *(size for size in sizes if size > 1 and size % ep == 0)]),
                collectives=generator.choice(COLLECTIVES) if max(tp, *module_tp, 1) > 1 else "all_reduce",
                pipeline_replicas=pipeline_replicas,
            ),
            schedule_hints=ScheduleHints(
                replica_of_microbatch=_random_replicas(pipeline_replicas, microbatches, generator)
            ),
        )
        if own_rows and chain[0] in rows.values:
            unit = dataclasses.replace(unit, capacities=_random_capacities(unit, rows, microbatches, generator))
        try:
            check_unit(unit, graph, devices)
        except PlanError:
            continue
        return unit
    return UnitPlan(name, chain, (generator.randrange(devices),), layers=(total,))


def _random_replicas(pipeline_replicas: int, microbatches: int, generator: random.Random) -> tuple[int, ...]:
    """Draws the pipeline replica of each microbatch; each pipeline replica takes at least one.

    Empty, which means by turns, for one pipeline replica and in half of the other cases.
    """
    if pipeline_replicas == 1 or generator.random() < 0.5:
        return ()
    drawn = [
        *range(pipeline_replicas),
        *generator.choices(range(pipeline_replicas), k=microbatches - pipeline_replicas),
    ]
    generator.shuffle(drawn)
    return tuple(drawn)


def _random_module_tp(modules: int, devices: int, tp: int, generator: random.Random) -> tuple[int, ...]:
    """Draws the tensor ranks of each module, one of which has `tp`; empty where all have it, in half of the chains."""
    if generator.random() < 0.5:
        return ()
    sizes = [size for size in range(1, LARGEST_SIZES["tp"] + 1) if devices % math.lcm(size, tp) == 0]
    drawn = generator.choices(sizes, k=modules)
    drawn[generator.randrange(modules)] = tp
    fits = devices % math.lcm(*drawn) == 0 and len(set(drawn)) > 1
    return tuple(drawn) if fits else ()


def _random_recompute(layers: int, generator: random.Random) -> str:
    """Draws one policy for all layers of a stage, or one for the layers before some layer and one for the others."""
    first = generator.choice((0, generator.randrange(layers)))
    before, after = generator.choices(RECOMPUTE_POLICIES, k=2)
    return recompute_text((before,) * first + (after,) * (layers - first))


def _random_capacities(
    unit: UnitPlan, rows: GlobalRows, microbatches: int, generator: random.Random
) -> tuple[int, ...]:
    """Draws capacities, which tensor ranks divide, below one that suffices for every batch; or none."""
    whole = rows.sufficient_capacity(unit.modules[0], microbatches, unit.phase_rows)
    multiple = rows.values[unit.modules[0]].per_slot * unit.parallelism.tp * row_chunks(unit.parallelism.cp)
    smaller = range(multiple, whole, multiple)
    drawn = generator.sample(smaller, min(len(smaller), generator.randrange(MOST_CAPACITIES)))
    return (*sorted(drawn), whole) if drawn else ()


def _with_random_order(unit: UnitPlan, microbatches: int, schedule: str, generator: random.Random) -> UnitPlan:
    """Adds random microbatches in flight to a unit, and random seconds of its stages for schedules that read them.

    Half of the units of `colocated` wait for collectives in some of them, beside which others may run in bundles.
    """
    seconds = [tuple(generator.choices((0.5, 1.0, 4.0), k=unit.stage_count)) for _ in ("forward", "backward")]
    unit = unit.with_hints(extra_microbatches=generator.randrange(microbatches))
    if schedule in ("interleaved", "colocated"):
        unit = unit.with_hints(forward_seconds=seconds[0], backward_seconds=seconds[1])
    if schedule == "colocated" and generator.random() < 0.5:
        waits = [tuple(second / 2 for second in of) for of in seconds]
        unit = unit.with_hints(forward_communication=waits[0], backward_communication=waits[1])
    return unit


def _with_random_executor(plan: Plan, graph: ModuleGraph, rows: int, devices: int, generator: random.Random) -> Plan:
    """Makes the backbone one compiled program in half of the plans that allow it; else returns the plan.

    Options that only dispatched units have are left out: the stages get equal layers and the policy of the first one,
    and no unit has an order by seconds.
    """
    if generator.random() < 0.5 or plan.schedule == "colocated":
        return plan
    compiled = Plan(tuple(_for_one_program(unit, graph) for unit in plan.units), plan.microbatches, plan.schedule)
    try:
        resolve_plan(compiled, graph, devices, rows)
    except PlanError:
        return plan
    return compiled


def _for_one_program(unit: UnitPlan, graph: ModuleGraph) -> UnitPlan:
    """Returns the unit as one compiled program if it holds the backbone, else as a unit beside such a program."""
    unit = unit.with_hints(forward_seconds=(), backward_seconds=())
    if graph.backbone.name not in unit.modules:
        return unit
    first = unit.layer_recompute(0)[0]
    return dataclasses.replace(
        unit,
        layers=(sum(unit.layers) // unit.stage_count,) * unit.stage_count,
        recompute=("full" if first == "offload" else first,) * unit.stage_count,
        executor="compiled",
        schedule_hints=dataclasses.replace(unit.schedule_hints, extra_microbatches=0),
    )


def _random_layers(total: int, stages: int, generator: random.Random) -> tuple[int, ...]:
    """Draws the numbers of layers of the stages, at least 1 each."""
    cuts = sorted(generator.sample(range(1, total), stages - 1))
    return tuple(end - first for first, end in itertools.pairwise((0, *cuts, total)))


def _describe(plan: Plan) -> str:
    """Describes all of a plan, so that it can be written as a plan again."""
    return " | ".join([f"{plan.microbatches} microbatches, {plan.schedule}", *map(_describe_unit, plan.units)])


def _describe_unit(unit: UnitPlan) -> str:
    """Describes a unit: its modules and devices, and the keys of its plan that do not have their default values."""
    own = shown_fields(unit)
    nested = [shown_fields(own.pop(name)) for name in ("parallelism", "schedule_hints") if name in own]
    fields = [item for record in (own, *nested) for item in record.items()]
    words = [f"{key} {_words(value)}" for key, value in fields if key not in ("name", "modules", "devices")]
    return f"{' > '.join(unit.modules)}: {'; '.join([f'devices {device_ranges(unit.devices)}', *words])}"


def _words(value: object) -> str:
    return " / ".join(map(str, value)) if isinstance(value, tuple) else str(value)
