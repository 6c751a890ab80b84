"""Command-line code of all commands: flags, the order of start-up, gin configuration, errors without tracebacks.

A command imports this package first and everything else of mmjax inside its functions, so that nothing is imported
before the checks here have passed, and `--help` waits for nothing:

    from mmjax import cli

    def prepare(arguments: cli.GinArguments) -> cli.Work:
        config = cli.training_config(arguments)
        return lambda: print(config)

    COMMAND = cli.Command(
        name="mmjax.example",
        summary="Says in one sentence what it does.",
        examples=("--gin_file=easy_vqa.gin",),
        arguments=cli.GinArguments,
        prepare=prepare,
    )

    if __name__ == "__main__":
        cli.run(COMMAND)
"""

from mmjax.cli import import_guard

import_guard.refuse_shadowed_packages()  # before the imports below can take another package for one of ours

from configs.common.errors import UserError  # noqa: E402
from configs.common.proposals import nearest  # noqa: E402
from mmjax.cli.command import USAGE_ERROR, Command, Work, exit_code, run  # noqa: E402
from mmjax.cli.flags import BindingArguments, GinArguments, JsonArguments, flag  # noqa: E402
from mmjax.cli.gin_config import (  # noqa: E402
    CONFIGS,
    OPERATIVE_CONFIG,
    bound_value,
    configuration_file,
    configuration_text,
    configured,
    is_bound,
    is_packaged,
    parse_gin,
    write_operative_config,
)
from mmjax.cli.paths import output_file, output_folder  # noqa: E402
from mmjax.cli.training import QUICKSTART, RunArguments, run_config, training_config  # noqa: E402
from mmjax.cli.values import integer, list_of, number, one_of  # noqa: E402

__all__ = [
    "CONFIGS",
    "OPERATIVE_CONFIG",
    "QUICKSTART",
    "RunArguments",
    "USAGE_ERROR",
    "BindingArguments",
    "Command",
    "GinArguments",
    "JsonArguments",
    "UserError",
    "Work",
    "bound_value",
    "configuration_file",
    "configuration_text",
    "configured",
    "exit_code",
    "flag",
    "integer",
    "is_bound",
    "is_packaged",
    "list_of",
    "nearest",
    "number",
    "one_of",
    "output_file",
    "output_folder",
    "parse_gin",
    "run",
    "run_config",
    "training_config",
    "write_operative_config",
]
