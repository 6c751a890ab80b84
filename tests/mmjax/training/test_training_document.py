"""The configuration that docs/how_to/training.md shows."""

import ast
import pathlib
import re

from configs.optimizer import AdamW, OptimizerConfig, PartOptimizer
from mmjax import cli
from mmjax.training.config import TrainConfig
from mmjax.training.rescheduling.settings import Rescheduling
from tests.small_vqa import SmallVQA

DOCUMENT = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "how_to" / "training.md").read_text(encoding="utf-8")


def code_blocks(heading: str) -> list[str]:
    """The blocks of code of a section."""
    section = re.split(r"^#{2,3} ", DOCUMENT.partition(f"\n{heading}")[2], flags=re.MULTILINE)[0]
    return re.findall(r"```(?:gin|python)\n(.*?)```", section, re.DOTALL)


def value_of(program: str) -> object:
    """The value of the expression that a program ends with."""
    *statements, last = ast.parse(program).body
    assert isinstance(last, ast.Expr)
    names: dict[str, object] = {}
    exec(compile(ast.Module(statements, []), "<document>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<document>", "eval"), names)


def test_the_learning_rates_by_part_are_those_of_gin_and_of_python(tmp_path):
    gin_text, python_text = code_blocks("### Learning rates by part")
    (tmp_path / "llava_stage_2.gin").write_text(gin_text)
    cli.parse_gin((str(tmp_path / "llava_stage_2.gin"),))
    expected = value_of(python_text)
    assert isinstance(expected, OptimizerConfig) and cli.configured(TrainConfig).optimizer == expected
    assert expected.parts[1] == ("vision", PartOptimizer(learning_rate=2e-6))


def test_rescheduling_is_that_of_gin(tmp_path):
    (gin_text,) = code_blocks("## The order of ops")
    (tmp_path / "rescheduled.gin").write_text(gin_text)
    assert TrainConfig(dataset=SmallVQA).rescheduling is None
    cli.parse_gin((str(tmp_path / "rescheduled.gin"),))
    assert cli.configured(TrainConfig).rescheduling == Rescheduling(interval=200, tolerance=0.05)


def test_defaults_are_those_of_the_table():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", DOCUMENT.partition("Algorithms are")[0], re.MULTILINE)
    names = {"AdamW": AdamW, "CosineDecay": type(OptimizerConfig().schedule)}
    shown = {name: eval(default.strip("`"), names) for name, default in rows}
    assert shown == {name: getattr(OptimizerConfig(), name) for name in OptimizerConfig.__dataclass_fields__}
