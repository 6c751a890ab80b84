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

SUMMARY = "summary.json"


def main() -> int:
    """Prints the plan, the progress and where files are. Returns 0 also if SIGTERM ended the run, for all is saved."""
    cli.parse_gin("quickstart.gin")
    import jax
    from rich.console import Console

    from mmjax.planning import automatic
    from mmjax.training.config import TrainConfig, tokenizer_mismatches_backbone
    from mmjax.training.metrics.progress import make_progress, print_plan
    from mmjax.training.metrics.writers import open_metrics_writer
    from mmjax.training.summary import run_summary
    from mmjax.training.trainer import Trainer, describe_devices

    config = cli.configured(TrainConfig)
    workdir = _choose_workdir(jax.process_count())
    console = Console(highlight=False)
    first = jax.process_index() == 0
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
        plan.save(workdir / "plan.json")
        (workdir / "tokenizer.json").write_text(trainer.tokenizer.to_json())
        (workdir / "prompt_format.json").write_text(trainer.prompt_format.to_json())
    metrics = open_metrics_writer(str(workdir), trainer.step, first)
    progress = make_progress(config.steps, trainer.step, config.log_interval, first, console)
    try:
        result = trainer.run(progress, metrics)
    finally:
        progress.close()
        metrics.close()
        trainer.close()
    if first:
        summary = run_summary(result, plan, config.model.backbone.name, remark) | {
            "prediction": automatic.compare_prediction(prediction, workdir)
        }
        trainer.batches.write_refused(workdir)
        (workdir / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
        _print_outcome(console, summary, workdir)
    return 0


def _choose_workdir(processes: int) -> pathlib.Path:
    from configs.errors import UserError

    if _WORKDIR.value:
        return pathlib.Path(_WORKDIR.value)
    if _RESUME.value:
        raise UserError("--resume needs --workdir: the folder of the run to continue")
    if processes > 1:
        raise UserError(f"a run of {processes} processes needs --workdir: a folder that all of them share")
    return pathlib.Path("runs") / datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S")


def _print_outcome(console: "Console", summary: dict[str, Any], workdir: pathlib.Path) -> None:
    if summary["interrupted"]:
        console.print(
            f"Stopped by SIGTERM after step {summary['steps']}; continue with "
            f"python -m mmjax.train --workdir={workdir} --resume and the same configuration"
        )
    else:
        accuracy = ""
        if summary["accuracy"] is not None:
            accuracy = f"Held-out accuracy {summary['accuracy']:.1%} of {summary['questions']} questions, "
        console.print(f"{accuracy}{summary['steps']} steps in {summary['wall_seconds']:.0f} s")
    files = ", ".join((SUMMARY, "metrics.jsonl", "tensorboard/", "checkpoints/", cli.OPERATIVE_CONFIG, "plan.json"))
    console.print(f"Written to {workdir}: {files}", soft_wrap=True)
