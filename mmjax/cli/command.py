"""Running a command: its flags, its devices, the processes of a run, its exit code."""

import dataclasses
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Generic

from configs.errors import UserError
from mmjax.cli.distributed import ensure_cpu_devices, initialize_distributed
from mmjax.cli.flags import Arguments, parse_flags
from sharding.runtime.compilation_cache import enable_compilation_cache

USAGE_ERROR = 2
"""Exit code after a `UserError`: a wrong flag, configuration or input."""

INTERRUPTED = 130
"""Exit code after ^C, as of a shell: 128 and the number of SIGINT."""

Work = Callable[[], int | None]
"""What a command does after its checks: returns the exit code, or None for 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Generic[Arguments]):
    """A command.

    Attributes:
        name: As in `python -m NAME`.
        summary: A sentence that says what the command does.
        examples: Flags of command lines that show its use.
        arguments: Dataclass whose fields are the command's flags (`mmjax.cli.flags`).
        prepare: Reads and checks what the user gave, and returns the work, which reads the flags no more.
        distributed: Whether the tasks that a launcher started are the processes of one run of jax; if not, each
            runs the command on its own.
    """

    name: str
    summary: str
    examples: tuple[str, ...]
    arguments: type[Arguments]
    prepare: Callable[[Arguments], Work]
    distributed: bool = True

    def parse(self, argv: Sequence[str]) -> Arguments:
        """The flags of a command line, without the program; raises UserError for one that is wrong."""
        return parse_flags(self.arguments, argv, f"python -m {self.name}", self.summary, self.examples)


def run(command: Command, argv: Sequence[str] | None = None) -> typing.NoReturn:
    """Prepares this process, runs a command and exits with the code it returns (0 for None).

    An error of the user is printed without a traceback, and the exit code is 2.

    Args:
        command: The command.
        argv: Its command line without the program; that of this process by default.
    """
    try:
        arguments = command.parse(sys.argv[1:] if argv is None else argv)
        ensure_cpu_devices()
        enable_compilation_cache()
        if command.distributed:
            initialize_distributed()
        code = command.prepare(arguments)()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USAGE_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code or 0)
