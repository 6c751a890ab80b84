"""The configuration of a training run, as the commands read it, and flags for the fields that most runs set.

`mmjax.commands.train` has these flags; other commands read the configuration of a run or of its workdir here.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING

from configs.common.errors import UserError
from mmjax.cli.flags import BindingArguments, GinArguments, flag
from mmjax.cli.gin_config import OPERATIVE_CONFIG, bind, configured, is_bound, parse_gin, parse_workdir
from mmjax.cli.values import integer, number

if TYPE_CHECKING:
    from mmjax.training.config import TrainConfig

QUICKSTART = "quickstart.gin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunArguments(GinArguments):
    """A training run: its configuration, and parameters that are set over it."""

    steps: int | None = flag(None, "Steps of the whole run (TrainConfig.steps).", metavar="N", parse=integer(1))
    batch_rows: int | None = flag(None, "Rows of a global batch (DataConfig.rows).", metavar="N", parse=integer(1))
    learning_rate: float | None = flag(
        None, "Peak learning rate (OptimizerConfig.learning_rate).", metavar="X", parse=number(0)
    )
    plan: str | None = flag(
        None, "Plan file, auto to measure and plan, or nothing for one device (TrainConfig.plan).", metavar="FILE"
    )
    seed: int | None = flag(
        None,
        "Seed of all randomness: initial values and noise (TrainConfig.seed), order of samples (DataConfig.seed).",
        metavar="N",
        parse=integer(0),
    )


PARAMETERS = {
    "steps": ("steps",),
    "batch_rows": ("data.rows",),
    "learning_rate": ("optimizer.learning_rate",),
    "plan": ("plan",),
    "seed": ("seed", "data.seed"),
}
"""The path of the field of `TrainConfig` that each flag of `RunArguments` sets."""


def training_config(arguments: GinArguments) -> "TrainConfig":
    """Returns the training run that a command line describes; without `--gin_file`, the quickstart.

    Raises:
        UserError: The files describe no training run, or a value is wrong.
    """
    files = arguments.gin_file or (QUICKSTART,)
    parse_gin(files, arguments.gin)
    if not is_bound("TrainConfig.dataset"):
        raise UserError(
            f"{', '.join(files)}: a training run needs TrainConfig.dataset, which is bound in llava.gin or "
            f"{QUICKSTART} for example; give such a file first: --gin_file=llava.gin --gin_file={files[-1]}"
        )
    return _configured_run(arguments)


def run_config(workdir: pathlib.Path, arguments: BindingArguments | None = None) -> "TrainConfig":
    """Returns the configuration of the run in a workdir; values of a command line, if there is one, override it.

    Raises:
        UserError: The folder is not the workdir of a run, or a binding is wrong.
    """
    arguments = arguments or BindingArguments()
    parse_workdir(workdir, arguments.gin)
    if not is_bound("TrainConfig.dataset"):
        raise UserError(
            f"{workdir / OPERATIVE_CONFIG} describes no training run: it is empty or not whole; give the run's "
            "configuration with --gin_file"
        )
    return _configured_run(arguments)


def _configured_run(arguments: BindingArguments) -> "TrainConfig":
    from mmjax.training.config import TrainConfig

    if isinstance(arguments, RunArguments):
        for name, paths in PARAMETERS.items():
            if getattr(arguments, name) is not None:
                for path in paths:
                    bind(TrainConfig, path, getattr(arguments, name))
    return configured(TrainConfig)
