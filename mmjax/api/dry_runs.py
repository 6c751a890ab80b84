"""`mmjax.dryrun`: a plan compiled for GPUs that are not here, for programs and notebooks."""

import functools

from mmjax.api.planning import Path, Subject, problem_of_plan
from mmjax.planning.batch_shapes import batch_shapes
from mmjax.training.dry_run.dry_run import DryRun, dry_run
from mmjax.training.dry_run.targets import check_target
from mmjax.training.metrics.activity import COMPILING, display_call
from sharding.plans.plan import Plan


def dryrun(plan: Plan | Path, subject: Subject | None = None, target: str = "h100", rows: int | None = None) -> DryRun:
    """Compiles every distinct program of a plan for GPUs that are not here (`pip install -e '.[aot]'`); nothing runs.

        run = mmjax.dryrun("plan.json", target="h200")
        run.fits, run.fullest.compiled_bytes

    Args:
        plan: A plan, or a plan file.
        subject, rows: As in `mmjax.simulate`.
        target: The GPU: `a100`, `b200`, `h100` or `h200`.

    Raises:
        UserError: There is no such target, the CUDA plugin of jax is not installed, or a program does not compile.
        PlanError: The plan does not hold the model or the batch.
    """
    check_target(target)
    laid_out, inputs, problem = problem_of_plan("mmjax.dryrun", plan, subject, rows=rows)
    with display_call() as display:
        show = functools.partial(display.show, COMPILING)
        shapes = batch_shapes(inputs.config, problem)
        return dry_run(problem, laid_out, inputs.config.model, shapes, target, inputs.config.optimizer, show)
