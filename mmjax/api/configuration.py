"""`mmjax.load`: training configurations from gin files, for programs and notebooks."""

import dataclasses
import difflib
import functools
import os
from collections.abc import Callable
from typing import Any

import gin

from configs.common.errors import UserError
from data.datasets.dataset import Dataset
from mmjax import cli
from mmjax.training.config import TrainConfig
from sharding.runtime.compilation_cache import enable_compilation_cache


def load(gin_file: str | os.PathLike[str] = "quickstart.gin", *bindings: str, **fields: Any) -> TrainConfig:
    """Reads a training configuration from a gin file.

        mmjax.load("quickstart.gin", steps=60)
        mmjax.load("easy_vqa.gin", "OptimizerConfig.learning_rate = 1e-3", "STEPS = 100")

    Later calls do not change the result. Programs that are compiled afterwards are kept in the user's cache folder, as
    the programs of commands are (docs/reference/commands.md).

    Args:
        gin_file: A path, or the name of a file in the configs package.
        *bindings: Gin bindings that override the file's, as after `--gin.` on a command line.
        **fields: Fields of `TrainConfig` that override the file's.

    Raises:
        UserError: There is no such file, nothing has the name of a binding or a field, or a value is refused.
    """
    enable_compilation_cache()
    config = cli.training_config(cli.GinArguments(gin_file=(os.fspath(gin_file),), gin=bindings))
    return override(dataclasses.replace(config, dataset=_configured_dataset("TrainConfig.dataset")), **fields)


def override(config: TrainConfig, **fields: Any) -> TrainConfig:
    """A configuration with some fields replaced; raises UserError for a field that does not exist."""
    names = [field.name for field in dataclasses.fields(config)]
    for name in fields:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            raise UserError(f"TrainConfig has no field {name}" + (f"; did you mean {close[0]}?" if close else ""))
    return dataclasses.replace(config, **fields)


def _configured_dataset(parameter: str) -> Callable[[str], Dataset]:
    """Returns the class that a parameter refers to, with the values that are bound to the class's parameters now.

    gin itself looks the values up at every call.
    """
    reference = gin.query_parameter(parameter)
    return functools.partial(reference.configurable.wrapped, **gin.get_bindings(reference.scoped_selector))
