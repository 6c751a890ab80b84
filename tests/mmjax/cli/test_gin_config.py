"""Command lines as a user meets them: real processes, our own dataclasses configured, exit codes and messages."""

import os
import pathlib
import subprocess
import sys

import pytest

import mmjax

pytestmark = pytest.mark.processes

HOME = pathlib.Path(mmjax.__file__).resolve().parents[1]

PROBE = """
from mmjax import cli

def prepare(arguments):
    cli.parse_gin(arguments.gin_file or ("probe.gin",), arguments.gin)
    from configs.architectures import ModelConfig
    config = cli.configured(ModelConfig)

    def work():
        print(config.encoders[0].width, config.backbone.depth, config.dtype)
        cli.write_operative_config("run")

    return work

PROBE = cli.Command(name="probe", summary="", examples=(), arguments=cli.GinArguments, prepare=prepare)

if __name__ == "__main__":
    cli.run(PROBE)
"""

CONFIG = """from __gin__ import dynamic_registration
from configs import architectures

WIDTH = 64
architectures.VisionConfig.width = %WIDTH
architectures.ModelConfig.encoders = (@architectures.VisionConfig(),)
architectures.ModelConfig.dtype = "bfloat16"
"""


def python(folder: pathlib.Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs a Python process in `folder`, with our packages after that folder on the path."""
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(HOME), **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "probe.gin").write_text(CONFIG)
    return tmp_path


def refused(result: subprocess.CompletedProcess) -> str:
    """The message of a run that was refused as it should be: exit code 2, no traceback."""
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ") and "Traceback" not in result.stderr
    return result.stderr


def test_default_file_builds_the_dataclasses(folder):
    result = python(folder, "probe.py")
    assert result.stdout == "64 4 bfloat16\n", result.stderr


@pytest.mark.parametrize(
    ("override", "printed"),
    [
        ("--gin.WIDTH=32", "32 4 bfloat16\n"),
        ("--gin.VisionConfig.width=128", "128 4 bfloat16\n"),  # leaves the macro unused, which is no misspelling
        ("--gin.ModelConfig.dtype='float32'", "64 4 float32\n"),
    ],
)
def test_overrides(folder, override, printed):
    result = python(folder, "probe.py", override)
    assert result.stdout == printed, result.stderr


def test_a_file_elsewhere_includes_its_neighbour_and_overrides_it(folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "base.gin").write_text(CONFIG)
    (folder / "mine" / "deeper.gin").write_text("include 'base.gin'\nWIDTH = 16\n")
    result = python(folder, "probe.py", "--gin_file=mine/deeper.gin")
    assert (result.stdout, result.stderr) == ("16 4 bfloat16\n", "")


def test_the_operative_config_can_be_read_back(folder):
    assert python(folder, "probe.py", "--gin.WIDTH=32").returncode == 0
    text = (folder / "run" / "operative.gin").read_text()
    assert "WIDTH = 32" in text and "VisionConfig.depth = 2" in text
    assert [path.name for path in (folder / "run").iterdir()] == ["operative.gin"]
    assert (folder / "run" / "operative.gin").stat().st_mode & 0o777 == 0o600
    result = python(folder, "probe.py", "--gin_file=run/operative.gin")
    assert result.stdout == "32 4 bfloat16\n", result.stderr


@pytest.mark.parametrize(
    ("argument", "culprit"),
    [
        (
            "--gin.VisionConfig.widht=3",
            "--gin.VisionConfig.widht = 3: VisionConfig has no parameter widht; did you mean width?",
        ),
        ("--gin.VisionConfi.width=3", "has the name VisionConfi; did you mean VisionConfig?"),
        ("--gin.WIDHT=3", "nothing uses the macro WIDHT; did you mean WIDTH?"),
        ("--gin.ModelConfig.dtype=float32", "Values are Python literals: text is written in quotes"),
        ("--gin.VisionConfig.width=(", "is a bracket or a quote left open?"),
        ("--gin.WIDTH", "write --gin.WIDTH=VALUE"),
        ("--gin.WIDTH=30", "VisionConfig.heads = 4 does not divide width = 30"),
        ("--gin_file=nowhere.gin", "there is no gin file nowhere.gin, neither here"),
        ("--gin_fil=x", "there is no flag --gin_fil; did you mean --gin_file?"),
        ("stray", "'stray' is not a flag"),
    ],
)
def test_mistakes_of_a_command_line_are_named(folder, argument, culprit):
    assert culprit in refused(python(folder, "probe.py", argument))


@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        ("architectures.VisionConfig.widht = 3", "VisionConfig has no parameter widht; did you mean width?"),
        ("architectures.Vision.width = 3", "has no attribute Vision"),
        ("models.Vision.width = 3", "'models' was not provided by an import statement"),
        ("architectures.VisionConfig.width 3", "Couldn't parse statement"),
        ("include 'nowhere.gin'", "there is no file nowhere.gin to include"),
        ("import nowhere", "No module named 'nowhere' is in the current folder, /"),
    ],
)
def test_mistakes_of_a_file_are_named_with_their_line(folder, line, culprit):
    (folder / "wrong.gin").write_text(CONFIG + line + "\n")
    message = refused(python(folder, "probe.py", "--gin_file=wrong.gin"))
    assert culprit in message and "wrong.gin" in message and "line 8" in message


def test_a_value_that_has_to_be_given_is_named(folder):
    (folder / "open.gin").write_text(CONFIG.replace("%WIDTH", "%gin.REQUIRED").replace("WIDTH = 64\n", ""))
    assert "VisionConfig.width set to `%gin.REQUIRED`" in refused(python(folder, "probe.py", "--gin_file=open.gin"))


def test_a_misspelt_macro_of_a_file_is_refused(folder):
    (folder / "wrong.gin").write_text("include 'probe.gin'\nWIDHT = 3\n")
    message = refused(python(folder, "probe.py", "--gin_file=wrong.gin"))
    assert "nothing uses the macro WIDHT; did you mean WIDTH?" in message


@pytest.mark.parametrize("package", ["configs", "data", "pallas_kernels", "sharding"])
def test_a_package_of_the_user_that_shadows_ours_is_named(folder, package):
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text("")
    assert f"{folder.resolve() / package} shadows mmjax's own package '{package}'" in refused(
        python(folder, "probe.py")
    )


def test_a_module_of_the_user_that_shadows_ours_is_named(folder):
    (folder / "data.py").write_text("")
    assert f"{folder.resolve() / 'data.py'} shadows" in refused(python(folder, "probe.py"))


def entry_points() -> list[str]:
    sources = sorted((HOME / "mmjax").glob("*.py"))
    return [source.stem for source in sources if "cli.run(" in source.read_text() and source.stem != "cli"]


@pytest.mark.parametrize("entry_point", entry_points())
def test_every_entry_point_refuses_to_run_beside_another_data_package(tmp_path, entry_point):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("")
    assert f"{tmp_path.resolve() / 'data'} shadows" in refused(python(tmp_path, "-m", f"mmjax.{entry_point}"))


def test_a_second_configuration_forgets_the_first(folder):
    probe = """
from mmjax import cli
from configs.architectures import ModelConfig
for bindings in (["WIDTH = 8"], []):
    cli.parse_gin(["probe.gin"], bindings)
    print(cli.configured(ModelConfig).encoders[0].width)
"""
    result = python(folder, "-c", probe)
    assert (result.returncode, result.stdout.split()) == (0, ["8", "64"]), result.stderr
