"""Small random LLaVAs of transformers: logits of prompts with images, export after import, configurations."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.common.errors import UserError
from mmjax.models.model import model_modules, run_model
from mmjax.weights import registry
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published_checkpoint import as_model, open_checkpoint
from tests.mmjax.weights.published.multimodal.vision_language_parity import (
    model_logits,
    ours,
    packed,
    prompts,
    published_logits,
)
from tests.mmjax.weights.published.parity import export_parameters, import_parameters, randomise_weights, same_tensors

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IMAGE, VOCABULARY, SIDE, TOKENS = 39, 40, 16, 16
VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 36,
    "image_size": SIDE,
    "patch_size": 4,
}
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
}
CLASSES = {
    "llava": ("LlavaConfig", "LlavaForConditionalGeneration"),
    "llava_next": ("LlavaNextConfig", "LlavaNextForConditionalGeneration"),
}
ASKED = prompts(SIDE, IMAGE, TOKENS, ([5, 6, 7, 8, 9], [11, 12, 13]))
PIXELS = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a function that gives a model of transformers, and the folder that it saved."""

    @functools.cache
    def save(kind):
        config, model = (getattr(transformers, name) for name in CLASSES[kind])
        text, seen = transformers.LlamaConfig(**TEXT), transformers.CLIPVisionConfig(**VISION)
        theirs = randomise_weights(model(config(vision_config=seen, text_config=text, image_token_index=IMAGE)))
        folder = tmp_path_factory.mktemp("llava") / "saved"
        theirs.save_pretrained(folder)
        return theirs, folder

    return save


def test_logits_and_loss_of_packed_prompts_match_those_of_each_alone(saved):
    theirs, folder = saved("llava")
    model, modules, parameters = ours(folder)
    parameters, batch = jax.tree.map(jnp.asarray, parameters), packed(model, ASKED, IMAGE)
    expected = published_logits(theirs, ASKED, *PIXELS)
    found = model_logits(modules, parameters, batch)
    assert np.std(expected[0]) > 0.1
    joined = np.concatenate(expected)
    np.testing.assert_allclose(found, joined, atol=1e-4 * np.abs(joined).max())

    left = jax.jit(lambda parameters, batch: run_model(modules, parameters, batch))(parameters, batch)
    log = [logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)) for logits in expected]
    each = [-log[n][at - 1, of.tokens[at]] for n, of in enumerate(ASKED) for at in of.targets]
    np.testing.assert_allclose(left["backbone"].loss, np.mean(each), rtol=1e-4)


@pytest.mark.parametrize("kind", CLASSES)
def test_export_after_import_is_bit_identical(kind, saved, tmp_path):
    theirs, folder = saved(kind)
    model, _, parameters = ours(folder)
    export_parameters(folder, model, "model", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    for name, tensor in theirs.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name].numpy(), tensor.numpy())
    if kind == "llava":
        found, expected = (published_logits(each, ASKED, *PIXELS) for each in (again, theirs))
        for logits, same in zip(found, expected, strict=True):
            np.testing.assert_array_equal(logits, same)


NAMES = {
    "before transformers 4.52": {"vision_tower.": "vision_tower.vision_model."},
    "within a program": {
        "language_model.lm_head.": "lm_head.",
        "language_model.model.": "model.language_model.",
        "vision_tower.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    },
}


@pytest.mark.parametrize("which", NAMES)
def test_aliased_tensor_names_are_read_and_written(which, saved, tmp_path):
    from safetensors.numpy import load_file, save_file

    _, folder = saved("llava")
    renamed = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        before = next((before for before in NAMES[which] if name.startswith(before)), "")
        renamed[NAMES[which].get(before, "") + name.removeprefix(before)] = tensor
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text((folder / "config.json").read_text())
    save_file(renamed, other / "model.safetensors", metadata={"format": "pt"})
    model, _, parameters = ours(other)
    jax.tree.map(np.testing.assert_array_equal, parameters, ours(folder)[2])
    export_parameters(other, model, "model", parameters, tmp_path / "again")
    assert same_tensors(other, tmp_path / "again")


def test_single_parts_are_imported(saved):
    """Tower and projector are imported into a model with another backbone."""
    _, folder = saved("llava")
    model, (encoder, _), parameters = ours(folder)
    other = dataclasses.replace(model, backbone=dataclasses.replace(model.backbone, name="decoder", depth=1))
    modules = model_modules(other)
    for part, piece in (("vision", "blocks"), ("vision_projector", "projector")):
        found = import_parameters(folder, other, part, modules[:1])["vision"][piece]
        jax.tree.map(np.testing.assert_array_equal, found, parameters["vision"][piece])


def test_a_written_config_reads_back_equal_and_transformers_loads_it(saved, tmp_path):
    theirs, folder = saved("llava")
    model, _, parameters = ours(folder)
    published = open_checkpoint(folder).architecture
    values = json.loads(json.dumps(registry.write_architecture(published, model)))
    assert published.read_config(values) == model
    export_parameters(folder, model, "model", parameters, tmp_path / "again")
    (tmp_path / "again" / "config.json").write_text(json.dumps({**values, "image_token_index": IMAGE}))
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    for found, expected in zip(
        published_logits(again, ASKED, *PIXELS), published_logits(theirs, ASKED, *PIXELS), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_values_missing_from_llava_files_are_those_of_the_7b_model():
    """LLaVA-1.5's config.json says this much of its decoder, and the tower's sizes."""
    text = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064}
    model = registry.find_architecture("llava").read_config(
        {"text_config": text, "vision_config": {"projection_dim": 768}}
    )
    (seen,), backbone = model.encoders, model.backbone
    assert (backbone.width, backbone.depth, backbone.ffn, backbone.vocabulary) == (4096, 32, 11008, 32064)
    assert (seen.width, seen.depth, seen.unused_blocks, seen.grid, seen.activation) == (1024, 23, 1, 24, "quick_gelu")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy is 'full'"),
        ({"vision_feature_layer": [-2, -1]}, "vision_feature_layer is"),
        ({"text_config": {"model_type": "gemma2"}}, "text_config is of type 'gemma2'"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "vision_config is of type"),
    ],
)
def test_unsupported_values_are_refused_by_key(changed, said):
    with pytest.raises(ValueError, match=said):
        registry.find_architecture("llava").read_config(changed)


def test_models_with_other_modules_than_llavas_are_refused(saved):
    _, folder = saved("llava")
    model = open_checkpoint(folder).config
    (seen,) = model.encoders
    for other, said in (
        (dataclasses.replace(model, encoders=(dataclasses.replace(seen, merge=2),)), "merge is 2"),
        (dataclasses.replace(model, backbone=dataclasses.replace(model.backbone, gated=False)), "gated is False"),
        (as_model(model.backbone), "its encoders are"),
    ):
        with pytest.raises(UserError, match=said):
            parameter_initializer(other, 0, (("model", str(folder)),))


def test_image_newline_is_the_backbones_newline_vector(saved):
    theirs, folder = saved("llava_next")
    model, _, parameters = ours(folder)
    assert model.backbone.newline
    found = parameters["backbone"]["embed"]["000"]["newline"]
    np.testing.assert_array_equal(found, theirs.model.image_newline.detach().numpy())
