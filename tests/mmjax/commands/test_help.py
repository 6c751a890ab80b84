"""What `--help` prints, as it is read on a screen."""

import importlib
import pkgutil
import shlex
import sys

import pytest

from mmjax import __main__, commands

LINES, COLUMNS = 40, 100
LIST_COLUMNS = 80


@pytest.mark.parametrize("name", commands.NAMES)
def test_the_help_of_a_command_fits_a_screen(name, capsys):
    command = importlib.import_module(f"mmjax.commands.{name}").COMMAND
    with pytest.raises(SystemExit):
        command.parse(["--help"], f"python -m mmjax {name}")
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) <= LINES and max(map(len, shown)) <= COLUMNS


def test_every_command_belongs_to_one_task():
    assert sorted(commands.NAMES) == sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_without_a_name_all_commands_are_listed_by_task_and_fit_a_terminal(arguments, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/__main__.py", *arguments])
    with pytest.raises(SystemExit) as left:
        __main__.main()
    shown = capsys.readouterr().out.splitlines()
    assert not left.value.code
    assert len(shown) <= LINES and max(map(len, shown)) <= LIST_COLUMNS
    listed = [line.split()[0] for line in shown if line.startswith("  ") and not line.startswith("  python")]
    assert tuple(listed) == commands.NAMES
    assert [line[:-1] for line in shown if line.endswith(":")] == [*commands.TASKS, "to begin with"]


@pytest.mark.parametrize("line", commands.FIRST_LINES)
def test_the_lines_to_begin_with_have_flags_that_their_commands_have(line):
    name, *flags = shlex.split(line)
    importlib.import_module(f"mmjax.commands.{name}").COMMAND.parse(flags)
