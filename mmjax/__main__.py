"""`mmjax NAME` and `python -m mmjax NAME` run the command `python -m mmjax.NAME`; without a name they list them all."""

import importlib
import os
import pathlib
import pkgutil
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
    names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    name, *argv = sys.argv[1:] or ["--help"]
    if name == "--help":
        sys.exit(cli.exit_code(lambda: print(_overview(program, names))))
    if name not in names:
        proposal = cli.nearest(name, names) or f"; {program} --help lists the commands"
        print(f"error: there is no command {name}{proposal}", file=sys.stderr)
        sys.exit(cli.USAGE_ERROR)
    cli.run(_command(name), argv, f"{program} {name}")


def _command(name: str) -> "Command":
    return importlib.import_module(f"mmjax.commands.{name}").COMMAND


def _overview(program: str, names: list[str]) -> str:
    """The commands, a sentence each."""
    width = max(map(len, names)) + 2
    return "\n".join(
        [
            f"usage: {program} COMMAND [--name=value ...]",
            "\ncommands:",
            *(f"  {name:{width}}{_command(name).summary}" for name in names),
            f"\n{program} COMMAND --help describes the flags of a command.",
        ]
    )


if __name__ == "__main__":
    main()
