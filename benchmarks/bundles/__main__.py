"""`python -m benchmarks.bundles`: what bundles of an encoder's and a backbone's programs hide on H100s, without one.

Compiles programs of a stage of Llama3-70B and of a slice of ViT-22B for eight H100s that they share
(`pip install -e '.[aot]'`), alone and in bundles, and prints how many MiB of their collectives no matmul runs beside,
and the temporary memory. The goal of a bundle is to expose less than its two programs alone do. Nothing runs.
"""

from benchmarks.command import hide_devices, run_benchmark
from configs.common.errors import UserError
from mmjax import cli


def main(arguments: cli.JsonArguments) -> int:
    """Compiles and prints; 1 if a bundle exposes no less than its programs alone."""
    from benchmarks.bundles.exposure import CASES, bundle_rows
    from benchmarks.rows import report
    from mmjax.training.dry_run.targets import missing_plugin

    if reason := missing_plugin():
        raise UserError(reason)
    return report(bundle_rows(CASES), "alone", digits=4, as_json=arguments.json)


if __name__ == "__main__":
    hide_devices()
    run_benchmark(
        main,
        cli.JsonArguments,
        name="benchmarks.bundles",
        summary="Compiles bundles of an encoder's and a backbone's programs for H100s, and reports what they hide.",
        examples=("--json",),
    )
