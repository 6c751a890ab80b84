"""What `--help` prints, as it is read on a screen."""

import importlib
import pkgutil

import pytest

from mmjax import commands

LINES, COLUMNS = 40, 100


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(commands.__path__)])
def test_the_help_of_a_command_fits_a_screen(name, capsys):
    command = importlib.import_module(f"mmjax.commands.{name}").COMMAND
    with pytest.raises(SystemExit):
        command.parse(["--help"], f"python -m mmjax {name}")
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) <= LINES and max(map(len, shown)) <= COLUMNS
