"""Throughput of multimodal training over training of the same backbone on text alone.

It is the backbone tokens a second of the multimodal step over those of a step of the same backbone, on the same rows as
if all of their tokens were text, without encoders and generators, on the same devices; both planned by all policies. It
cannot be more than the backbone's share of the FLOPs times the ratio of the two steps' MFU.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.papers import disttrain, orchmllm
from benchmarks.papers.best_plans import BestPlans
from benchmarks.papers.paper_rows import Figure, PaperRow, Unit, exactly
from benchmarks.papers.ranges import gain_figure, mfu_figure
from benchmarks.planner.disttrain_models import BATCH, DEVICES, RIGID_PP
from configs.architectures import ModelConfig
from configs.clusters import CLUSTERS
from configs.workloads import SyntheticData, Workload
from mmjax import cli
from mmjax.planning.problem import make_problem, workload_statistics
from sharding.costs.analytic import AnalyticCostModel
from sharding.planners.problem import PlanningProblem
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.simulation.timeline import Timeline
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics

PLACE = "our table"
GOAL = 0.98
"""Share of the throughput on text alone that the multimodal run should have."""

QWEN_DEVICES, QWEN_ROWS, QWEN_DATA = 64, 128, "data/internvl_like.gin"
ASSUMED = "both steps have the same backbone rows on the same devices, and are planned by all policies"


class TextOnlyCase(NamedTuple):
    """A model that is planned with its encoders and generators, and without.

    Attributes:
        title: The model and its devices.
        model: Name of the model in configs/models.
        problem: Makes its problem.
        search: As in `BestPlans.best`.
    """

    title: str
    model: str
    problem: Callable[[], PlanningProblem]
    search: bool = True


def cases() -> tuple[TextOnlyCase, ...]:
    """The models, in order of their size."""
    qwen = {"qwen3_vl_8b": "Qwen3-VL-8B", "qwen3_vl_30b_a3b": "Qwen3-VL-30B-A3B"}
    return (
        *(
            TextOnlyCase(
                f"{disttrain.MODEL_NAMES[name]}, {DEVICES:,} A800s",
                name,
                functools.partial(disttrain.problem_of, name, ("all",), DEVICES, BATCH),
            )
            for name in RIGID_PP
        ),
        TextOnlyCase(
            "MLLM-84B, 2,560 H100s", "mllm_84b", functools.partial(orchmllm.packed_problem, "mllm_84b"), search=False
        ),
        *(
            TextOnlyCase(f"{title}, {QWEN_DEVICES} H100s", name, functools.partial(_qwen_problem, name))
            for name, title in qwen.items()
        ),
    )


def rows(plans: BestPlans) -> Iterator[PaperRow]:
    """All rows."""
    for case in cases():
        problem = case.problem()
        cli.parse_gin((f"models/{case.model}.gin",))
        yield from case_rows(case, problem, text_alone(problem, cli.configured(ModelConfig)), plans)


def text_alone(problem: PlanningProblem, model: ModelConfig) -> PlanningProblem:
    """The problem of a model's backbone on the same rows, all of whose tokens are text."""
    backbone, graph = problem.graph.backbone, module_graph(dataclasses.replace(model, encoders=(), generators=()))
    return dataclasses.replace(
        problem,
        graph=graph,
        data=RowLoadStatistics({backbone.name: problem.data.loads[backbone.name]}),
        trained_parts=trained_parts(graph, ("all",)),
        chunk_choices=tuple(range(1, max(2, backbone.layer_count // 2 + 1))),
    )


def case_rows(
    case: TextOnlyCase, problem: PlanningProblem, alone: PlanningProblem, plans: BestPlans
) -> Iterator[PaperRow]:
    """The ratio of throughputs, and what it consists of."""
    multimodal = plans.best(problem, case.title, search=case.search)
    text = plans.best(alone, f"{case.title}, text alone", search=case.search)
    both = (multimodal.simulated.timeline, text.simulated.timeline)
    share = _flops_a_token(both[1], alone) / _flops_a_token(both[0], problem)
    yield _row(case, "multimodal", "throughput over text alone", gain_figure(*both), multimodal.words)
    yield _row(case, "the backbone", "share of the FLOPs", Figure("computed", exactly(share), None), "")
    yield _row(case, "multimodal", "MFU", mfu_figure(both[0]), multimodal.words)
    yield _row(case, "text alone", "MFU", mfu_figure(both[1]), text.words)


def _flops_a_token(timeline: Timeline, problem: PlanningProblem) -> float:
    """FLOPs of a backbone token, squares whole."""
    assert isinstance(problem.costs, AnalyticCostModel)
    rate = timeline.mfu_whole_squares * timeline.groups.device_count * problem.costs.peak_flops
    return rate / timeline.tokens_per_second


def _qwen_problem(name: str) -> PlanningProblem:
    cli.parse_gin((f"models/{name}.gin", QWEN_DATA))
    workload = Workload(cli.configured(ModelConfig), cli.configured(SyntheticData), QWEN_ROWS)
    return make_problem(workload, workload_statistics(workload), CLUSTERS["h100"], QWEN_DEVICES)


def _row(case: TextOnlyCase, system: str, quantity: str, figure: Figure, words: str) -> PaperRow:
    unit: Unit = "share"
    return PaperRow(
        paper="text_only",
        place=PLACE,
        row=case.title,
        system=system,
        quantity=quantity,
        unit=unit,
        best=figure,
        best_plan=words,
        assumptions=(ASSUMED,),
    )
