"""`python -m mmjax.train`: trains a configured model on its plan; without arguments, the quickstart on this machine."""

import datetime
import json
import pathlib
from typing import TYPE_CHECKING, Any

from absl import flags

from mmjax import cli

if TYPE_CHECKING:
    from rich.console import Console

_WORKDIR = flags.DEFINE_string("workdir", "", "Where everything is written; default: a new folder under runs/.")
_RESUME = flags.DEFINE_bool("resume", False, "Continue from the newest whole checkpoint of --workdir.")
_PROFILE = flags.DEFINE_string(
    "profile",
    "",
    "Profile of this hardware (python -m mmjax.profile), to predict the step and to plan if plan is auto.",
)
_OTHER_DEVICE = flags.DEFINE_bool("allow_other_device", False, "Accept a profile of other hardware.")


def main() -> int:
    """Prints the plan, the progress and where files are. Returns 0 also if a signal ended the run: all is saved."""
    workdir = _choose_workdir()
    if _RESUME.value and not cli.gin_files_given():
        if not (workdir / cli.OPERATIVE_CONFIG).is_file():
            raise cli.UserError(f"--workdir={workdir} has no {cli.OPERATIVE_CONFIG}: there is no run to resume")
        cli.parse_operative_config(str(workdir))
    else:
        cli.parse_gin("quickstart.gin")
    import jax
    from rich.console import Console

    from mmjax.planning import automatic
    from mmjax.training.config import TrainConfig, tokenizer_mismatches_backbone
    from mmjax.training.metrics.parameters import flat_parameters
    from mmjax.training.metrics.progress import make_progress, print_plan
    from mmjax.training.metrics.writers import open_metrics_writer
    from mmjax.training.summary import SUMMARY_FILE, run_summary
    from mmjax.training.trainer import Trainer, describe_devices

    config = cli.configured(TrainConfig)
    console = Console(highlight=False)
    first = jax.process_index() == 0
    if _RESUME.value and _is_finished(workdir, config.steps, console if first else None):
        return 0
    if jax.process_count() > 1 and not _WORKDIR.value:
        raise cli.UserError(
            f"a run of {jax.process_count()} processes needs --workdir: a folder that all of them share"
        )
    plan, remark, prediction = automatic.plan_and_predict(config, workdir, _PROFILE.value, _OTHER_DEVICE.value)
    if first:
        console.print(describe_devices())
        print_plan(plan.table(), console)
        console.print(
            f"{plan.microbatches} microbatches, schedule {plan.schedule}", *([remark] if remark else []), soft_wrap=True
        )
    trainer = Trainer(config, plan, workdir, _RESUME.value)
    if first:
        if tokenizer_mismatches_backbone(config, trainer.tokenizer):
            console.print(
                f"warning: {config.model.backbone.name} starts from published weights, and the tokens are those of a "
                f"{type(trainer.tokenizer).__name__}: give the data set the model's own (HuggingFaceTokenizer.file)",
                style="yellow",
                soft_wrap=True,
            )
        cli.write_operative_config(str(workdir))
    metrics = open_metrics_writer(workdir, trainer.steps_done, first, config.writers, flat_parameters(config))
    progress = make_progress(config.steps, trainer.steps_done, config.log_interval, first, console)
    try:
        result = trainer.fit(progress, metrics)
    finally:
        progress.close()
        metrics.close()
        trainer.close()
    if first:
        summary = run_summary(result, plan, config.model.backbone.name, remark) | {
            "prediction": automatic.compare_prediction(prediction, workdir)
        }
        (workdir / SUMMARY_FILE).write_text(json.dumps(summary, indent=2) + "\n")
        _print_outcome(console, summary, workdir)
    return 0


def _choose_workdir() -> pathlib.Path:
    if _WORKDIR.value:
        return pathlib.Path(_WORKDIR.value)
    if _RESUME.value:
        raise cli.UserError("--resume needs --workdir: the folder of the run to continue")
    return pathlib.Path("runs") / datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S")


def _is_finished(workdir: pathlib.Path, steps: int, console: "Console | None") -> bool:
    """Whether the run in a workdir has these steps and its evaluation behind it; says so on the console.

    Raises:
        UserError: It has more steps behind it than are asked for.
    """
    from mmjax.training.summary import finished_steps

    done = finished_steps(workdir)
    if done is None or done < steps:
        return False
    if done > steps:
        raise cli.UserError(
            f"TrainConfig.steps is {steps}, and the run in {workdir} finished {done} steps; raise steps above {done} "
            "to train on, or choose another workdir"
        )
    if console:
        console.print(
            f"The run in {workdir} is finished: {done} of {steps} steps. Nothing was changed; raise TrainConfig.steps "
            "to train on.",
            soft_wrap=True,
        )
    return True


def _print_outcome(console: "Console", summary: dict[str, Any], workdir: pathlib.Path) -> None:
    from mmjax.training.summary import SUMMARY_FILE

    if not summary["stopped_by"]:
        accuracy = ""
        if summary["accuracy"] is not None:
            accuracy = f"Held-out accuracy {summary['accuracy']:.1%} of {summary['questions']} questions, "
        console.print(f"{accuracy}{summary['steps']} steps in {summary['wall_seconds']:.0f} s")
    elif summary["steps"]:
        console.print(
            f"Stopped by {summary['stopped_by']} after step {summary['steps']}, which is saved; continue with\n"
            f"    python -m mmjax.train --workdir={workdir} --resume",
            soft_wrap=True,
        )
    else:
        console.print(f"Stopped by {summary['stopped_by']} before the first step; there is nothing to resume.")
    files = ", ".join(
        (SUMMARY_FILE, "metrics.jsonl", "tensorboard/", "checkpoints/", cli.OPERATIVE_CONFIG, "plan.json")
    )
    console.print(f"Written to {workdir}: {files}", soft_wrap=True)
