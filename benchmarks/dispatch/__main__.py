"""`python -m benchmarks.dispatch`: what post-balancing of every phase gains, simulated on OrchMLLM's models.

Each row has a name, a value, a goal, whether it is met, and the paper's figure (arXiv 2503.23830).
"""

import dataclasses

from benchmarks.command import run_benchmark
from benchmarks.dispatch.settings import SETTINGS
from benchmarks.rows import paper_row, report
from mmjax import cli


@dataclasses.dataclass(frozen=True, kw_only=True)
class DispatchArguments(cli.JsonArguments):
    """Flags of the command."""

    models: tuple[str, ...] = cli.flag(
        tuple(SETTINGS), "Models of configs/models to simulate.", metavar="NAMES", parse=cli.list_of(str)
    )


def main(arguments: DispatchArguments) -> int:
    """Prints the table. Returns 0 if every goal is met, else 1."""
    from benchmarks.dispatch import model_rows, planning, settings
    from benchmarks.dispatch.balance_figures import largest_mini_batch_rows, phase_rows
    from benchmarks.dispatch.samples import described, draw_step

    rows, over_megatron = [], []
    for name in arguments.models:
        setting = SETTINGS[name]
        model, data = described(name, setting.image_bound)
        samples = draw_step(model, data, settings.DEVICES, setting.mini_batches.balanced)
        setting_rows, ratio = model_rows.cluster_rows(name, setting, samples, data)
        over_megatron.append(ratio)
        few = draw_step(model, data, settings.ABLATION_DEVICES, 2 * setting.mini_batches.ablation)
        rows += [
            *setting_rows,
            *model_rows.ablation_rows(name, few.first(setting.mini_batches.ablation), data),
            *largest_mini_batch_rows(name, few, data),
            *phase_rows(name, samples),
        ]
        if name == "mllm_10b":
            timed = samples.first(settings.PLANNING_SAMPLES)
            rows += [*planning.planning_rows(timed), *planning.placement_rows(timed)]
    most = "ours: throughput over Megatron-LM, the most of these models"
    rows.append(paper_row(most, max(over_megatron), settings.PAPER_MOST_OVER_MEGATRON))
    return report(rows, "paper", digits=4, as_json=arguments.json)


if __name__ == "__main__":
    run_benchmark(
        main,
        DispatchArguments,
        name="benchmarks.dispatch",
        summary="Simulates what balancing the items of every phase gains on OrchMLLM's models.",
        examples=("--models=mllm_10b",),
    )
