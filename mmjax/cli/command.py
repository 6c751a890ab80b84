"""Running a command: its flags, its devices, the processes of a run, its exit code."""

import sys
import typing
from collections.abc import Callable, Sequence

from absl import app, flags

from configs.errors import UserError
from mmjax.cli.distributed import ensure_cpu_devices, initialize_distributed
from sharding.runtime.compilation_cache import enable_compilation_cache

USAGE_ERROR = 2
"""Exit code after a `UserError`: a wrong flag, configuration or input."""


def run(main: Callable[[], int | None], argv: Sequence[str] | None = None, distributed: bool = True) -> typing.NoReturn:
    """Prepares this process, runs a command and exits with the code it returns (0 for None).

    An error of the user is printed without a traceback, and the exit code is 2.

    Args:
        main: Reads its flags, parses gin, imports the library and does the work.
        argv: The program and its arguments; `sys.argv` by default.
        distributed: Whether the tasks that a launcher started are the processes of one run of jax; if not, each
            runs the command on its own.
    """
    try:
        parse_flags(sys.argv if argv is None else argv)
        ensure_cpu_devices()
        enable_compilation_cache()
        if distributed:
            initialize_distributed()
        code = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USAGE_ERROR
    sys.exit(code)


def parse_flags(argv: Sequence[str]) -> None:
    """Parses absl flags, after forgetting what an earlier call parsed.

    `--gin.NAME=VALUE` stands for one gin binding, `NAME = VALUE`.

    Raises:
        UserError: An unknown flag, a bad value, or an argument that is no flag.
    """
    arguments = []
    for argument in argv:
        name, equals, value = argument.partition("=")
        if name.startswith("--gin."):
            if not equals:
                raise UserError(f"{argument} has no value: write {argument}=VALUE")
            argument = f"--gin_bindings={name.removeprefix('--gin.')} = {value}"
        arguments.append(argument)
    app.define_help_flags()
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    try:
        rest = flags.FLAGS(arguments)[1:]
    except flags.Error as error:
        raise UserError(f"{error}. --help lists the flags") from error
    if rest:
        raise UserError(f"{rest[0]!r} is not a flag: flags are written --name=value. --help lists them")
