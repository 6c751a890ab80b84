"""`python -m benchmarks.omnibal`: what balancing data, stages and memory gains, simulated on OmniBal's models.

Each row has a name, a value, a goal, whether it is met, and the paper's figure (arXiv 2407.20761).
"""

import dataclasses

from benchmarks.command import run_benchmark
from benchmarks.omnibal.settings import LAYOUTS
from benchmarks.rows import report
from mmjax import cli

DATA = "data/internvl_1_2_like.gin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OmniBalArguments(cli.JsonArguments):
    """Flags of the command."""

    models: tuple[str, ...] = cli.flag(
        tuple(LAYOUTS), "Models of configs/models to simulate.", metavar="NAMES", parse=cli.list_of(str)
    )


def main(arguments: OmniBalArguments) -> int:
    """Prints the table. Returns 0 if every goal is met, else 1."""
    from benchmarks.omnibal.speed import measure_partition
    from benchmarks.omnibal.steps import measure_model
    from configs.architectures import ModelConfig
    from configs.clusters import CLUSTERS
    from configs.workloads import SyntheticData

    rows = measure_partition()
    for name in arguments.models:
        cli.parse_gin((f"models/{name}.gin", DATA))
        rows += measure_model(name, cli.configured(ModelConfig), cli.configured(SyntheticData), CLUSTERS["a100"])
    return report(rows, "paper", digits=4, as_json=arguments.json)


if __name__ == "__main__":
    run_benchmark(
        main,
        OmniBalArguments,
        name="benchmarks.omnibal",
        summary="Simulates what balancing data, stages and memory gains on OmniBal's models.",
        examples=("--models=internvit_6b_llama3_8b",),
    )
