"""Flags of a command: the fields of a frozen dataclass, which argparse reads from the command line.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class PlanArguments(GinArguments):
        devices: int = flag(8, "Number of devices.", metavar="N", parse=integer(1))

`--devices=16` and `--devices 16` set the field `devices`; names are never abbreviated.
"""

import argparse
import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Any

from configs.common.errors import UserError
from configs.common.proposals import nearest

Arguments = typing.TypeVar("Arguments")
Value = typing.TypeVar("Value")

HELP_WIDTH = 100
BINDING = "gin.NAME"
"""Name of the flag `--gin.NAME=VALUE`, whose NAME is any parameter or macro."""

REST = "--"
"""Name of the arguments after `--` on a command line: the command line of another command."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Flag:
    """The flag of a field, which is kept in the field's metadata; `flag` lists its attributes."""

    help: str
    metavar: str
    parse: Callable[[str], Any]
    repeatable: bool
    name: str
    bare: Any


def flag(
    default: Value,
    help: str,
    *,
    metavar: str = "TEXT",
    parse: Callable[[str], Any] = str,
    repeatable: bool = False,
    name: str = "",
    bare: Any = None,
) -> Value:
    """A dataclass field that is set by a flag.

    Args:
        default: Value without the flag. A flag whose default is False takes no value, and sets True.
        help: Sentences for `--help`, which adds the default.
        metavar: Placeholder of the value in `--help`.
        parse: Makes the value of the text; raises UserError for a text that is none.
        repeatable: Whether the flag may be repeated; the field is then a tuple of all values.
        name: Name of the flag; by default the name of the field.
        bare: Value of the flag without a value, as in `--edits`; None where a value must follow.
    """
    entry = _Flag(help=help, metavar=metavar, parse=parse, repeatable=repeatable, name=name, bare=bare)
    return dataclasses.field(default=default, metadata={_Flag: entry})


@dataclasses.dataclass(frozen=True, kw_only=True)
class BindingArguments:
    """Flags that set single values of a configuration."""

    gin: tuple[str, ...] = flag(
        (),
        "Sets a parameter or a macro of the configuration; text is written in quotes. Repeatable.",
        metavar="VALUE",
        repeatable=True,
        name=BINDING,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GinArguments(BindingArguments):
    """Flags that name the files of a configuration, and set single values of it."""

    gin_file: tuple[str, ...] = flag(
        (),
        "Configuration file: a path, or the name of a file in the configs package. Repeatable; later files win.",
        metavar="FILE",
        repeatable=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonArguments:
    """The flag that chooses the form of the output."""

    json: bool = flag(False, "Prints one JSON document instead of tables.")


def parse_flags(
    arguments: type[Arguments], argv: Sequence[str], program: str = "", summary: str = "", examples: Sequence[str] = ()
) -> Arguments:
    """Parses a command line into the dataclass of its flags. `--help` prints the flags, and exits.

    Args:
        arguments: A dataclass whose fields are flags.
        argv: The command line without the program.
        program: The program, for `--help`.
        summary: A sentence that says what the program does.
        examples: Command lines without the program.

    Raises:
        UserError: An unknown flag, a bad value, or an argument that is no flag.
    """
    flags = _flags_of(arguments)
    rest_field = next((field for field, entry in flags.items() if entry.name == REST), None)
    follows = f" {REST} {flags.pop(rest_field).metavar}" if rest_field else ""
    argv, values_of_rest = _split_rest(argv, rest_field)
    parser = _FlagParser(
        prog=program,
        usage=f"%(prog)s [--name=value ...]{follows}",
        description=summary,
        epilog="\n".join(["examples:", *(f"  {program} {example}" for example in examples)]) if examples else None,
        formatter_class=_HelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    shown = parser.add_argument_group("flags")
    for field, entry in flags.items():
        _add(shown, field, entry)
    shown.add_argument("--help", action="help", help="Prints this text and exits.")
    if cut := [argument for argument in argv if argument == "--" or argument.endswith("=--")]:
        raise UserError(f"{cut[0]!r} is neither a flag nor a value")  # argparse drops such values
    takes_bindings = any(entry.name == BINDING for entry in flags.values())
    values, rest = parser.parse_known_args(_join_bindings(argv) if takes_bindings else argv)
    if rest:
        raise UserError(_unknown(rest[0], parser.options()))
    return arguments(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in vars(values).items()},
        **values_of_rest,
    )


def _split_rest(
    argv: Sequence[str], field: dataclasses.Field | None
) -> tuple[Sequence[str], dict[str, tuple[str, ...]]]:
    """Splits a command line into its flags and, by the field's name, what follows `--`, for commands that take it."""
    if field is None or REST not in argv:
        return argv, {}
    end = argv.index(REST)
    return argv[:end], {field.name: tuple(argv[end + 1 :])}


def _flags_of(arguments: type) -> "dict[dataclasses.Field, _Flag]":
    """Returns the flags of a dataclass: its own flags before the inherited ones."""
    fields = {field.name: field for field in dataclasses.fields(arguments)}
    names = dict.fromkeys(name for base in arguments.__mro__ for name in base.__dict__.get("__annotations__", {}))
    return {fields[name]: fields[name].metadata[_Flag] for name in names}


def _add(group: Any, field: dataclasses.Field, entry: _Flag) -> None:
    """Adds a flag to an argument group of argparse."""
    shown = field.default is not None and field.default is not False and field.default not in ("", ())
    default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    text = f"{entry.help} Default: {default}." if shown else entry.help
    option = f"--{entry.name or field.name}"
    described: dict[str, Any] = {"dest": field.name, "help": text.replace("%", "%%")}
    if field.default is False:
        group.add_argument(option, action="store_true", **described)
        return
    # Flags that are not given are not in the namespace: the dataclass has the defaults.
    described |= {"metavar": entry.metavar, "type": entry.parse, "default": argparse.SUPPRESS}
    if entry.bare is not None:
        described |= {"nargs": "?", "const": entry.bare}
    group.add_argument(option, action="append" if entry.repeatable else "store", **described)


def _join_bindings(argv: Sequence[str]) -> list[str]:
    """Rewrites `--gin.STEPS=3` and `--gin.STEPS 3` as values of one flag: `--gin.NAME=STEPS = 3`."""
    joined, rest = [], iter(argv)
    for argument in rest:
        if argument.startswith("--gin."):
            name, equals, value = argument.removeprefix("--gin.").partition("=")
            value = value if equals else next(rest, "")
            if not value or not equals and value.startswith("--"):
                raise UserError(f"--gin.{name} has no value: write --gin.{name}=VALUE")
            argument = f"--{BINDING}={name} = {value}"
        joined.append(argument)
    return joined


def _unknown(argument: str, known: Sequence[str]) -> str:
    """Returns the message for an argument that no flag takes."""
    if not argument.startswith("-"):
        return f"{argument!r} is not a flag: flags are written --name=value; --help lists them"
    name = argument.partition("=")[0]
    proposal = nearest(f"--{name.lstrip('-')}", known)
    return f"there is no flag {name}{proposal or '; --help lists the flags'}"


class _FlagParser(argparse.ArgumentParser):
    """A parser that raises UserError."""

    def options(self) -> list[str]:
        """All flags, as they are written."""
        return list(self._option_string_actions)

    def error(self, message: str) -> typing.NoReturn:
        """Raises UserError with the message that argparse would print with its usage."""
        raise UserError(message.removeprefix("argument "))


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help of `HELP_WIDTH` columns, in which flags are written as users write them: `--name=VALUE`."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=HELP_WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        option = ", ".join(action.option_strings)
        if action.nargs == "?":
            return f"{option}[={action.metavar}]"
        return option if action.nargs == 0 else f"{option}={action.metavar}"
