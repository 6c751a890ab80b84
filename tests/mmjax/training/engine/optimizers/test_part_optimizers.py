"""Which settings the parts of a model train with, what is refused, and the learning rates that a run reports."""

import pytest

from configs.architectures import LoraConfig, ModelConfig
from configs.common.errors import UserError
from configs.optimizer import ConstantRate, OptimizerConfig, PartOptimizer
from mmjax.models.model import model_modules
from mmjax.training.engine.optimizers.hyperparameters import make_hyperparameters
from mmjax.training.engine.optimizers.part_optimizers import make_part_optimizers
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.modules import module_graph
from tests.tiny_model import AUDIO, BACKBONE, GENERATOR, VISION

MODEL = ModelConfig((VISION, AUDIO), BACKBONE, (GENERATOR,), lora=(LoraConfig(part="backbone"),))
GRAPH = module_graph(MODEL)
LLAVA = OptimizerConfig(
    learning_rate=2e-5,
    warmup_steps=10,
    parts=(
        ("projectors", PartOptimizer(learning_rate=1e-3, schedule=ConstantRate())),
        ("vision", PartOptimizer(learning_rate=2e-6)),
        ("audio", PartOptimizer(weight_decay=0.0)),
        ("backbone_lora", PartOptimizer(warmup_steps=0)),
    ),
)


def optimizers(config, *trainable, steps=100):
    return make_part_optimizers(config, GRAPH, trained_parts(GRAPH, trainable or ("all",)), steps)


def test_parts_keep_what_they_do_not_set():
    parts = optimizers(LLAVA).by_part
    assert {
        part: (config.learning_rate, config.weight_decay, config.warmup_steps) for part, config in parts.items()
    } == {
        "vision": (2e-6, 0.01, 10),
        "vision_projector": (1e-3, 0.01, 10),
        "audio": (2e-5, 0.0, 10),
        "audio_projector": (1e-3, 0.01, 10),
        "backbone": (2e-5, 0.01, 10),
        "backbone_lora": (2e-5, 0.01, 0),
        "generator_projector": (1e-3, 0.01, 10),
        "generator": (2e-5, 0.01, 10),
    }
    assert parts["vision_projector"].schedule == ConstantRate() != parts["vision"].schedule


def test_every_piece_of_a_part_that_trains_has_its_hyperparameters():
    trained = optimizers(LLAVA, "projectors", "backbone_lora").hyperparameters(model_modules(MODEL)).by_piece
    assert set(trained) == {
        "vision/projector",
        "audio/projector",
        "generator/projector",
        "backbone/blocks_lora",
    }
    assert (
        trained["vision/projector"]
        == trained["audio/projector"]
        == make_hyperparameters(OptimizerConfig(learning_rate=1e-3, warmup_steps=10, schedule=ConstantRate()), 100)
    )
    assert trained["backbone/blocks_lora"] == make_hyperparameters(
        OptimizerConfig(learning_rate=2e-5, warmup_steps=0), 100
    )


def test_one_learning_rate_is_reported_for_each_that_differs():
    rates = optimizers(LLAVA).learning_rates(10)
    assert rates.keys() == {
        "learning_rate",
        "learning_rate/vision",
        "learning_rate/vision_projector",
        "learning_rate/audio_projector",
        "learning_rate/generator_projector",
        "learning_rate/backbone_lora",  # no warm-up, so another rate at other steps
    }
    assert [rates[name] for name in ("learning_rate", "learning_rate/vision")] == pytest.approx([2e-5, 2e-6])
    assert optimizers(LLAVA).learning_rates(55)["learning_rate/vision_projector"] == pytest.approx(1e-3)
    assert optimizers(OptimizerConfig(parts=(("vision", PartOptimizer(weight_decay=0.0)),))).learning_rates(
        0
    ).keys() == {"learning_rate"}


def test_settings_of_no_part_and_of_one_part_twice_are_refused():
    def settings(*names):
        return OptimizerConfig(parts=tuple((name, PartOptimizer(learning_rate=1e-3)) for name in names))

    with pytest.raises(UserError) as refused:
        optimizers(settings("visoin"))
    assert str(refused.value) == (
        "OptimizerConfig.parts names 'visoin'; did you mean vision? choose from all, projectors, vision, "
        "vision_projector, audio, audio_projector, backbone, backbone_lora, generator_projector, generator"
    )
    with pytest.raises(UserError, match="sets vision_projector twice"):
        optimizers(settings("projectors", "vision_projector"))
    with pytest.raises(UserError, match="trainable names 'backbon'; did you mean backbone"):
        trained_parts(GRAPH, ("backbon",))


def test_settings_of_a_frozen_part_are_warned_of(caplog):
    assert "vision" not in optimizers(LLAVA, "projectors", "backbone").by_part
    assert "settings for vision, which is frozen (TrainConfig.trainable)" in caplog.text
    assert "vision_projector" not in caplog.text
