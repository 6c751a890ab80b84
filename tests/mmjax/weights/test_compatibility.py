"""Incompatible checkpoints: all problems are listed, with tensor and parameter, before any tensor is read."""

import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest

import mmjax
from configs.architectures import ModelConfig, VisionConfig
from configs.common.errors import UserError
from mmjax.weights import registry
from mmjax.weights.compatibility import IncompatibleCheckpointError, compatible_matches
from mmjax.weights.folder import write_checkpoint_folder
from mmjax.weights.published_checkpoint import open_checkpoint
from mmjax.weights.safetensors_file import TensorHeader
from tests.mmjax.weights.llama_checkpoint import BACKBONE, model, random_tensors, write_llama

HOME = pathlib.Path(mmjax.__file__).resolve().parents[1]


def refused(path, ours: ModelConfig | None = None, part: str = "backbone") -> str:
    """The message, which is one line, and all problems."""
    with pytest.raises(IncompatibleCheckpointError) as found:
        compatible_matches(open_checkpoint(path), ours or model(), part)
    assert "\n" not in str(found.value)
    return "\n".join([str(found.value), *found.value.problems])


def test_a_compatible_checkpoint_is_matched(tmp_path):
    tensors = random_tensors()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(2, np.float32)  # as in old files
    matches = compatible_matches(open_checkpoint(write_llama(tmp_path / "l", tensors)), model(), "backbone")
    assert sum(len(of.tensor_names) for of in matches) == len(tensors) - 1


def test_all_problems_are_listed_with_tensor_and_parameter(tmp_path):
    tensors = random_tensors()
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.mlp.bias"] = np.zeros(3, np.float32)
    tensors["model.layers.0.self_attn.k_proj.weight"] = np.zeros((4, 16), np.float32)
    tensors["lm_head.weight"] = np.zeros((24, 16), np.int8)
    said = refused(write_llama(tmp_path / "l", tensors))
    for line in (
        "missing: model.norm.weight, which is backbone/head/000/norm/scale",
        "missing: model.layers.1.mlp.up_proj.weight, which is backbone/blocks/001/mlp/up/kernel",
        "extra: model.layers.0.mlp.bias",
        "shape: model.layers.0.self_attn.k_proj.weight is [4, 16], and backbone/blocks/000/attention/key/kernel needs "
        "[8, 16]",
        "dtype: lm_head.weight, which is backbone/head/000/embedding, is I8",
        "4 more are listed by python -m mmjax.convert --folder=",
    ):
        assert line in said


def test_differing_architectures_are_described_by_config_json_keys(tmp_path):
    path = write_llama(tmp_path / "l", random_tensors())
    said = refused(path, model(dataclasses.replace(BACKBONE, rope_base=5e5, norm_epsilon=1e-6)))
    assert "rope_theta is 10000.0 in the checkpoint and 500000.0 in the model" in said
    assert "rms_norm_eps is 1e-05 in the checkpoint and 1e-06 in the model" in said


def test_a_duplicate_of_a_tied_head_is_accepted(tmp_path):
    tied = dataclasses.replace(BACKBONE, tie_embeddings=True)
    tensors = random_tensors(tied)
    again = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    for name, held in (("without", tensors), ("with", again)):
        assert compatible_matches(open_checkpoint(write_llama(tmp_path / name, held, tied)), model(tied), "backbone")


def test_a_head_that_differs_from_the_embedding_to_which_it_is_tied_is_refused(tmp_path):
    tied = dataclasses.replace(BACKBONE, tie_embeddings=True)
    tensors = random_tensors(tied)
    head = tensors["model.embed_tokens.weight"].copy()
    head[-1, -1] += 1
    said = refused(write_llama(tmp_path / "l", {**tensors, "lm_head.weight": head}, tied), model(tied))
    assert "lm_head.weight differs from model.embed_tokens.weight" in said and "tie_word_embeddings" in said


def test_parts_without_weights_in_the_checkpoint_are_refused(tmp_path):
    path = write_llama(tmp_path / "l", random_tensors())
    ours = ModelConfig((VisionConfig(),), BACKBONE, ())
    assert "name the module" in refused(path, ours, "model")
    assert "it holds a BackboneConfig, and vision is a VisionConfig" in refused(path, ours, "vision")
    with pytest.raises(UserError, match="no part 'bakbone'; choose one of model, vision, vision_projector, backbone"):
        compatible_matches(open_checkpoint(path), ours, "bakbone")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"model_type": "gemma3n"},
            "of its family gemma, gemma2, gemma3, gemma3_text are, and",
        ),
        (
            {"model_type": "vit_mae"},
            "'vit_mae' is not known; of its family vit is, and docs/how_to/weights.md lists all",
        ),
        ({"model_type": None}, "names no architecture"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\)"),
        ({"vocab_size": None, "hidden_act": "tanh"}, "hidden_act is 'tanh'"),
    ],
)
def test_unsupported_config_json_is_refused(tmp_path, values, said):
    path = write_llama(tmp_path / "l", random_tensors(), **values)
    with pytest.raises(UserError, match=said):
        open_checkpoint(path)


def test_a_missing_key_of_config_json_is_named():
    with pytest.raises(UserError, match=r"config\.json of llama has no key 'num_attention_heads'"):
        registry.read_architecture({"model_type": "llama"})


def test_model_types_of_architectures_are_unique():
    types = [of for published in registry.all_architectures() for of in published.model_types]
    assert sorted(types) == sorted(set(types)) and "llama" in types


def test_pixel_normalisation_is_read_from_preprocessor_config_json(tmp_path):
    values = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 1}
    write_checkpoint_folder(
        tmp_path / "tower",
        "model",
        {"x": TensorHeader("F32", (1,))},
        iter([("x", np.zeros(1, np.float32))]),
        10**6,
        {
            "config.json": json.dumps({"model_type": "siglip_vision_model", **values}),
            "preprocessor_config.json": json.dumps({"image_mean": [0.25, 0.5, 0.75], "image_std": [0.5, 0.25, 1.0]}),
        },
    )
    config = open_checkpoint(tmp_path / "tower").config
    assert (config.pixel_mean, config.pixel_std) == ((-0.5, 0.0, 0.5), (1.0, 0.5, 2.0))


@pytest.mark.parametrize("model_type", ["apertus", "vjepa2", "lama", "moshi", "2b", "x" * 10_000, "Qwen\x1b[31m"])
def test_an_architecture_of_no_known_family_is_not_mistaken_for_another(model_type):
    with pytest.raises(UserError) as refused:
        registry.find_architecture(model_type)
    said = str(refused.value)
    known = {name for architecture in registry.all_architectures() for name in architecture.model_types}
    assert (
        len(said) < 500
        and "\x1b" not in said
        and f"docs/how_to/weights.md lists all {len(known)} that are known" in said
    )
    if not model_type.startswith("Qwen"):
        assert "family" not in said and not any(name in said.partition("; ")[2] for name in known)


def test_the_documentation_lists_all_architectures():
    listed = re.findall(r"`([^`]*)`", (HOME / "docs" / "how_to" / "weights.md").read_text())
    names = {name for architecture in registry.all_architectures() for name in architecture.model_types}
    assert sorted(name for name in names if name.partition("/")[0] not in listed) == []
