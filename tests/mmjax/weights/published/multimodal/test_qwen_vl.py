"""Small random Qwen2.5-VL and Qwen3-VL: logits of a prompt with an image, export after import, configurations."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import UserError
from mmjax.generation.kv_cache import CachedBackbone
from mmjax.models.structure.parameters import layer_name, piece_definition
from mmjax.weights import registry
from mmjax.weights.published_checkpoint import open_checkpoint
from tests.mmjax.weights.published.multimodal.vision_language_parity import ours, packed, prompts
from tests.mmjax.weights.published.parity import assert_close, export_parameters, randomise_weights, same_tensors

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IMAGE, START, SIDE, PLACES = 39, 38, 16, 4
VISION = {
    "depth": 3,
    "num_heads": 2,
    "patch_size": 4,
    "hidden_size": 24,
    "out_hidden_size": 32,
    "intermediate_size": 36,
}
TEXT = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CASES = {
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        {**VISION, "window_size": 8, "fullatt_block_indexes": [1]},
        {**{key: value for key, value in TEXT.items() if key != "head_dim"}, "num_attention_heads": 2},
        [2, 3, 3],
    ),
    "qwen3_vl": (
        "Qwen3VL",
        {**VISION, "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2]},
        TEXT,
        [4, 2, 2],
    ),
}
(ASKED,) = prompts(SIDE, IMAGE, PLACES, ([5, 6, 7, 8, 9],))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a function that gives a model of transformers, and the folder that it saved."""

    @functools.cache
    def save(kind):
        prefix, vision, text, sections = CASES[kind]
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
        config = getattr(transformers, f"{prefix}Config")(
            vision_config=vision,
            text_config={**text, "rope_parameters": rope},
            image_token_id=IMAGE,
            vision_start_token_id=START,
            tie_word_embeddings=False,
        )
        theirs = randomise_weights(getattr(transformers, f"{prefix}ForConditionalGeneration")(config))
        folder = tmp_path_factory.mktemp("qwen_vl") / "saved"
        theirs.save_pretrained(folder)
        return theirs, folder

    return save


def published_logits(theirs, config, arrays) -> np.ndarray:
    """float[tokens, v]; transformers' patches are [c, t, h, w] and normalised."""
    encoder = config.encoders[0]
    patches = np.asarray(arrays["vision"]["patches"][0])
    shape = (-1, encoder.temporal_patch, encoder.patch, encoder.patch, encoder.channels)
    normalised = (patches.reshape(shape) - np.float32(encoder.pixel_mean)) / np.float32(encoder.pixel_std)
    given = np.ascontiguousarray(normalised.transpose(0, 4, 1, 2, 3)).reshape(len(patches), -1)
    tokens = torch.tensor([ASKED.tokens])
    grid = SIDE // encoder.patch
    with torch.no_grad():
        return (
            theirs(
                input_ids=tokens,
                pixel_values=torch.from_numpy(given),
                image_grid_thw=torch.tensor([[1, grid, grid]]),
                mm_token_type_ids=(tokens == IMAGE).int(),
            )
            .logits[0]
            .numpy()
        )


def own_arrays(config):
    arrays = packed(config, [ASKED], IMAGE)
    patches = (SIDE // config.encoders[0].patch) ** 2
    return {**arrays, "vision": {name: array[:, :patches] for name, array in arrays["vision"].items()}}


def own_logits(config, modules, parameters, arrays) -> np.ndarray:
    """float[tokens, v], by prefill, which runs the encoder and all blocks."""
    parameters = jax.tree.map(jnp.asarray, parameters)
    backbone = CachedBackbone(config, modules)
    _, hidden = jax.jit(backbone.prefill)(parameters, arrays, jnp.array([len(ASKED.tokens)]))
    (head,) = (piece for piece in modules[-1].pieces if piece.name == "head")
    return np.asarray(piece_definition(head).bind(parameters["backbone"]["head"][layer_name(0)]).logits(hidden))[0]


@pytest.mark.parametrize("kind", CASES)
def test_logits_match_transformers(kind, saved):
    theirs, folder = saved(kind)
    config, modules, parameters = ours(folder)
    arrays = own_arrays(config)
    assert_close(own_logits(config, modules, parameters, arrays), published_logits(theirs, config, arrays), 1e-5)


@pytest.mark.parametrize("kind", CASES)
def test_export_after_import_is_bit_identical(kind, saved, tmp_path):
    _, folder = saved(kind)
    config, _, parameters = ours(folder)
    export_parameters(folder, config, "model", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")


@pytest.mark.parametrize("kind", CASES)
def test_a_written_config_reads_back_equal(kind, saved):
    _, folder = saved(kind)
    published, config = registry.find_architecture(kind), open_checkpoint(folder).config
    assert published.read_config(json.loads(json.dumps(registry.write_architecture(published, config)))) == config


def test_a_file_without_sections_is_refused():
    values = {"model_type": "qwen3_vl", "vision_config": VISION, "text_config": TEXT}
    with pytest.raises(UserError, match="has no mrope_section"):
        registry.read_architecture(values)
