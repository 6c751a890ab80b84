"""A small random Llama 4: logits of prompts with tiled pictures, export after import, configurations."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.common.errors import UserError
from data.data_config import RowCapacity
from data.media.tilings.canvas_tiling import CanvasTiling
from data.packing.global_batch import build_global_batch
from data.packing.rows.packed_rows import pack_samples
from data.samples.image_format import image_items
from data.samples.image_tokens import sequence_tokens
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from data.text.image_layout import SeparatorIds
from mmjax.generation.kv_cache import CachedBackbone
from mmjax.models.structure.parameters import layer_name, piece_definition
from mmjax.weights import registry
from mmjax.weights.published_checkpoint import open_checkpoint
from tests.mmjax.weights.published.encoders.vision_parity import picture, published_pixels
from tests.mmjax.weights.published.multimodal.vision_language_parity import ours
from tests.mmjax.weights.published.parity import assert_close, export_parameters, randomise_weights, same_tensors

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IMAGE, SIDE = 39, 16
VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "image_size": SIDE,
    "patch_size": 4,
    "vision_output_dim": 20,
    "projector_input_dim": 20,
    "projector_output_dim": 20,
}
TEXT = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 12,
    "intermediate_size_mlp": 24,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SEPARATORS = SeparatorIds([], [31], [32], [33])
SHAPES = ((16, 16), (20, 37))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model of transformers, and the folder that it saved."""
    config = transformers.Llama4Config(vision_config=dict(VISION), text_config=dict(TEXT), image_token_index=IMAGE)
    theirs = randomise_weights(transformers.Llama4ForConditionalGeneration(config))
    folder = tmp_path_factory.mktemp("llama4") / "saved"
    theirs.save_pretrained(folder)
    return theirs, folder


def sample(form, shape):
    """A picture as its tiles between a beginning and a few words, and the tiles."""
    patches, pixels, tiling = form.encoder_formats["patches"], picture(0, *shape), CanvasTiling(tile_size=SIDE)
    items = image_items(lambda: pixels, shape, patches, tiling=tiling)
    counts = [patches.token_count(item.length) for item in items]
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    placed = [*sequence_tokens(items, starts, counts, IMAGE, SEPARATORS)]
    tokens = [1, 34, *(token for token, _ in placed), 35, 5, 6, 7]
    layout = lay_out_tokens(tokens, [], [[len(tokens) - 1]], {"patches": IMAGE})
    of = SampleMetadata(kind="seen", layout=layout, sample_format=form, items=items).load(0)
    return of, tiling.cut_images(pixels, patches.cell_size)


def own_logits(model, modules, parameters, of, form) -> np.ndarray:
    """float[tokens, v], by prefill, which runs the encoder and all blocks."""
    lengths = {"patches": len(of.encoder_inputs["patches"].values)}
    capacity = RowCapacity(tokens=len(of.layout.tokens), lengths=lengths, samples=1)
    batch = build_global_batch(pack_samples([of], 1, capacity, form), model, form).arrays
    parameters, arrays = jax.tree.map(jnp.asarray, (parameters, batch))
    backbone = CachedBackbone(model, modules)
    _, hidden = jax.jit(backbone.prefill)(parameters, arrays, jnp.array([len(of.layout.tokens)]))
    (head,) = (piece for piece in modules[-1].pieces if piece.name == "head")
    return np.asarray(piece_definition(head).bind(parameters["backbone"]["head"][layer_name(0)]).logits(hidden))[0]


def published_logits(theirs, tokens, pixels) -> np.ndarray:
    """float[tokens, v], by the parts of the model: its own `forward` fails behind the decoder in transformers 5.24."""
    with torch.no_grad():
        features = theirs.vision_model(pixels).last_hidden_state
        x = theirs.get_input_embeddings()(tokens)
        x[tokens == IMAGE] = theirs.multi_modal_projector(features.reshape(-1, features.shape[-1]))
        return theirs.language_model(inputs_embeds=x[None]).logits[0].numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_match_transformers(shape, saved):
    theirs, folder = saved
    model, modules, parameters = ours(folder)
    form = SampleFormat.for_model(model, {"patches": 4096})
    of, tiles = sample(form, shape)
    pixels = np.concatenate([published_pixels(tile, (0.5,) * 3, (0.5,) * 3) for tile in tiles])
    expected = published_logits(theirs, torch.from_numpy(of.layout.tokens).long(), torch.from_numpy(pixels))
    assert_close(own_logits(model, modules, parameters, of, form), expected, 1e-5)


def test_export_after_import_is_bit_identical(saved, tmp_path):
    theirs, folder = saved
    model, _, parameters = ours(folder)
    export_parameters(folder, model, "model", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    for name, tensor in theirs.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name].numpy(), tensor.numpy())


def test_a_written_config_reads_back_equal(saved):
    _, folder = saved
    published, config = registry.find_architecture("llama4"), open_checkpoint(folder).config
    values = json.loads(json.dumps(registry.write_architecture(published, config)))
    assert published.read_config(values) == config
    assert published.read_config(transformers.Llama4Config.from_dict(values).to_dict()) == config


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vision_output_dim": 21}, "only equal widths can be computed"),
        ({"pixel_shuffle_ratio": 0.25}, "vision_config.pixel_shuffle_ratio is 0.25"),
        ({"vision_feature_select_strategy": "full"}, "vision_config.vision_feature_select_strategy is 'full'"),
        ({"multi_modal_projector_bias": True}, "vision_config.multi_modal_projector_bias is True"),
    ],
)
def test_unsupported_values_are_refused_by_key(changed, said):
    values = {"model_type": "llama4", "vision_config": {**VISION, **changed}, "text_config": TEXT}
    with pytest.raises(UserError, match=said):
        registry.read_architecture(values)
