"""A published backbone with tokens that cannot be its own is noticed."""

import dataclasses

import pytest

from data.data_config import DataConfig
from data.tokenizer import WordTokenizer
from data.tokenizers.byte_level import ByteTokenizer
from mmjax.training.config import TrainConfig, foreign_tokens
from tests.small_vqa import SmallVQA
from tests.tiny import tiny_model

CONFIG = TrainConfig(SmallVQA, tiny_model(), DataConfig())


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), WordTokenizer(("a",))])
@pytest.mark.parametrize(("part", "foreign"), [("backbone", True), ("model", True), ("vision", False), ("", False)])
def test_tokens_of_another_model_are_noticed(part, foreign, tokenizer):
    weights = ((part, "folder"),) if part else ()
    assert foreign_tokens(dataclasses.replace(CONFIG, weights=weights), tokenizer) == foreign
