"""A published backbone with tokens that cannot be its own is noticed."""

import dataclasses

import pytest

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
