"""Values of other types are refused, and a published backbone with tokens that cannot be its own is noticed."""

import dataclasses
import subprocess
import sys

import pytest

from configs.architectures import ModelConfig, VisionConfig
from configs.common.errors import UserError
from configs.optimizer import AdamW, OptimizerConfig
from data.data_config import DataConfig
from data.text.byte_tokenizer import ByteTokenizer
from data.text.word_tokenizer import WordTokenizer
from mmjax.training.config import TrainConfig, tokenizer_mismatches_backbone
from tests.small_vqa import SmallVQA
from tests.tiny_model import tiny_model

CONFIG = TrainConfig(dataset=SmallVQA, model=tiny_model(), data=DataConfig())


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), WordTokenizer(("a",))])
@pytest.mark.parametrize(("part", "foreign"), [("backbone", True), ("model", True), ("vision", False), ("", False)])
def test_a_tokenizer_that_cannot_be_the_backbones_is_noticed(part, foreign, tokenizer):
    weights = ((part, "folder"),) if part else ()
    assert tokenizer_mismatches_backbone(dataclasses.replace(CONFIG, pretrained_weights=weights), tokenizer) == foreign


# In a process of its own: in the tests' own, jaxtyping refuses the arguments of everything in mmjax before.
MAKING_RUNS = """
import numpy as np
from configs.common.errors import UserError
from configs.optimizer import OptimizerConfig
from mmjax.training.config import TrainConfig
from tests.small_vqa import SmallVQA
TrainConfig(dataset=SmallVQA, steps=np.int64(3), optimizer=OptimizerConfig(learning_rate=np.float32(1)))
for fields in ({"steps": "ten"}, {"steps": 2.5}, {"plan": None}, {"data": 8}, {"trainable": ["all"]}):
    try:
        TrainConfig(dataset=SmallVQA, **fields)
    except UserError as error:
        print(error)
"""


@pytest.mark.processes
def test_a_value_of_another_type_is_refused_in_one_line():
    done = subprocess.run([sys.executable, "-c", MAKING_RUNS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "TrainConfig.steps is 'ten'; it must be a whole number",
        "TrainConfig.steps is 2.5; it must be a whole number",
        "TrainConfig.plan is None; it must be text",
        "TrainConfig.data is 8; it must be data.data_config.DataConfig",
        "TrainConfig.trainable is ['all']; it must be tuple[str, ...], such as (a, b) or (a,)",
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataConfig(rows=True), "DataConfig.rows is True; it must be a whole number"),
        (lambda: OptimizerConfig(learning_rate="high"), "OptimizerConfig.learning_rate is 'high'; it must be a number"),
        (lambda: OptimizerConfig(algorithm=AdamW), "OptimizerConfig.algorithm is .*AdamW"),
        (lambda: AdamW(beta1="0.9"), "AdamW.beta1 is '0.9'; it must be a number"),
        (lambda: VisionConfig(width=16.5), "VisionConfig.width is 16.5; it must be a whole number"),
        (lambda: ModelConfig(encoders=[VisionConfig()]), r"ModelConfig.encoders is .*, such as \(a, b\) or \(a,\)"),
    ],
)
def test_so_are_those_of_the_records_that_a_run_has(make, message):
    with pytest.raises(UserError, match=f"^{message}") as caught:
        make()
    assert "\n" not in str(caught.value)
