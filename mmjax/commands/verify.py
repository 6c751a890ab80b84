"""`python -m mmjax.verify`: compares the results of every layout with plain jax on one device.

Exits with code 1, in all processes of a run, if a layout exceeds a tolerance.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from configs.common.errors import INTERRUPTED, UserError
from mmjax import cli

if TYPE_CHECKING:
    import pathlib

    from mmjax.training.config import TrainConfig
    from mmjax.training.verification.layouts.layout_kinds import NamedLayout
    from mmjax.training.verification.reports import LayoutReport
    from sharding.plans.plan import Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyArguments(cli.GinArguments, cli.JsonArguments):
    """Flags of the command."""

    plan: tuple[str, ...] = cli.flag(
        (),
        "Plan file to verify. Repeatable; without the flag, the configuration's plan and layouts of every kind.",
        metavar="FILE",
        repeatable=True,
    )
    dtype: str = cli.flag(
        "",
        "Compute precision, float32 or bfloat16; without the flag, the configuration's.",
        metavar="NAME",
        parse=cli.one_of("float32", "bfloat16"),
    )
    shrink: bool = cli.flag(False, "Shrinks widths and depths; kinds of layers and stages stay.")
    only: tuple[str, ...] = cli.flag(
        (),
        "Compares only the layouts whose names, as printed, contain this text. Repeatable.",
        metavar="TEXT",
        repeatable=True,
    )
    random: int = cli.flag(
        0, "Number of random plans to verify too, drawn with TrainConfig.seed.", metavar="N", parse=cli.integer(0)
    )
    steps: int = cli.flag(
        2, "Steps; between them, training on one device moves the parameters.", metavar="N", parse=cli.integer(1)
    )


def prepare(arguments: VerifyArguments) -> cli.Work:
    """Reads the configuration and the plans."""
    from sharding.plans.plan import Plan

    config = cli.training_config(arguments)
    plans = {name: Plan.load(path) for name, path in _plan_files(arguments, config).items()}
    return functools.partial(verify, arguments, config, plans)


def verify(arguments: VerifyArguments, config: "TrainConfig", plans: "dict[str, Plan]") -> int:
    """Returns 0 if all layouts agree with the reference, else 1."""
    import jax

    from mmjax.training.verification.configured_run import layouts_to_verify, verify_run
    from mmjax.training.verification.layouts.divided_plans import GlobalRows
    from mmjax.training.verification.layouts.random_plans import random_plans
    from mmjax.training.verification.shrink import shrink_data, shrink_model, shrink_plan
    from sharding.specs.modules import module_graph

    model, data = dataclasses.replace(config.model, dtype=arguments.dtype or config.model.dtype), config.data
    dataset = config.dataset("train")
    if arguments.shrink:
        large, large_rows = module_graph(model), GlobalRows.from_data(model, data)
        model = shrink_model(model, dataset.tokenizer.vocabulary_size, tuple(plans.values()))
        data = shrink_data(data, model)
        small, small_rows = module_graph(model), GlobalRows.from_data(model, data)
        plans = {name: shrink_plan(plan, large, small, large_rows, small_rows) for name, plan in plans.items()}
    rows = GlobalRows.from_data(model, data)
    plans |= random_plans(module_graph(model), rows, jax.device_count(), config.seed, arguments.random)
    layouts, refused = layouts_to_verify(plans, model, rows, with_defaults=not arguments.plan)
    layouts = _named(layouts, arguments.only)
    reports = verify_run(model, data, dataset, layouts, config.engine_settings, arguments.steps)
    if jax.process_index():  # process 0 prints the reports, which are the same in all processes
        finished = list(reports)
        return 0 if all(report.ok for report in finished) else 1
    for name, reason in refused.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    return _print_reports(reports, len(layouts), arguments.json)


def _plan_files(arguments: VerifyArguments, config: "TrainConfig") -> "dict[str, pathlib.Path]":
    """The plan files to verify, by name."""
    from mmjax.training.config import find_plan_file

    return {name: find_plan_file(name) for name in arguments.plan or filter(None, [config.plan])}


def _named(layouts: "list[NamedLayout]", texts: tuple[str, ...]) -> "list[NamedLayout]":
    """The layouts whose names contain one of some texts; all without texts.

    Raises:
        UserError: None of them contains one.
    """
    for text in texts:
        if not any(text in layout.name for layout in layouts):
            raise UserError(
                f"--only={text}: none of the {len(layouts)} layouts has this in its name, such as {layouts[0].name!r}"
            )
    return [layout for layout in layouts if not texts or any(text in layout.name for text in texts)]


def _print_reports(reports: "Iterator[LayoutReport]", total: int, as_json: bool) -> int:
    """Prints the reports as they come, and how many of how many there are; returns the exit code."""
    from configs.common.console import plain_console
    from mmjax.training.metrics.activity import VERIFYING, display_activity, progress_console
    from mmjax.training.verification.comparison import tolerances_in_words
    from mmjax.training.verification.reports import print_report, print_verdict

    console = plain_console()
    if not as_json:
        console.print(f"{tolerances_in_words()}\n", highlight=False, soft_wrap=True)
    finished: list[LayoutReport] = []
    with display_activity(VERIFYING, progress_console(console, as_json)) as show:
        show(0, total)
        stopped = False
        try:
            for report in reports:
                finished.append(report)
                if not as_json:
                    print_report(report, console)
                show(len(finished), total)
        except KeyboardInterrupt:
            if not finished:
                raise
            stopped = True
    ok = all(report.ok for report in finished) and not stopped
    if as_json:
        layouts = [report.to_json() for report in finished]
        print(json.dumps({"ok": ok, "stopped": stopped, "layouts": layouts}))
    else:
        print_verdict(finished, console)
    if stopped:
        print(f"stopped: {len(finished)} of {total} layouts were compared", file=sys.stderr)
        return INTERRUPTED
    return 0 if ok else 1


COMMAND = cli.Command(
    name="mmjax.verify",
    summary="Checks that every layout computes what one device does.",
    examples=("--gin_file=tiny.gin", "--gin_file=tiny.gin --plan=my-plan.json", "--gin_file=tiny.gin --random=20"),
    arguments=VerifyArguments,
    prepare=prepare,
    distributed=True,
)
