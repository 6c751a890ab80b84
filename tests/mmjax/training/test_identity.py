"""Which model a checkpoint is of: fields that it does not know had their defaults, all else must agree."""

import dataclasses
import pathlib

import pytest

from configs.architectures import LoraConfig, ModelConfig
from configs.errors import UserError
from mmjax.training.identity import identity, refuse_another_model
from tests.tiny import PAINTER, tiny_model

PATH = pathlib.Path("checkpoints/3")


def without(stored, *path: str):
    (key, *rest) = path
    items = dict(enumerate(stored)) if isinstance(stored, list) else dict(stored)
    key = int(key) if isinstance(stored, list) else key
    items[key] = without(items[key], *rest) if rest else items.pop(key)
    if not rest:
        del items[key]
    return list(items.values()) if isinstance(stored, list) else items


@pytest.mark.parametrize("config", [tiny_model(), ModelConfig(generators=(PAINTER,), lora=(LoraConfig(),))])
def test_a_model_is_itself_by_itself_and_without_fields_that_came_later(config):
    stored = identity(config)
    refuse_another_model(PATH, stored, config)
    older = without(without(stored, "encoders", "0", "class_token"), "backbone", "qk_norm")
    refuse_another_model(PATH, older, config)
    changed = dataclasses.replace(config, backbone=dataclasses.replace(config.backbone, qk_norm="head"))
    with pytest.raises(UserError, match="backbone.qk_norm is 'none' there, 'head' here; use the configuration"):
        refuse_another_model(PATH, older, changed)


def test_what_differs_is_named():
    with pytest.raises(UserError, match="backbone.ffn is 24 there, 32 here"):
        refuse_another_model(PATH, identity(tiny_model()), tiny_model(ffn=32))
    plain = dataclasses.replace(tiny_model(), generators=())
    with pytest.raises(UserError, match="generators.0.widths is .* there, None here"):
        refuse_another_model(PATH, identity(tiny_model()), plain)
    with pytest.raises(UserError, match="lora.0.rank is 8 there, None here|lora is"):
        refuse_another_model(PATH, identity(dataclasses.replace(tiny_model(), lora=(LoraConfig(),))), tiny_model())
