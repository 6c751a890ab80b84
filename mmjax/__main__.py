"""The program `mmjax`: `mmjax NAME` runs the command `python -m mmjax.NAME`; without a name it lists all commands.

`python -m mmjax NAME` does the same. The commands are in `mmjax.commands`.
"""

import importlib
import os
import pathlib
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from mmjax.cli import Command


def main() -> NoReturn:
    """Runs the command that the first argument names."""
    if sys.path[0] != os.getcwd():
        sys.path.insert(0, os.getcwd())  # as `python -m` does, so that configurations find the user's own modules
    from mmjax import cli, commands

    script = pathlib.Path(sys.argv[0]).name
    program = "python -m mmjax" if script == "__main__.py" else script
    name, *argv = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        sys.exit(cli.exit_code(lambda: print(_overview(program))))
    if name not in commands.NAMES:
        proposal = cli.nearest(name, commands.NAMES) or f"; {program} --help lists the commands"
        print(f"error: there is no command {name}{proposal}", file=sys.stderr)
        sys.exit(cli.USAGE_ERROR)
    cli.run(_command(name), argv, f"{program} {name}")


def _command(name: str) -> "Command":
    return importlib.import_module(f"mmjax.commands.{name}").COMMAND


def _overview(program: str) -> str:
    """Returns the text that lists the commands by task, with a sentence about each, and command lines to begin with."""
    from mmjax import commands

    width = max(map(len, commands.NAMES)) + 2
    lines = [f"usage: {program} COMMAND [--name=value ...]"]
    for task, names in commands.TASKS.items():
        lines += [f"\n{task}:", *(f"  {name:{width}}{_command(name).summary}" for name in names)]
    lines += ["\nto begin with:", *(f"  {program} {line}" for line in commands.FIRST_LINES)]
    lines += [f"\n{program} COMMAND --help describes the flags of a command."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
