"""Small random PaliGemma and PaliGemma 2: logits of packed prompts, export after import, configurations."""

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
from tests.mmjax.weights.published.parity import assert_close, export_parameters, randomise_weights, same_tensors

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IMAGE, SIDE, PLACES = 39, 16, 16
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 36,
    "image_size": SIDE,
    "patch_size": 4,
    "vision_use_head": False,
}
TEXT = {
    "model_type": "gemma2",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "head_dim": 8,
    "query_pre_attn_scalar": 12,
    "sliding_window": 7,
}
OF_BOTH = frozenset(TEXT) - {"query_pre_attn_scalar", "sliding_window"}
# Images, then <bos>, a prompt and an answer, of which the last tokens are predicted.
ASKED = prompts(SIDE, IMAGE, PLACES, ([5, 6, 7, 8, 9], [11, 12, 13]))


@pytest.fixture(scope="module", params=["gemma", "gemma2"])
def saved(request, tmp_path_factory):
    """A model of transformers, and the folder that it saved."""
    text = {key: value for key, value in TEXT.items() if request.param == "gemma2" or key in OF_BOTH}
    config = transformers.PaliGemmaConfig(
        vision_config=dict(VISION),
        text_config={**text, "model_type": request.param},
        image_token_index=IMAGE,
        vocab_size=40,
        projection_dim=16,
    )
    theirs = randomise_weights(transformers.PaliGemmaForConditionalGeneration(config))
    folder = tmp_path_factory.mktemp("paligemma") / "saved"
    theirs.save_pretrained(folder)
    return theirs, folder


def logits_alone(theirs) -> np.ndarray:
    found = []
    for of in ASKED:
        pixels = torch.from_numpy(published_pixels(of.seen, (0.5,) * 3, (0.5,) * 3))
        kinds = torch.zeros(1, len(of.tokens), dtype=torch.long)
        kinds[:, of.targets.start :] = 1
        with torch.no_grad():
            given = {"input_ids": torch.tensor([of.tokens]), "pixel_values": pixels, "token_type_ids": kinds}
            found.append(theirs(**given).logits[0].numpy())
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
    published = registry.find_architecture("paligemma")
    config = open_checkpoint(folder).config
    assert (config.backbone.bidirectional, config.backbone.tie_embeddings) == ("prompt", True)
    values = registry.write_architecture(published, config)
    assert published.read_config(json.loads(json.dumps(values))) == config


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"projection_dim": 20}, "projection_dim is 20, and text_config.hidden_size 16"),
        (
            {"text_config": {**TEXT, "use_bidirectional_attention": False}},
            "text_config.use_bidirectional_attention is False",
        ),
        (
            {"text_config": {**TEXT, "model_type": "llama"}},
            "text_config is of type 'llama'; choose one of gemma, gemma2",
        ),
    ],
)
def test_unsupported_values_are_refused_by_key(changed, said):
    values = {"model_type": "paligemma", "vision_config": VISION, "text_config": TEXT, **changed}
    with pytest.raises(UserError, match=said):
        registry.read_architecture(values)
