"""Weights mean the same however a run trains: its loss and balancing loss are not compared with config.json."""

import dataclasses

import pytest

from configs.architectures import BackboneConfig, ModelConfig
from configs.training_choices import without_training_choices
from mmjax.models.modalities.losses import cross_entropy
from mmjax.weights.compatibility import IncompatibleCheckpointError, compatible_matches
from mmjax.weights.export import export_target_like, export_target_of_type
from mmjax.weights.published_checkpoint import as_model
from mmjax.weights.registry import find_architecture, read_architecture
from tests.mmjax.weights.published.small_checkpoints import DECODERS, TEXT
from tests.mmjax.weights.zero_checkpoint import write_zeros

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 12}
DEEPSEEK = {**TEXT, **EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2}
FAMILIES = {
    "mixtral": {**TEXT, "num_local_experts": 4, "router_aux_loss_coef": 0.02},
    "qwen2_moe": {**TEXT, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 12},
    "qwen3_moe": DECODERS["qwen3_moe"][1],
    "gpt_oss": {**TEXT, "head_dim": 8, "num_local_experts": 4, "router_aux_loss_coef": 0.9},
    "llama4_text": {**TEXT, "head_dim": 8, "num_local_experts": 4, "intermediate_size_mlp": 24},
    "glm4_moe": {**DEEPSEEK, "head_dim": 8, "topk_group": 1},
}
"""A config.json of each family with experts, as files are that say nothing of `output_router_logits`."""


def config_of(family: str, **others) -> BackboneConfig:
    return read_architecture({"model_type": family, **FAMILIES[family], **others})[1]


def write(path, family: str):
    return write_zeros(path, {"model_type": family, **FAMILIES[family]})


@pytest.mark.parametrize("family", FAMILIES)
def test_without_output_router_logits_there_is_no_balancing_loss_as_in_transformers(family):
    assert (
        config_of(family).experts.balance_weight == config_of(family, output_router_logits=False).experts.balance_weight
    )
    assert config_of(family).experts.balance_weight == 0


@pytest.mark.parametrize(
    ("family", "weight"), [("mixtral", 0.02), ("qwen2_moe", 0.001), ("qwen3_moe", 0.1), ("gpt_oss", 0.9)]
)
def test_with_output_router_logits_the_coefficient_counts(family, weight):
    config = config_of(family, output_router_logits=True)
    assert config.experts.balance_weight == weight
    architecture = find_architecture(family)
    assert architecture.read_config(architecture.write_config(config)) == config


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_chooses_its_loss_and_balancing_loss_and_exports_again(family, tmp_path):
    checkpoint = write(tmp_path / "theirs", family)
    config = checkpoint.config
    experts = dataclasses.replace(config.experts, balance_weight=0.25)
    model = as_model(dataclasses.replace(config, experts=experts, loss=cross_entropy))
    assert compatible_matches(checkpoint, model, "backbone")
    target = export_target_like(checkpoint, model, "backbone")
    assert target.config_json == checkpoint.config_json
    alone = export_target_of_type(family, model, "backbone", "float32")
    assert read_architecture(alone.config_json)[1].experts.balance_weight == 0.25


def test_what_changes_the_meaning_of_weights_is_still_compared(tmp_path):
    checkpoint = write(tmp_path / "theirs", "qwen3_moe")
    experts = dataclasses.replace(checkpoint.config.experts, top_k=1, balance_weight=0.25)
    with pytest.raises(IncompatibleCheckpointError, match="num_experts_per_tok is 2 in the .* and 1 in") as error:
        compatible_matches(checkpoint, as_model(dataclasses.replace(checkpoint.config, experts=experts)), "backbone")
    assert len(error.value.problems) == 1


def test_configurations_that_differ_in_how_they_train_alone_become_equal():
    config = as_model(config_of("mixtral"))
    backbone = dataclasses.replace(config.backbone, loss=cross_entropy)
    other = dataclasses.replace(config, backbone=backbone)
    assert config != other and without_training_choices(other) == without_training_choices(config)
    assert without_training_choices(ModelConfig()) == ModelConfig()
