"""Which model a checkpoint is of: fields that it does not know had their defaults, all else must agree."""

import dataclasses
import pathlib

import pytest

from configs.architectures import (
    BackboneConfig,
    ExpertsConfig,
    LoraConfig,
    ModelConfig,
    ScaledLinearSchedule,
    UNetConfig,
)
from configs.attention.rope import LinearScaling, Llama3Scaling
from configs.common.errors import UserError
from mmjax.models.modalities.losses import cross_entropy
from mmjax.training.checkpoints.model_identity import check_same_model, model_identity
from tests.tiny_model import LATENT_GENERATOR, tiny_model

PATH = pathlib.Path("checkpoints/3")


def without(stored, *path: str):
    (key, *rest) = path
    items = dict(enumerate(stored)) if isinstance(stored, list) else dict(stored)
    key = int(key) if isinstance(stored, list) else key
    items[key] = without(items[key], *rest) if rest else items.pop(key)
    if not rest:
        del items[key]
    return list(items.values()) if isinstance(stored, list) else items


@pytest.mark.parametrize("config", [tiny_model(), ModelConfig(generators=(LATENT_GENERATOR,), lora=(LoraConfig(),))])
def test_a_model_equals_itself_with_and_without_fields_that_came_later(config):
    stored = model_identity(config)
    check_same_model(PATH, stored, config)
    older = without(without(stored, "encoders", "0", "class_token"), "backbone", "qk_norm")
    check_same_model(PATH, older, config)
    changed = dataclasses.replace(config, backbone=dataclasses.replace(config.backbone, qk_norm="head"))
    with pytest.raises(UserError, match="backbone.qk_norm is 'none' there, 'head' here; use the configuration"):
        check_same_model(PATH, older, changed)


def test_differing_fields_are_named():
    with pytest.raises(UserError, match="backbone.ffn is 24 there, 32 here"):
        check_same_model(PATH, model_identity(tiny_model()), tiny_model(ffn=32))
    plain = dataclasses.replace(tiny_model(), generators=())
    with pytest.raises(UserError, match="generators.0.kind is 'UNetConfig' there, None here"):
        check_same_model(PATH, model_identity(tiny_model()), plain)
    with pytest.raises(UserError, match="lora.0.rank is 8 there, None here|lora is"):
        check_same_model(PATH, model_identity(dataclasses.replace(tiny_model(), lora=(LoraConfig(),))), tiny_model())


def without_kinds(stored):
    """As versions wrote it that did not tell the classes of configurations."""
    if isinstance(stored, list):
        return [without_kinds(item) for item in stored]
    return {k: without_kinds(v) for k, v in stored.items() if k != "kind"} if isinstance(stored, dict) else stored


LINEAR, LLAMA3 = (
    ModelConfig(backbone=BackboneConfig(rope_scaling=scaling(4.0))) for scaling in (LinearScaling, Llama3Scaling)
)
EXPERTS = ModelConfig(backbone=BackboneConfig(experts=ExpertsConfig()))
SCALED = ModelConfig(generators=(UNetConfig(schedule=ScaledLinearSchedule()),))


@pytest.mark.parametrize("config", [ModelConfig(), LLAMA3, EXPERTS, SCALED])
def test_checkpoints_without_kinds_are_accepted(config):
    check_same_model(PATH, without_kinds(model_identity(config)), config)


@pytest.mark.parametrize(
    ("stored", "config", "named"),
    [
        (model_identity(LINEAR), LLAMA3, "rope_scaling.kind is 'LinearScaling' there, 'Llama3Scaling' here"),
        (model_identity(ModelConfig()), SCALED, "schedule.kind is 'CosineSchedule' there"),
        (without_kinds(model_identity(ModelConfig())), SCALED, "schedule.timesteps is None there, 1000 here"),
        (model_identity(ModelConfig()), EXPERTS, "backbone.experts.count is None there, 8 here"),
        (
            without(model_identity(ModelConfig()), "lora"),
            ModelConfig(lora=(LoraConfig(),)),
            "lora.0.rank is None there",
        ),
    ],
)
def test_defaults_are_not_assumed_for_parts_that_were_absent(stored, config, named):
    with pytest.raises(UserError, match=named):
        check_same_model(PATH, stored, config)


@dataclasses.dataclass(frozen=True)
class Halved:
    """A loss function with a field."""

    factor: float = 0.5

    def __call__(self, predictions):
        return -self.factor * predictions.log_likelihood


def test_another_loss_is_the_same_model_and_is_reported(caplog):
    stored = model_identity(tiny_model(loss=Halved()))
    assert stored["backbone"]["loss"] == "Halved(factor=0.5)"
    check_same_model(PATH, stored, tiny_model(loss=Halved()))
    assert caplog.messages == []
    check_same_model(PATH, without(model_identity(tiny_model()), "backbone", "loss"), tiny_model(loss=cross_entropy))
    check_same_model(PATH, stored, tiny_model(loss=Halved(0.25)))
    assert caplog.messages == [
        f"{PATH} was trained otherwise: backbone.loss is {there} there, {here} here"
        for there, here in (("None", "'cross_entropy'"), ("'Halved(factor=0.5)'", "'Halved(factor=0.25)'"))
    ]
    with pytest.raises(UserError, match="checkpoint of another model: backbone.ffn is 24 there, 32 here; use"):
        check_same_model(PATH, stored, tiny_model(ffn=32))


def test_how_a_model_trains_is_no_other_model_and_is_reported(caplog):
    experts = ExpertsConfig(count=4, top_k=2, ffn=8)
    config = tiny_model(experts=experts)
    other = tiny_model(experts=dataclasses.replace(experts, balance_weight=0.0))
    (generator,) = other.generators
    other = dataclasses.replace(
        other, generators=(dataclasses.replace(generator, condition_dropout=0.5),), dtype="bfloat16"
    )
    check_same_model(PATH, model_identity(config), other)
    (said,) = caplog.messages
    assert "trained otherwise: backbone.experts.balance_weight is 0.01 there, 0.0 here" in said
    assert "condition_dropout is 0.0 there, 0.5 here" in said and "dtype is 'float32' there, 'bfloat16' here" in said
