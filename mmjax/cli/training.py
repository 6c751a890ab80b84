"""The configuration of a training run, as the commands read it."""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from configs.errors import UserError
from mmjax.cli.flags import GinArguments
from mmjax.cli.gin_config import configured, is_bound, parse_gin, parse_workdir

if TYPE_CHECKING:
    from mmjax.training.config import TrainConfig

QUICKSTART = "quickstart.gin"


def training_config(arguments: GinArguments) -> "TrainConfig":
    """The training run that a command line describes; without `--gin_file`, the quickstart.

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
    return _configured_run()


def run_config(workdir: pathlib.Path, bindings: Sequence[str]) -> "TrainConfig":
    """The configuration of the run that a workdir is of, with bindings over it.

    Raises:
        UserError: The folder is not the workdir of a run, or a binding is wrong.
    """
    parse_workdir(workdir, bindings)
    return _configured_run()


def _configured_run() -> "TrainConfig":
    from mmjax.training.config import TrainConfig

    return configured(TrainConfig)
