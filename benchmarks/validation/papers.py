"""`python -m benchmarks.validation.papers`: whether the papers' own figures lie in the ranges of what is simulated.

MLLM-72B by DistTrain, MLLM-84B by OrchMLLM, ViT-22B with GPT-175B by Megatron-LM and Optimus, and Qwen3-VL-8B fully
sharded by lmms-engine. A simulated step has the range of `sharding.costs.published_errors`; an MFU has the range of its
step. Plans are those of `benchmarks.planner`, `benchmarks.dispatch` and `benchmarks.colocated`.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from benchmarks.command import run_benchmark
from benchmarks.rows import report
from mmjax import cli
from sharding.costs.published_errors import Family, error_families, step_range


class Span(NamedTuple):
    """A figure's lower and upper end: seconds, or a share of the peak."""

    least: float
    most: float

    def overlaps(self, other: "Span") -> bool:
        """Whether a value lies in both."""
        return self.least <= other.most and other.least <= self.most

    def in_words(self, share: bool) -> str:
        """The ends as percentages or seconds; one figure where they are the same."""
        ends = [f"{100 * end:.1f}%" if share else f"{end:.2f} s" for end in self]
        return ends[0] if self.least == self.most else " to ".join(ends)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """A published figure beside the simulated one.

    Attributes:
        name: The model and the system.
        published: What was measured; a band where that is what is known.
        simulated: What is simulated: seconds, or MFU by the countings between which the source's may lie.
        range: Where the simulated figure is expected to lie by the errors on published runs.
        share: Whether the figures are MFU; otherwise they are seconds.
    """

    name: str
    published: Span
    simulated: Span
    range: Span
    share: bool

    def row(self) -> dict[str, Any]:
        """The figure as a row of a benchmark; it meets its goal if what was published may lie in the range."""
        published, simulated, range_ = (
            span.in_words(self.share) for span in (self.published, self.simulated, self.range)
        )
        within = self.published.overlaps(self.range)
        figures = f"{published} published, {simulated} simulated, range {range_}"
        row = {"name": self.name, "value": self.simulated.most, "goal": None, "met": within, "figures": figures}
        return row | {"published": self.published, "simulated": self.simulated, "range": self.range}


def mllm_72b() -> PaperFigure:
    """DistTrain's model in our `disaggregated` plan, all trained; the paper does not say how it counts squares."""
    from benchmarks.planner.disttrain_models import BATCH, DEVICES, PAPER_MFU
    from configs.architectures import ModelConfig
    from configs.workloads import SyntheticData, Workload
    from mmjax.planning.cluster_files import read_cluster
    from mmjax.planning.problem import make_problem, workload_statistics
    from sharding.planners.policies import disaggregated
    from sharding.planners.policies.auto import best_simulated

    cli.parse_gin(("models/mllm_72b.gin", "data/laion_like.gin"))
    workload = Workload(cli.configured(ModelConfig), cli.configured(SyntheticData), BATCH)
    problem = make_problem(workload, workload_statistics(workload), read_cluster("disttrain_a800"), DEVICES)
    timeline = best_simulated(problem, disaggregated.plans(problem)).timeline
    mfu = Span(timeline.mfu, timeline.mfu_whole_squares)
    name = f"MLLM-72B, DistTrain ({timeline.groups.device_count:,} A800s simulated)"
    return _mfu_figure(name, Span(PAPER_MFU, PAPER_MFU), mfu, timeline.step, timeline.error_families)


def mllm_84b() -> PaperFigure:
    """OrchMLLM's model, fully sharded, every phase balanced; the paper does not say how it counts squares."""
    from benchmarks.dispatch.arrangement import ORCHMLLM, arrange
    from benchmarks.dispatch.samples import described, draw_step
    from benchmarks.dispatch.settings import DEVICES, PAPER_MFU, SETTINGS
    from benchmarks.dispatch.steps import CLUSTER, simulate_balanced
    from sharding.specs.modules import module_graph

    name = "mllm_84b"
    model, data = described(name, SETTINGS[name].image_bound)
    samples = draw_step(model, data, DEVICES, SETTINGS[name].mini_batches.balanced)
    step = simulate_balanced(samples, data, ORCHMLLM, arrange(samples, ORCHMLLM, CLUSTER.devices_per_node))
    families = error_families(step.plan, module_graph(model))
    mfu = Span(step.mfu, step.mfu_whole_squares)
    title = f"MLLM-84B, OrchMLLM ({DEVICES:,} H100s)"
    return _mfu_figure(title, Span(PAPER_MFU[name], PAPER_MFU[name]), mfu, step.seconds, families)


def qwen3_vl_8b() -> Iterator[PaperFigure]:
    """lmms-engine's fully sharded runs, by its counting, of the mixtures of samples that are assumed."""
    from benchmarks.validation.runs import lmms_engine
    from benchmarks.validation.settings.setting import simulated_step

    for band in lmms_engine.bands():
        if "Qwen3-VL 8B" in band.name:
            shares = [assumed.mfu() for assumed in band.assumed]
            step = simulated_step(band.assumed[0].setting)
            simulated = Span(min(shares), max(shares))
            published = Span(band.least, band.most)
            yield _mfu_figure(band.name, published, simulated, step, ("fully_sharded", "vision_language"))


PAPER_SECONDS = {
    "Megatron-LM": Span(10.64, 10.75),
    "Megatron-LM balanced": Span(10.31, 10.50),
    "colocated": Span(8.49, 9.82),
}
"""Optimus's steps on 1,536 H100s by system. They are known to this project only by rounded ratios of the steps that
were simulated on 25 November 2026 to the paper's: 10.16 s is 0.95 of it, 5.41 s 0.52, 4.37 s 0.45 to 0.51."""


def vit_22b_gpt_175b() -> Iterator[PaperFigure]:
    """Optimus's largest model on 1,536 devices: the baselines in the paper's layouts, and our `colocated` plan."""
    from benchmarks.colocated.cases import case_of
    from benchmarks.colocated.settings import STRONG_SCALING
    from benchmarks.colocated.systems import systems_of

    case = case_of(next(setting for setting in STRONG_SCALING if setting.devices == 1536))
    systems = systems_of(case)
    for name, published in PAPER_SECONDS.items():
        timeline = systems[name](case).timeline
        least, most, _ = step_range(timeline.step, timeline.error_families)
        simulated = Span(timeline.step, timeline.step)
        yield PaperFigure(
            name=f"ViT-22B with GPT-175B, {name} (1,536 H100s)",
            published=published,
            simulated=simulated,
            range=Span(least, most),
            share=False,
        )


def _mfu_figure(name: str, published: Span, simulated: Span, step: float, families: Iterable[Family]) -> PaperFigure:
    """A figure whose MFU has the range of its step, by both countings of squares."""
    least, most, _ = step_range(step, families)
    range_ = Span(simulated.least * step / most, simulated.most * step / least)
    return PaperFigure(name=name, published=published, simulated=simulated, range=range_, share=True)


def main(arguments: cli.JsonArguments) -> int:
    """Prints the table. Returns 0 if every published figure may lie in its range, else 1."""
    figures = (mllm_72b(), mllm_84b(), *qwen3_vl_8b(), *vit_22b_gpt_175b())
    return report([figure.row() for figure in figures], "figures", digits=3, as_json=arguments.json)


if __name__ == "__main__":
    run_benchmark(
        main,
        cli.JsonArguments,
        name="benchmarks.validation.papers",
        summary="Compares published figures of four multimodal models with the ranges of what is simulated.",
        examples=("--json",),
    )
