"""Small random LLaVA-NeXT, LLaVA-OneVision and Pixtral: logits of prompts with pictures of many shapes, round trips."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.data_config import RowCapacity
from data.media.tilings.any_resolution import AnyResolution
from data.media.tilings.longest_edge import LongestEdge
from data.packing.global_batch import build_global_batch
from data.packing.rows.packed_rows import pack_samples
from data.samples.image_format import image_items
from data.samples.image_tokens import joined_tokens, sequence_tokens
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from data.text.image_layout import SeparatorIds
from mmjax.weights import registry
from mmjax.weights.published_checkpoint import open_checkpoint
from tests.mmjax.weights.published.encoders.vision_parity import picture
from tests.mmjax.weights.published.multimodal.vision_language_parity import model_logits, ours
from tests.mmjax.weights.published.parity import assert_close, export_parameters, randomise_weights, same_tensors

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IMAGE, BREAK, END, SIDE = 39, 38, 37, 16
GRIDS = ((1, 2), (2, 1), (2, 2), (1, 3), (3, 1))
PINPOINTS = [[rows * SIDE, columns * SIDE] for rows, columns in GRIDS]
VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 36,
    "image_size": SIDE,
    "patch_size": 4,
}
TEXT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
}
CONFIGS = {
    "llava_next": (
        "LlavaNext",
        {
            "vision_config": {"model_type": "clip_vision_model", **VISION},
            "text_config": {"model_type": "llama", **TEXT},
            "image_grid_pinpoints": PINPOINTS,
        },
    ),
    "llava_onevision": (
        "LlavaOnevision",
        {
            "vision_config": {"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
            "text_config": {"model_type": "qwen2", **TEXT},
            "image_grid_pinpoints": PINPOINTS,
        },
    ),
    "pixtral": (
        "Llava",
        {
            "vision_config": {"model_type": "pixtral", **VISION, "image_size": 32, "hidden_act": "silu"},
            "text_config": {"model_type": "mistral", **TEXT, "head_dim": 8},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "image_seq_length": 1,
        },
    ),
}
TILED = ("llava_next", "llava_onevision")
SHAPES = ((16, 16), (20, 37), (70, 20), (30, 31))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a function that gives a model of transformers, and the folder that it saved."""

    @functools.cache
    def save(kind):
        prefix, values = CONFIGS[kind]
        config = getattr(transformers, f"{prefix}Config")(**values, image_token_index=IMAGE)
        theirs = randomise_weights(getattr(transformers, f"{prefix}ForConditionalGeneration")(config))
        folder = tmp_path_factory.mktemp(kind) / "saved"
        theirs.save_pretrained(folder)
        return theirs, folder

    return save


def tiling_of(kind):
    return LongestEdge(24) if kind == "pixtral" else AnyResolution(tile_size=SIDE, grids=GRIDS)


def sample(kind, form, number, pixels):
    """A picture between a beginning and a few words, as metadata."""
    patches = form.encoder_formats["patches"]
    items = image_items(lambda: pixels, pixels.shape[:2], patches, tiling=tiling_of(kind))
    counts = [patches.token_count(item.length) for item in items]
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    if kind == "pixtral":
        placed = [*sequence_tokens(items, starts, counts, IMAGE, SeparatorIds([BREAK], [], [], [])), (END, None)]
    else:
        placed = [*joined_tokens(items, starts, counts, IMAGE)]
    tokens = [1, *(token for token, _ in placed), 5, 6 + number, 7]
    outputs = [output for _, output in placed if output is not None]
    layout = lay_out_tokens(tokens, [], [[len(tokens) - 1]], {"patches": IMAGE}, {"patches": outputs})
    return SampleMetadata(kind="seen", layout=layout, sample_format=form, items=items).load(number)


def samples_and_batch(kind, model):
    form = SampleFormat.for_model(model, {"patches": 4096})
    samples = [sample(kind, form, n, picture(n, *shape)) for n, shape in enumerate(SHAPES)]
    patches = sum(len(of.encoder_inputs["patches"].values) for of in samples)
    length = sum(len(of.layout.tokens) for of in samples)
    capacity = RowCapacity(tokens=length, lengths={"patches": patches}, samples=len(samples))
    rows = pack_samples(samples, 1, capacity, form)
    return samples, jax.tree.map(jnp.asarray, build_global_batch(rows, model, form).arrays)


def processor(kind, encoder):
    """The published processor, with the normalisation that the model has here."""
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
        LlavaOnevisionImageProcessorPil,
    )
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    pixels = {
        "image_mean": [(value + 1) / 2 for value in encoder.pixel_mean],
        "image_std": [value / 2 for value in encoder.pixel_std],
    }
    square = {"height": SIDE, "width": SIDE}
    if kind == "pixtral":
        return PixtralImageProcessorPil(size={"longest_edge": 24}, patch_size=4, **pixels)
    if kind == "llava_next":
        return LlavaNextImageProcessorPil(
            size={"shortest_edge": SIDE}, crop_size=square, image_grid_pinpoints=PINPOINTS, **pixels
        )
    return LlavaOnevisionImageProcessorPil(size=square, image_grid_pinpoints=PINPOINTS, **pixels)


def published_logits(kind, theirs, encoder, samples) -> np.ndarray:
    """float[row's tokens, v], of every prompt alone, of the published processor's pixels."""
    found = []
    for number, (of, shape) in enumerate(zip(samples, SHAPES, strict=True)):
        inputs = processor(kind, encoder)([picture(number, *shape)], return_tensors="pt")
        given = {"pixel_values": inputs["pixel_values"].float(), "image_sizes": inputs["image_sizes"]}
        with torch.no_grad():
            tokens = torch.from_numpy(of.layout.tokens[None]).long()
            found.append(theirs(input_ids=tokens, **given).logits[0].numpy())
    return np.concatenate(found)


@pytest.mark.parametrize("kind", CONFIGS)
def test_logits_of_packed_prompts_match_those_of_each_alone(kind, saved):
    theirs, folder = saved(kind)
    model, modules, parameters = ours(folder)
    samples, batch = samples_and_batch(kind, model)
    found = model_logits(modules, jax.tree.map(jnp.asarray, parameters), batch)
    assert_close(found, published_logits(kind, theirs, model.encoders[0], samples), 1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_export_after_import_is_bit_identical(kind, saved, tmp_path):
    theirs, folder = saved(kind)
    model, _, parameters = ours(folder)
    export_parameters(folder, model, "model", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    for name, tensor in theirs.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name].numpy(), tensor.numpy())


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_written_config_reads_back_equal_and_transformers_reads_it(kind, saved):
    _, folder = saved(kind)
    config = open_checkpoint(folder).config
    published = open_checkpoint(folder).architecture
    values = json.loads(json.dumps(registry.write_architecture(published, config)))
    assert published.read_config(values) == config
    prefix, _ = CONFIGS[kind]
    theirs = getattr(transformers, f"{prefix}Config").from_dict(values)
    assert published.read_config(theirs.to_dict()) == config


def test_a_grid_of_tiles_in_config_json_is_that_of_the_towers_side(saved):
    _, folder = saved("llava_next")
    of = open_checkpoint(folder)
    values = registry.write_architecture(of.architecture, of.config)
    assert values["image_grid_pinpoints"][0] == [SIDE, 2 * SIDE]


def test_values_missing_from_pixtrals_file_are_those_of_the_12b_model():
    text = {"model_type": "mistral", "hidden_size": 5120, "head_dim": 128, "num_hidden_layers": 40}
    text |= {"vocab_size": 131072, "rope_theta": 1e9, "sliding_window": None, "rms_norm_eps": 1e-5}
    vision = {"model_type": "pixtral", "hidden_act": "silu"}
    model = registry.find_architecture("llava").read_config(
        {
            "text_config": text,
            "vision_config": vision,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        }
    )
    (seen,), backbone = model.encoders, model.backbone
    assert (backbone.heads, backbone.kv_heads, backbone.ffn, backbone.head_width) == (32, 8, 14336, 128)
    assert (seen.width, seen.depth, seen.unused_blocks, seen.patch, seen.activation) == (1024, 24, 0, 16, "silu")


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("pixtral", {"vision_feature_select_strategy": "default"}, "vision_feature_select_strategy is 'default'"),
        ("llava_onevision", {"vision_feature_select_strategy": "default"}, "only 'full' can be computed"),
        ("llava_onevision", {"multimodal_projector_bias": False}, "multimodal_projector_bias is False"),
        ("llava_onevision", {"text_config": {"model_type": "llama", **TEXT}}, "text_config is of type 'llama'"),
        ("llava_next", {"vision_config": {"model_type": "pixtral", **VISION}}, "vision_config is of type 'pixtral'"),
    ],
)
def test_unsupported_values_are_refused_by_key(kind, changed, said):
    model_type = "llava" if kind == "pixtral" else kind
    with pytest.raises(ValueError, match=said):
        registry.find_architecture(model_type).read_config({**CONFIGS[kind][1], **changed})
