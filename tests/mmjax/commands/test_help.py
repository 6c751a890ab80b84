"""`--help` of every command, the list of commands, and the flags that set what everybody sets."""

import importlib
import pathlib
import pkgutil

import gin
import pytest

import configs
from mmjax import cli, commands
from mmjax.commands.train import TrainArguments
from tests.commands import run_without_jax

NAMES = [module.name for module in pkgutil.iter_modules(commands.__path__)]
TRAINING = [
    "tiny.gin",
    "tiny_dit.gin",
    "tiny_encoders.gin",
    "tiny_experts.gin",
    "tiny_features.gin",
    "quickstart.gin",
    "easy_vqa.gin",
    "llava.gin",
    "spoken_vqa.gin",
]
SCREEN = (40, 100)


def command(name: str) -> cli.Command:
    return importlib.import_module(f"mmjax.commands.{name}").COMMAND


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_a_screen_and_shows_every_flag(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        command(name).parse(["--help"])
    lines = capsys.readouterr().out.splitlines()
    flags = [line for line in lines if line.startswith("  --")]
    assert len(lines) <= SCREEN[0] and max(map(len, lines)) <= SCREEN[1]
    assert "examples:" in lines and f"  python -m mmjax.{name} --" in "\n".join(lines)
    own = {field.name for field in command(name).arguments.__dataclass_fields__.values()} - {"gin", "command"}
    assert {flag.split("=")[0].split()[0].removeprefix("--") for flag in flags} - {"gin.NAME", "help"} == own
    for example in command(name).examples:
        if "FOLDER" not in example and "prompt" not in example:
            text = example.replace("--page=", "--page=/tmp/").replace("--output=", "--output=/tmp/")
            command(name).parse(text.split())


@pytest.mark.processes
def test_commands_are_listed_without_jax():
    shown = run_without_jax("mmjax").stdout
    for name in NAMES:
        assert f"  {name} " in shown and command(name).summary in shown


@pytest.mark.processes
@pytest.mark.parametrize("name", NAMES)
def test_help_brings_no_jax_in(name):
    assert f"mmjax {name}" in run_without_jax("mmjax", name, "--help").stdout


@pytest.mark.parametrize("gin_file", TRAINING)
def test_what_everybody_sets_has_a_flag_on_every_configuration(gin_file, tmp_path):
    flags = ["--steps=123", "--batch_rows", "24", "--learning_rate=0.5", "--plan=x.json", "--seed=9", "--gin.STEPS=7"]
    config = cli.training_config(command("train").parse([f"--gin_file={gin_file}", *flags]))
    assert (config.steps, config.data.rows, config.optimizer.learning_rate) == (123, 24, 0.5)
    assert (config.plan, config.seed, config.data.seed) == ("x.json", 9, 9)
    cli.write_operative_config(str(tmp_path))
    again = cli.run_config(tmp_path, TrainArguments(seed=10))
    assert (again.steps, again.data.rows, again.optimizer) == (123, 24, config.optimizer)
    assert (again.seed, again.data.seed) == (10, 10)
    assert cli.training_config(cli.GinArguments(gin_file=(gin_file,), gin=("STEPS = 7",))).steps == 7
    gin.clear_config()


def test_flags_reach_scoped_and_unbound_parts_of_a_configuration(tmp_path):
    (tmp_path / "mine.gin").write_text(SCOPED)
    config = cli.training_config(
        TrainArguments(gin_file=(str(tmp_path / "mine.gin"),), batch_rows=24, learning_rate=0.5)
    )
    assert (config.data.rows, config.data.tokens, config.optimizer.learning_rate) == (24, 77, 0.5)
    gin.clear_config()


SCOPED = """
from __gin__ import dynamic_registration
from data import data_config
from data.datasets import easy_vqa
from mmjax.training import config
config.TrainConfig.dataset = @easy_vqa.EasyVQA
config.TrainConfig.data = @mine/data_config.DataConfig()
mine/data_config.DataConfig.rows = 2
mine/data_config.DataConfig.tokens = 77
"""


def test_packages_say_that_they_are_typed():
    home = pathlib.Path(configs.__file__).parents[1]
    for package in ("configs", "data", "mmjax", "pallas_kernels", "sharding"):
        assert (home / package / "py.typed").is_file()
