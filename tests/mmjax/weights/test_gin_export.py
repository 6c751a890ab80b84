"""Gin text of a configuration reads back as the same configuration."""

import dataclasses

import gin
import pytest

from configs.architectures import (
    AudioConfig,
    BackboneConfig,
    ExpertsConfig,
    LatentAttentionConfig,
    LoraConfig,
    ModelConfig,
    RouterConfig,
    UNetConfig,
    VisionConfig,
)
from configs.attention.attention_kinds import AttentionTemperature
from configs.attention.attention_windows import AttentionWindows
from configs.attention.rope import LongRopeScaling, YarnScaling
from configs.attention.vision_rope import VisionRope
from configs.modules.projectors import LinearProjectorConfig, MLPProjectorConfig
from mmjax import cli
from mmjax.training.config import TrainConfig
from mmjax.weights.gin_export import gin_text

BACKBONE = BackboneConfig(width=32, heads=4, kv_heads=2, tie_embeddings=True, rope_base=5e5)
MODELS = {
    "defaults": ModelConfig(),
    "several": ModelConfig(
        (VisionConfig(name="near", width=16), VisionConfig(name="far", depth=7), AudioConfig(mels=3)),
        BACKBONE,
        (),
        "bfloat16",
    ),
    "projectors of one kind": ModelConfig(
        (
            VisionConfig(
                depth=4,
                windows=AttentionWindows(4, full_layers=(1, 3)),
                projector=MLPProjectorConfig(hidden="positions"),
                deepstack_layers=(0,),
                deepstack_projector=MLPProjectorConfig(norm=True, norm_epsilon=1e-6),
            ),
            AudioConfig(pool=2, chunk=100, projector=MLPProjectorConfig(activation="gelu")),
            AudioConfig(name="other", pool=2, projector=LinearProjectorConfig()),
        ),
        dataclasses.replace(BACKBONE, depth=3),
        (),
    ),
    "rotary patches": ModelConfig(
        (VisionConfig(rope=VisionRope(100.0, coordinates="centred"), projector=LinearProjectorConfig(norm=True)),),
        BACKBONE,
        (),
    ),
    "experts": ModelConfig(
        (),
        dataclasses.replace(BACKBONE, experts=ExpertsConfig(router=RouterConfig(scores="sigmoid"), dense_layers=1)),
        (),
    ),
    "layers that attend in several ways": ModelConfig(
        (),
        dataclasses.replace(
            BACKBONE,
            attention_pattern=("chunked", "unrotated"),
            attention_chunk=64,
            attention_temperature=AttentionTemperature(positions=32),
            rope_scaling=LongRopeScaling(
                short_factors=(1.0,) * 4, long_factors=(1.0, 2.0, 4.0, 8.0), original_positions=64, factor=8.0
            ),
        ),
        (),
    ),
    "latent vectors": ModelConfig(
        (),
        dataclasses.replace(
            BACKBONE,
            kv_heads=4,
            latent_attention=LatentAttentionConfig(kv_rank=8, nope_width=4, rope_width=2, value_width=3),
            rope_scaling=YarnScaling(factor=4.0, original_positions=64, mscale=1.0, mscale_all_dim=1.0),
        ),
        (),
    ),
    "generator": ModelConfig((), BACKBONE, (UNetConfig(conditions=3),)),
}


@pytest.fixture
def read(tmp_path):
    def parsed(text):
        (tmp_path / "model.gin").write_text(text)
        cli.parse_gin((str(tmp_path / "model.gin"),))

    yield parsed
    gin.clear_config()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_gin_text_of_a_model_reads_back_equal(model, read):
    read(gin_text(model))
    assert cli.configured(ModelConfig) == model


def test_gin_text_of_a_module_reads_back_with_its_weights(read):
    read(gin_text(BACKBONE, (("backbone", "some/folder"),)))
    assert cli.configured(BackboneConfig) == BACKBONE
    assert gin.query_parameter("TrainConfig.pretrained_weights") == (("backbone", "some/folder"),)
    assert "pretrained_weights" in {field.name for field in dataclasses.fields(TrainConfig)}


def test_what_files_before_bind_of_the_architecture_is_overridden(read, tmp_path):
    """Pixels too, although no check of a checkpoint sees them."""
    (tmp_path / "other.gin").write_text(gin_text(dataclasses.replace(MODELS["defaults"], generators=())))
    cli.parse_gin(("quickstart.gin", str(tmp_path / "other.gin")))
    assert cli.configured(ModelConfig) == dataclasses.replace(ModelConfig(), generators=())


def test_settings_that_no_checkpoint_describes_are_those_of_files_before(read, tmp_path):
    settings = ModelConfig(
        (VisionConfig(projector=LinearProjectorConfig()),), BackboneConfig(), (), "bfloat16", (LoraConfig("backbone"),)
    )
    (tmp_path / "settings.gin").write_text(gin_text(settings))
    for number, of_checkpoint in enumerate((VisionConfig(), BACKBONE)):
        (tmp_path / f"{number}.gin").write_text(gin_text(of_checkpoint))
    cli.parse_gin(tuple(str(tmp_path / name) for name in ("settings.gin", "0.gin", "1.gin")))
    assert cli.configured(ModelConfig) == dataclasses.replace(settings, backbone=BACKBONE)
