"""Small random InternVLs under the names of transformers and of the authors: logits, export, configurations."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.common.errors import UserError
from mmjax.models.model import run_model
from mmjax.weights import registry
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published_checkpoint import as_model, open_checkpoint
from tests.mmjax.weights.published.encoders.small_internvits import (
    IMAGENET,
    KINDS,
    SMALL,
    of_authors,
    renamed,
    values_of_authors,
)
from tests.mmjax.weights.published.multimodal.vision_language_parity import (
    model_logits,
    ours,
    packed,
    prompts,
    published_logits,
)
from tests.mmjax.weights.published.parity import assert_close, export_parameters, randomise_weights, same_tensors

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IMAGE, SIDE, PLACES = 39, 16, 4
TEXT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "tie_word_embeddings": False,
}
DECODERS = {"6B": ("llama", transformers.LlamaConfig), "300M": ("qwen2", transformers.Qwen2Config)}
ASKED = prompts(SIDE, IMAGE, PLACES, ([5, 6, 7, 8, 9], [11, 12, 13]))
PROJECTOR = {"layer_norm": "0", "linear_1": "1", "linear_2": "3"}
INTERNLM2 = {
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "embed_tokens": "tok_embeddings",
    "lm_head": "output",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a function that gives a model of transformers with a kind of encoder, and the folder that it saved."""

    @functools.cache
    def save(kind):
        config = transformers.InternVLConfig(
            vision_config=transformers.InternVLVisionConfig(**SMALL, **KINDS[kind]),
            text_config=DECODERS[kind][1](**TEXT),
            image_token_id=IMAGE,
            tie_word_embeddings=False,
        )
        theirs = randomise_weights(transformers.InternVLForConditionalGeneration(config))
        folder = tmp_path_factory.mktemp("internvl") / "saved"
        theirs.save_pretrained(folder)
        return theirs, folder

    return save


def rewrite(folder, output, kind, decoder):
    """The folder's weights under the authors' names; `decoder`: `internlm2`, or as it is."""
    from safetensors.numpy import load_file, save_file

    parts = {"vision_tower.": {}, "multi_modal_projector.": {}, "language_model.": {}}
    for name, tensor in load_file(folder / "model.safetensors").items():
        before = next(before for before in parts if name.startswith(before))
        parts[before][name.removeprefix(before)] = tensor
    tower, projector, language = parts.values()
    language = as_internlm2(language) if decoder == "internlm2" else language
    written = {
        **{f"vision_model.{name}": tensor for name, tensor in of_authors(tower).items()},
        **{f"mlp1.{renamed(name, PROJECTOR)}": tensor for name, tensor in projector.items()},
        **{f"language_model.{name}": tensor for name, tensor in language.items()},
    }
    output.mkdir()
    save_file(written, output / "model.safetensors", metadata={"format": "pt"})
    values = {
        "model_type": "internvl_chat",
        "architectures": ["InternVLChatModel"],
        "ps_version": "v2",
        "vision_config": values_of_authors(kind),
        "llm_config": {"model_type": decoder, "rms_norm_eps": 1e-6, **TEXT},
    }
    (output / "config.json").write_text(json.dumps(values))
    return output


def as_internlm2(tensors):
    """Weights of a Llama under InternLM2's names, with fused queries, keys and values."""
    written = {renamed(name, INTERNLM2): tensor for name, tensor in tensors.items()}
    for name in sorted(name for name in written if "self_attn.q_proj" in name):
        parts = [written.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        groups = [part.reshape(TEXT["num_key_value_heads"], -1, part.shape[-1]) for part in parts]
        joined = np.concatenate(groups, axis=1).reshape(-1, parts[0].shape[-1])
        written[name.replace("self_attn.q_proj", "attention.wqkv")] = joined
    return written


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_loss_of_packed_prompts_match_those_of_each_alone(kind, saved):
    theirs, folder = saved(kind)
    model, modules, parameters = ours(folder)
    parameters, batch = jax.tree.map(jnp.asarray, parameters), packed(model, ASKED, IMAGE)
    expected = published_logits(theirs, ASKED, *IMAGENET)
    joined = np.concatenate(expected)
    assert_close(model_logits(modules, parameters, batch), joined)

    left = jax.jit(lambda parameters, batch: run_model(modules, parameters, batch))(parameters, batch)
    log = [logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)) for logits in expected]
    each = [-log[n][at - 1, of.tokens[at]] for n, of in enumerate(ASKED) for at in of.targets]
    np.testing.assert_allclose(left["backbone"].loss, np.mean(each), rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_export_after_import_is_bit_identical(kind, saved, tmp_path):
    theirs, folder = saved(kind)
    model, _, parameters = ours(folder)
    export_parameters(folder, model, "model", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    for found, expected in zip(
        published_logits(again, ASKED, *IMAGENET), published_logits(theirs, ASKED, *IMAGENET), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("kind", "decoder"), [("6B", "internlm2"), ("6B", "llama"), ("300M", "qwen2")])
def test_the_authors_names_give_the_same_model_and_are_written(kind, decoder, saved, tmp_path):
    _, folder = saved(kind)
    other = rewrite(folder, tmp_path / "authors", kind, decoder)
    model, _, parameters = ours(other)
    expected, _, same = ours(folder)
    assert model == expected
    np.testing.assert_equal(parameters, same)
    export_parameters(other, model, "model", parameters, tmp_path / "again")
    assert same_tensors(other, tmp_path / "again")


@pytest.mark.parametrize("model_type", ["internvl", "internvl_chat/llama", "internvl_chat/internlm2"])
def test_a_written_config_reads_back_equal(model_type, saved):
    model = open_checkpoint(saved("6B")[1]).config
    published = registry.find_architecture(model_type)
    values = json.loads(json.dumps(registry.write_architecture(published, model)))
    assert registry.read_architecture(values) == (published, model)
    assert values["model_type"] == model_type.partition("/")[0]


def test_transformers_loads_a_written_config(saved):
    theirs, folder = saved("300M")
    published = registry.find_architecture("internvl")
    values = registry.write_architecture(published, open_checkpoint(folder).config)
    named = type(theirs.config).from_dict(json.loads(json.dumps(values)))
    for key in ("downsample_ratio", "projector_hidden_act", "vision_feature_layer", "tie_word_embeddings"):
        assert getattr(named, key) == getattr(theirs.config, key)
    for part in ("vision_config", "text_config"):
        told = {key for key in values[part] if key not in ("architectures", "rope_theta")}
        for key in told:
            assert getattr(getattr(named, part), key) == getattr(getattr(theirs.config, part), key), key


@pytest.mark.parametrize("tied", [{"tie_word_embeddings": False}, {"tie_word_embeddings": True}, {}])
def test_the_whole_model_ties_the_head_as_in_transformers(tied, saved):
    """Whatever `text_config` says."""
    published = registry.find_architecture("internvl")
    values = registry.write_architecture(published, open_checkpoint(saved("300M")[1]).config)
    del values["tie_word_embeddings"]
    values["text_config"]["tie_word_embeddings"] = not tied.get("tie_word_embeddings", True)
    theirs = transformers.InternVLConfig.from_dict({**values, **tied})
    assert published.read_config({**values, **tied}).backbone.tie_embeddings == theirs.tie_word_embeddings


@pytest.mark.parametrize(
    ("model_type", "changed", "said"),
    [
        ("internvl", {"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy is 'full'"),
        ("internvl", {"vision_feature_layer": [-2, -1]}, "vision_feature_layer is"),
        ("internvl", {"text_config": {"model_type": "mistral"}}, "text_config is of type 'mistral'"),
        ("internvl", {"downsample_ratio": 0.7}, "downsample_ratio is 0.7"),
        ("internvl", {"projector_hidden_act": "tanh"}, "projector_hidden_act is 'tanh'"),
        ("internvl_chat/llama", {"ps_version": "v1"}, "ps_version is 'v1'"),
    ],
)
def test_unsupported_values_are_refused_by_key(model_type, changed, said, saved):
    published = registry.find_architecture(model_type)
    values = registry.write_architecture(published, open_checkpoint(saved("6B")[1]).config)
    with pytest.raises(ValueError, match=said):
        published.read_config({**values, **changed})


def test_models_with_other_modules_than_internvls_are_refused(saved):
    _, folder = saved("6B")
    model = open_checkpoint(folder).config
    (seen,) = model.encoders
    plain = dataclasses.replace(seen, projector=dataclasses.replace(seen.projector, norm=False))
    for other, said in (
        (
            dataclasses.replace(model, encoders=(plain,)),
            "projector.norm is False, but the published architecture has True",
        ),
        (dataclasses.replace(model, encoders=(dataclasses.replace(seen, merge=1),)), "downsample_ratio is 0.5 in"),
        (as_model(model.backbone), "its encoders are"),
    ):
        with pytest.raises(UserError, match=said):
            parameter_initializer(other, 0, (("model", str(folder)),))
