"""A small random Gemma 3 with images: logits of packed prompts, export after import, configurations."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.common.errors import UserError
from mmjax.weights import registry
from mmjax.weights.published_checkpoint import open_checkpoint
from tests.mmjax.weights.published.encoders.vision_parity import published_pixels
from tests.mmjax.weights.published.multimodal.vision_language_parity import model_logits, ours, packed, prompts
from tests.mmjax.weights.published.parity import (
    assert_close,
    export_parameters,
    randomise_weights,
    same_tensors,
)

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IMAGE, SIDE, PLACES = 39, 16, 4
VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 36,
    "image_size": SIDE,
    "patch_size": 4,
    "vision_use_head": False,
}
TEXT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "head_dim": 8,
    "query_pre_attn_scalar": 12,
    "sliding_window": 5,
}
ASKED = prompts(SIDE, IMAGE, PLACES, ([5, 6, 7, 8, 9], [11, 12, 13]))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model of transformers, and the folder that it saved."""
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**VISION),
        text_config=transformers.Gemma3TextConfig(**TEXT),
        mm_tokens_per_image=PLACES,
        image_token_id=IMAGE,
    )
    theirs = randomise_weights(transformers.Gemma3ForConditionalGeneration(config))
    folder = tmp_path_factory.mktemp("gemma3") / "saved"
    theirs.save_pretrained(folder)
    return theirs, folder


def logits_alone(theirs) -> np.ndarray:
    found = []
    for of in ASKED:
        pixels = torch.from_numpy(published_pixels(of.seen, (0.5,) * 3, (0.5,) * 3))
        tokens = torch.tensor([of.tokens])
        with torch.no_grad():
            kinds = (tokens == IMAGE).long()
            found.append(theirs(input_ids=tokens, pixel_values=pixels, token_type_ids=kinds).logits[0].numpy())
    return np.concatenate(found)


def test_logits_of_packed_prompts_match_those_of_each_alone(saved):
    theirs, folder = saved
    model, modules, parameters = ours(folder)
    batch = packed(model, ASKED, IMAGE)
    found = model_logits(modules, jax.tree.map(jnp.asarray, parameters), batch)
    assert_close(found, logits_alone(theirs), 1e-5)


def test_export_after_import_is_bit_identical(saved, tmp_path):
    theirs, folder = saved
    model, _, parameters = ours(folder)
    export_parameters(folder, model, "model", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    np.testing.assert_array_equal(logits_alone(again), logits_alone(theirs))


def test_a_written_config_reads_back_equal(saved):
    _, folder = saved
    published = registry.find_architecture("gemma3")
    config = open_checkpoint(folder).config
    values = registry.write_architecture(published, config)
    assert published.read_config(json.loads(json.dumps(values))) == config


def test_tokens_that_do_not_divide_the_patches_are_refused():
    values = {"model_type": "gemma3", "vision_config": VISION, "text_config": TEXT, "mm_tokens_per_image": 9}
    with pytest.raises(UserError, match="mm_tokens_per_image is 9 for 4 x 4 patches"):
        registry.read_architecture(values)
