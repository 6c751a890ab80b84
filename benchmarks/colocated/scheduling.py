"""How much of the encoder the schedule hides in the backbone's bubbles, and how long it takes to find that schedule.

The plan is the paper's for ViT-22B with GPT-175B: the backbone on DP x PP 8 x TP 8, and a pipeline replica of the
encoder on the devices of each pipeline rank. Tensor ranks gather and scatter around split matmuls without overlapping
that with these matmuls, as in Megatron-LM: the paper counts these collectives among its bubbles.
"""

import dataclasses
import itertools
import time
from collections.abc import Iterator

from benchmarks.colocated import settings
from benchmarks.colocated.cases import OptimusCase, case_of
from benchmarks.colocated.measure import Row
from benchmarks.colocated.settings import OptimusSetting
from benchmarks.rows import paper_row
from sharding.planners.colocation.replicated_layouts import even_layers, pipeline_replica_devices
from sharding.planners.layouts.placement import make_unit
from sharding.planners.layouts.schedule_fields import with_stage_seconds
from sharding.planners.problem import PlanningProblem
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.colocation.bubble_use import bubble_use
from sharding.schedules.colocation.colocated import coarse_colocated, colocated
from sharding.schedules.colocation.colocated_replicas import assign_microbatches
from sharding.schedules.named.build import training_op_graph
from sharding.schedules.ops import OpGraph, Schedule
from sharding.schedules.pass_seconds import pass_seconds
from sharding.simulation.simulator import simulate
from sharding.specs.layers.layer import RecomputePolicy

SLICES = {1: 6, 6: 48, 12: 48}
"""Virtual stages of a pipeline replica of the encoder, by chunks of the backbone's ranks: 1F1B, and V of "Megatron-LM
balanced".

With 6 or 12, idle time is mostly within the backbone's layers, and a slice of one layer fits beside one of these.
"""

STRONG_CHUNKS = (1, 12)
"""Chunks of the backbone's ranks with which the strong scaling is scheduled."""

RECOMPUTE: tuple[RecomputePolicy, ...] = ("none", "selective", "full")
"""Recomputation policies of all layers, in the order in which they are tried until the plan fits."""

SCHEDULER_SECONDS_GOAL, SCHEDULER_RUNS = 2.0, 3

FEW_MICROBATCHES, FEW_PIPELINE_REPLICAS = 6, 3
"""Microbatches and pipeline replicas, so few that all divisions of the microbatches can be tried."""


def scheduling_rows(case: OptimusCase) -> list[Row]:
    """The shares hidden of one of the strong scaling's settings, coarse and fine, and the scheduler's seconds."""
    rows = []
    for chunks in STRONG_CHUNKS:
        plan = colocated_plan(case.problem, case.setting, chunks)
        op_graph, title = op_graph_of(case.problem, plan), f"{_title(case.setting)}, {_chunks(chunks)}"
        for name, order in (("coarse", coarse_colocated), ("fine", colocated)):
            rows += _share_rows(case, plan, order(op_graph), f"{title}, {name}", name == "fine")
        if case.setting.devices == settings.STRONG_SCALING[0].devices:
            rows.append(
                paper_row(
                    f"{title}: processor seconds to divide and order, the least of {SCHEDULER_RUNS} runs",
                    min(scheduler_seconds(op_graph) for _ in range(SCHEDULER_RUNS)),
                    settings.PAPER_SCHEDULER_SECONDS,
                    SCHEDULER_SECONDS_GOAL,
                    most=True,
                )
            )
    return rows


def increase_rows(rows: list[Row]) -> list[Row]:
    """Hidden share with fewer microbatches, less the hidden share with most of them: a goal of at least 0."""
    values = {row["name"]: row["value"] for row in rows}
    increases = []
    for chunks in STRONG_CHUNKS:
        names = [f"{_title(setting)}, {_chunks(chunks)}, fine: {_IN_BUBBLES}" for setting in settings.STRONG_SCALING]
        if all(name in values for name in names):
            most, *fewer = (values[name] for name in names)
            increases += [
                paper_row(f"{name.split(': ')[0]}: more than with 32 microbatches by", share - most, goal=0.0)
                for name, share in zip(names[1:], fewer, strict=True)
            ]
    return increases


def _share_rows(case: OptimusCase, plan: Plan, schedule: Schedule, title: str, is_fine: bool) -> list[Row]:
    problem, use = case.problem, bubble_use(schedule)
    assert use is not None
    timeline = simulate(problem.resolve(plan), schedule, problem.step_costs(plan), problem.rendezvous)
    (filled,) = timeline.filled_idle
    assert filled.scheduling_efficiency is not None
    is_largest = case.setting.devices == settings.STRONG_SCALING[0].devices
    goal = settings.PAPER_FINE_SHARE if is_fine and is_largest else None
    return [
        paper_row(f"{title}: {_IN_BUBBLES}", use.in_bubbles, goal, goal),
        paper_row(f"{title}: share of the encoder's work that makes passes no longer", use.efficiency),
        paper_row(f"{title}: share that makes the simulated step no longer", filled.scheduling_efficiency),
        paper_row(f"{title}: seconds of the simulated step", timeline.step),
    ]


_IN_BUBBLES = "share of the encoder's work in bubbles"


def _title(setting: OptimusSetting) -> str:
    ranks = setting.ranks
    assert ranks is not None
    return f"bubbles, {setting.devices:,} devices, {setting.batch // ranks.dp // settings.MICROBATCH} microbatches"


def _chunks(count: int) -> str:
    return "1F1B" if count == 1 else f"{count} chunks"


def colocated_plan(problem: PlanningProblem, setting: OptimusSetting, chunks: int, encoder_pp: int = 1) -> Plan:
    """The plan with the least recomputation with which it fits; the encoder, which has less work, recomputes first.

    Args:
        problem: The problem.
        setting: The setting, with the backbone's layout.
        chunks: Chunks of the backbone's ranks.
        encoder_pp: Pipeline ranks of a pipeline replica of the encoder; they divide the backbone's.

    Raises:
        PlanError: None fits.
    """
    for backbone_recompute, encoder_recompute in itertools.product(RECOMPUTE, RECOMPUTE):
        plan = _plan(problem, setting, chunks, encoder_recompute, backbone_recompute, encoder_pp)
        if problem.memory_fraction(problem.simulate(plan)) <= 1:
            return plan
    raise PlanError(f"{setting.title}: no recomputation makes the colocated plan with {chunks} chunks fit")


def _plan(
    problem: PlanningProblem,
    setting: OptimusSetting,
    chunks: int,
    encoder_recompute: RecomputePolicy,
    backbone_recompute: RecomputePolicy,
    encoder_pp: int = 1,
) -> Plan:
    ranks, graph = setting.ranks, problem.graph
    assert ranks is not None
    (encoder,) = (module for module in graph.modules if not module.is_backbone)

    def unit(name: str, pp: int, chunks: int, recompute: RecomputePolicy) -> UnitPlan:
        return make_unit(
            (name,),
            dp=ranks.dp,
            tp=ranks.tp,
            layers=even_layers(graph[name].layer_count, pp * chunks),
            recompute=recompute,
            chunks=chunks,
            collectives="sequence_parallel",
        )

    backbone = unit(graph.backbone.name, ranks.pp, chunks, backbone_recompute)
    of_encoder = unit(encoder.name, encoder_pp, max(1, SLICES[chunks] // encoder_pp), encoder_recompute)
    pipeline_replicas = dataclasses.replace(
        of_encoder,
        devices=pipeline_replica_devices(backbone, encoder_pp, ranks.tp),
        parallelism=dataclasses.replace(of_encoder.parallelism, pipeline_replicas=ranks.pp // encoder_pp),
    )
    plan = with_stage_seconds(
        problem, Plan((pipeline_replicas, backbone), problem.rows // ranks.dp, "colocated"), communication=True
    )
    return _divided(plan, assign_microbatches(op_graph_of(problem, plan)))


def _divided(plan: Plan, pipeline_replicas: dict[str, tuple[int, ...]]) -> Plan:
    units = (unit.with_hints(replica_of_microbatch=pipeline_replicas.get(unit.name, ())) for unit in plan.units)
    return dataclasses.replace(plan, units=tuple(units))


def op_graph_of(problem: PlanningProblem, plan: Plan) -> OpGraph:
    """The ops of a step, which are scheduled."""
    resolved = problem.resolve(plan)
    return training_op_graph(resolved, resolved.trained_stages)


def enumeration_row() -> Row:
    """How much longer a step of few microbatches is than with the best of all divisions among few pipeline replicas.

    Seconds that the encoder adds to the backbone's own, of passes; 1 if neither adds any.
    """
    setting = settings.STRONG_SCALING[-1]
    assert setting.ranks is not None
    dp, _, tp, _ = setting.ranks
    few = dataclasses.replace(
        setting,
        devices=dp * FEW_PIPELINE_REPLICAS * tp,
        batch=dp * FEW_MICROBATCHES * settings.MICROBATCH,
        ranks=setting.ranks._replace(pp=FEW_PIPELINE_REPLICAS),
    )
    problem = case_of(few).problem
    plan = _plan(problem, few, 1, "full", "full")
    best = min(_pass_seconds(problem, plan, division) for division in _divisions())
    seconds = pass_seconds(colocated(op_graph_of(problem, plan)))
    return paper_row(
        f"division of {FEW_MICROBATCHES} microbatches among {FEW_PIPELINE_REPLICAS} pipeline replicas: seconds of "
        "passes over the least",
        seconds / best,
        goal=1.0 + 1e-9,
        most=True,
    )


def _divisions() -> Iterator[tuple[int, ...]]:
    """All divisions that give every pipeline replica a microbatch."""
    divisions = itertools.product(range(FEW_PIPELINE_REPLICAS), repeat=FEW_MICROBATCHES)
    return (division for division in divisions if len(set(division)) == FEW_PIPELINE_REPLICAS)


def _pass_seconds(problem: PlanningProblem, plan: Plan, division: tuple[int, ...]) -> float:
    encoder = next(unit.name for unit in plan.units if unit.parallelism.pipeline_replicas > 1)
    return pass_seconds(colocated(op_graph_of(problem, _divided(plan, {encoder: division}))))


def scheduler_seconds(op_graph: OpGraph) -> float:
    """Processor seconds of dividing the microbatches among pipeline replicas and of ordering all ops."""
    anew = dataclasses.replace(op_graph)  # orders are kept by op graph
    begin = time.process_time()
    assign_microbatches(anew)
    colocated(anew)
    return time.process_time() - begin
