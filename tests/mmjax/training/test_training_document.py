"""The configuration that docs/training.md shows."""

import pathlib
import re

from configs.optimizer import AdamW, OptimizerConfig, PartOptimizer
from mmjax import cli
from mmjax.training.config import TrainConfig

DOCUMENT = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "training.md").read_text(encoding="utf-8")


def test_the_learning_rates_by_part_are_those_of_gin_and_of_python(tmp_path):
    (gin_text,) = re.findall(r"```\n(.*?)```", DOCUMENT, re.DOTALL)
    (tmp_path / "llava_stage_2.gin").write_text(gin_text)
    cli.parse_gin((str(tmp_path / "llava_stage_2.gin"),))
    (python_text,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    expected = eval(python_text, {"OptimizerConfig": OptimizerConfig, "PartOptimizer": PartOptimizer})
    assert cli.configured(TrainConfig).optimizer == expected
    assert expected.parts[1] == ("vision", PartOptimizer(learning_rate=2e-6))


def test_defaults_are_those_of_the_table():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", DOCUMENT.partition("Algorithms are")[0], re.MULTILINE)
    names = {"AdamW": AdamW, "CosineDecay": type(OptimizerConfig().schedule)}
    shown = {name: eval(default.strip("`"), names) for name, default in rows}
    assert shown == {name: getattr(OptimizerConfig(), name) for name in OptimizerConfig.__dataclass_fields__}
