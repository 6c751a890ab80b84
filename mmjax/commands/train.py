"""`python -m mmjax.train`: trains a configured model on its plan; without arguments, the quickstart on this machine."""

import contextlib
import dataclasses
import datetime
import functools
import json
import pathlib
from typing import TYPE_CHECKING

from mmjax import cli

if TYPE_CHECKING:
    from rich.console import Console

    from mmjax.training.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainArguments(cli.RunArguments):
    """Flags of the command."""

    workdir: str = cli.flag(
        "",
        "Folder to which everything is written; without the flag, a new one under runs/.",
        metavar="FOLDER",
        parse=cli.output_folder,
    )
    resume: bool = cli.flag(False, "Continues from the newest whole checkpoint of --workdir.")
    profile: str = cli.flag(
        "",
        "Profile of this hardware (python -m mmjax.profile), to predict the step and to plan if plan is auto.",
        metavar="FILE",
    )
    allow_other_device: bool = cli.flag(False, "Accepts a profile of other hardware.")


def prepare(arguments: TrainArguments) -> cli.Work:
    """Reads the configuration; a resumed run without a given one has the configuration in its workdir."""
    workdir = _choose_workdir(arguments)
    if arguments.resume and not arguments.gin_file:
        config = cli.run_config(workdir, arguments)
    else:
        config = cli.training_config(arguments)
    _check_inputs(arguments, config)
    return functools.partial(train, arguments, config, workdir)


def _check_inputs(arguments: TrainArguments, config: "TrainConfig") -> None:
    """Raises UserError for a plan or profile that cannot be read, before jax starts."""
    from mmjax.training.config import find_plan_file
    from sharding.costs.profiled import Profile
    from sharding.plans.plan import Plan

    if config.plan not in ("", "auto"):
        Plan.load(find_plan_file(config.plan))
    if arguments.profile:
        Profile.load(arguments.profile)


def train(arguments: TrainArguments, config: "TrainConfig", workdir: pathlib.Path) -> int:
    """Prints the plan, the progress and where files are. Returns 0 also if a signal ended the run: all is saved."""
    import jax

    from configs.common.console import plain_console
    from mmjax.planning import automatic
    from mmjax.reporting.run_trainer import RunTrainer
    from mmjax.training.config import tokenizer_mismatches_backbone
    from mmjax.training.metrics.parameters import flat_parameters
    from mmjax.training.metrics.progress import make_progress, print_plan
    from mmjax.training.metrics.writers import open_metrics_writer
    from mmjax.training.start_checks.checks import check_alike, check_start
    from mmjax.training.start_checks.identity import run_identity, text_digest
    from sharding.html.numbers import count_of

    console = plain_console()
    first = jax.process_index() == 0
    if arguments.resume and is_finished(workdir, config.steps, console if first else None):
        return 0
    if jax.process_count() > 1 and not arguments.workdir:
        raise cli.UserError(
            f"a run of {jax.process_count()} processes needs --workdir: a folder that all of them share"
        )
    plan, remark, prediction = automatic.plan_and_predict(
        config, workdir, arguments.profile, arguments.allow_other_device
    )
    if first:
        devices = jax.devices()
        console.print(f"{len(devices)} x {devices[0].device_kind}, {count_of(jax.process_count(), 'process')}")
        print_plan(plan.table(), console)
        console.print(
            f"{count_of(plan.microbatches, 'microbatch')}, schedule {plan.schedule}",
            *([remark] if remark else []),
            soft_wrap=True,
        )
    check_start(run_identity(cli.configuration_text(), plan.to_json()))
    with contextlib.ExitStack() as opened:
        # Leaves this block last, and tells the other processes of any error in it.
        trainer = opened.enter_context(
            RunTrainer(config, plan, workdir, arguments.resume, remark=remark, prediction=prediction)
        )
        resumed_from = trainer.steps_done
        if first and resumed_from:
            console.print(f"continuing {workdir} from step {resumed_from}", soft_wrap=True, markup=False)
        check_alike("data", {"data": text_digest(json.dumps(trainer.batches.get_state(), sort_keys=True))})
        # Before the operative config is written, which has the parameters of the objects constructed until then.
        metrics = open_metrics_writer(workdir, trainer.steps_done, first, config.writers, flat_parameters(config))
        opened.callback(metrics.close)
        if first:
            if tokenizer_mismatches_backbone(config, trainer.tokenizer):
                console.print(
                    f"warning: {config.model.backbone.name} starts from published weights, and the tokens are those of "
                    f"a {type(trainer.tokenizer).__name__}: give the data set the model's own "
                    "(HuggingFaceTokenizer.from_file)",
                    style="yellow",
                    soft_wrap=True,
                )
            cli.write_operative_config(str(workdir))
        progress = make_progress(config.steps, trainer.steps_done, config.log_interval, first, console)
        opened.callback(progress.close)
        trainer.fit(progress, metrics)
    if first:
        _print_outcome(console, workdir, resumed_from)
    return 0


def _choose_workdir(arguments: TrainArguments) -> pathlib.Path:
    if arguments.workdir:
        return pathlib.Path(arguments.workdir)
    if arguments.resume:
        raise cli.UserError("--resume needs --workdir: the folder of the run to continue")
    return pathlib.Path("runs") / datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S")


def is_finished(workdir: pathlib.Path, steps: int, console: "Console | None") -> bool:
    """Whether the run in a workdir has trained these steps and was evaluated; prints that to the console.

    The summary shows whether the evaluation is done, and the last checkpoint whether the steps are: a run whose last
    checkpoint is gone or damaged is not finished. All processes call this.

    Raises:
        UserError: It has trained more than `steps` steps.
        UnreadableCheckpointError: A file of the last checkpoint cannot be read.
    """
    from mmjax.training.checkpoints.discovery import damage_found_by_any_process, steps_for_all
    from mmjax.training.summary import finished_steps
    from sharding.runtime.coordination import exchange_texts

    said = exchange_texts("the end of the run", str(finished_steps(workdir) or ""))[0]
    if not said or (done := int(said)) < steps:
        return False
    checkpoints = workdir / "checkpoints"
    saved = steps_for_all(checkpoints)
    if done not in saved:
        reason = f"{checkpoints} has no checkpoint of that step"
    elif saved[-1] != done:
        reason = f"{checkpoints} has a later one, of step {saved[-1]}"
    else:
        reason = damage_found_by_any_process(checkpoints / said)
    if reason:
        if console:
            console.print(
                f"warning: the summary of {workdir} says that the run finished {done} steps, but {reason}; the run "
                "continues from the newest whole checkpoint",
                style="yellow",
                soft_wrap=True,
            )
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


def _print_outcome(console: "Console", workdir: pathlib.Path, resumed_from: int) -> None:
    from mmjax.reporting.run_page import PAGE_FILE
    from mmjax.training.summary import SUMMARY_FILE

    summary = json.loads((workdir / SUMMARY_FILE).read_text(encoding="utf-8"))
    if not summary["stopped_by"]:
        accuracy = ""
        if summary["accuracy"] is not None:
            accuracy = f"Held-out accuracy {summary['accuracy']:.1%} of {summary['counted']}, "
        console.print(f"{accuracy}{steps_and_seconds(summary['steps'], resumed_from, summary['wall_seconds'])}")
    elif summary["steps"]:
        console.print(
            f"Stopped by {summary['stopped_by']} after step {summary['steps']}, which is saved; continue with\n"
            f"    python -m mmjax.train --workdir={workdir} --resume",
            soft_wrap=True,
        )
    else:
        console.print(f"Stopped by {summary['stopped_by']} before the first step; there is nothing to resume.")
    files = ", ".join(
        (PAGE_FILE, SUMMARY_FILE, "metrics.jsonl", "tensorboard/", "checkpoints/", cli.OPERATIVE_CONFIG, "plan.json")
    )
    console.print(f"Written to {workdir}: {files}", soft_wrap=True)


def steps_and_seconds(steps: int, resumed_from: int, seconds: float) -> str:
    """The steps of a run, and the seconds of the steps since it was resumed; earlier seconds are not known."""
    from sharding.html.numbers import count_of

    if not resumed_from:
        return f"{count_of(steps, 'step')} in {seconds:.0f} s"
    if steps == resumed_from:
        return f"{count_of(steps, 'step')}, none of them since the resume, which took {seconds:.0f} s"
    return f"{count_of(steps, 'step')}, the last {steps - resumed_from} in {seconds:.0f} s"


COMMAND = cli.Command(
    name="mmjax.train",
    summary="Trains a configured model; without flags, the quickstart.",
    examples=(
        "--gin_file=easy_vqa.gin --workdir=runs/short",
        "--gin_file=easy_vqa.gin --workdir=runs/short --resume",
    ),
    arguments=TrainArguments,
    prepare=prepare,
    distributed=True,
)
