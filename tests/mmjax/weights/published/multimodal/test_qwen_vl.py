"""Small random Qwen-VLs: logits of prompts with a picture and with a clip, export after import, configurations."""

import functools
import json
import shutil

import numpy as np
import pytest

from configs.common.errors import UserError
from mmjax.weights import registry
from mmjax.weights.compatibility import IncompatibleCheckpointError
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published_checkpoint import open_checkpoint
from tests.mmjax.weights.published.encoders.vision_parity import picture
from tests.mmjax.weights.published.multimodal.mixed_prompts import (
    SECONDS,
    MixedPrompt,
    one_row,
    prefill_logits,
    published_grid,
    published_patches,
)
from tests.mmjax.weights.published.multimodal.vision_language_parity import ours
from tests.mmjax.weights.published.parity import assert_close, export_parameters, randomise_weights, same_tensors

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IMAGE, START, VIDEO = 39, 38, 37
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
QWEN2_TEXT = {**{key: value for key, value in TEXT.items() if key != "head_dim"}, "num_attention_heads": 2}
QWEN3_VISION = {**VISION, "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
CASES = {
    "qwen2_vl": (
        "Qwen2VL",
        {"depth": 3, "num_heads": 2, "patch_size": 4, "embed_dim": 24, "mlp_ratio": 2, "hidden_size": 32},
        QWEN2_TEXT,
        [2, 3, 3],
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        {**VISION, "window_size": 8, "fullatt_block_indexes": [1], "tokens_per_second": 4},
        QWEN2_TEXT,
        [2, 3, 3],
    ),
    "qwen3_vl": ("Qwen3VL", QWEN3_VISION, TEXT, [4, 2, 2]),
    "qwen3_vl_moe": ("Qwen3VLMoe", QWEN3_VISION, {**TEXT, **EXPERTS}, [4, 2, 2]),
}
WORDS = [5, 6, 7, 8, 9]
CLIP = np.stack([picture(frame, 16, 24) for frame in range(4)])  # two groups of 2 x 3 tokens
PICTURE = MixedPrompt(tokens=[1, START, *[IMAGE] * 6, *WORDS], clips=(CLIP[:1],))
WITHOUT_TIMES = MixedPrompt(tokens=[1, START, *[VIDEO] * 12, *WORDS], clips=(CLIP,))
WITH_TIMES = MixedPrompt(tokens=[1, 10, START, *[VIDEO] * 6, 11, START, *[VIDEO] * 6, *WORDS], clips=(CLIP,))


def prompt_of(kind, shown):
    """A clip's groups of frames are apart in Qwen3-VL, with their times between them."""
    if shown == "picture":
        return PICTURE
    return WITH_TIMES if kind.startswith("qwen3") else WITHOUT_TIMES


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
            video_token_id=VIDEO,
            vision_start_token_id=START,
            tie_word_embeddings=False,
        )
        theirs = randomise_weights(getattr(transformers, f"{prefix}ForConditionalGeneration")(config))
        folder = tmp_path_factory.mktemp("qwen_vl") / "saved"
        theirs.save_pretrained(folder)
        return theirs, folder

    return save


def published_logits(theirs, config, prompt, arrays) -> np.ndarray:
    """float[tokens, v]."""
    tokens = torch.tensor([prompt.tokens])
    patches = torch.from_numpy(published_patches(config, arrays))
    grid = torch.tensor([published_grid(config, clip) for clip in prompt.clips])
    seen = {"pixel_values": patches, "image_grid_thw": grid}
    if VIDEO in prompt.tokens:
        seen = {"pixel_values_videos": patches, "video_grid_thw": grid}
        if "2_5" in theirs.config.model_type:
            seen["second_per_grid_ts"] = torch.tensor([2 * SECONDS])
    types = (tokens == IMAGE).int() + 2 * (tokens == VIDEO).int()
    with torch.no_grad():
        return theirs(input_ids=tokens, mm_token_type_ids=types, **seen).logits[0].numpy()


@pytest.mark.parametrize("shown", ["picture", "clip"])
@pytest.mark.parametrize("kind", CASES)
def test_logits_match_transformers(kind, shown, saved):
    theirs, folder = saved(kind)
    config, modules, parameters = ours(folder)
    prompt = prompt_of(kind, shown)
    arrays = one_row(config, prompt, {"patches": (IMAGE, VIDEO)})
    found = prefill_logits(config, modules, parameters, arrays)
    assert_close(found, published_logits(theirs, config, prompt, arrays), 1e-5)


def rewritten_for_authors(folder, output):
    """A folder of Qwen3-VL-MoE with the matrices of experts as its authors' files have them."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    of_experts = {name: np.ascontiguousarray(tensors[name].swapaxes(1, 2)) for name in tensors if "experts" in name}
    output.mkdir()
    save_file({**tensors, **of_experts}, output / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(folder / "config.json", output / "config.json")
    return output


def test_files_of_the_authors_of_qwen3_vl_moe_give_the_same_model_and_are_written(saved, tmp_path):
    _, folder = saved("qwen3_vl_moe")
    other = rewritten_for_authors(folder, tmp_path / "authors")
    model, _, parameters = ours(other)
    expected, _, same = ours(folder)
    assert model == expected
    np.testing.assert_equal(parameters, same)
    export_parameters(other, model, "model", parameters, tmp_path / "again")
    assert same_tensors(other, tmp_path / "again")


def test_files_of_experts_that_fit_neither_shape_are_named(saved, tmp_path):
    from safetensors.numpy import load_file, save_file

    folder = rewritten_for_authors(saved("qwen3_vl_moe")[1], tmp_path / "cut")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layers.1.mlp.experts.down_proj"))
    save_file({**tensors, name: tensors[name][:, :6].copy()}, folder / "model.safetensors")
    with pytest.raises(IncompatibleCheckpointError, match=r"layers.1.mlp.experts.down_proj is \[4, 6, 32\]"):
        parameter_initializer(open_checkpoint(folder).config, 0, (("model", str(folder)),))


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


def test_files_with_the_decoders_values_beside_vision_config_are_read():
    """As the authors of Qwen2-VL-7B wrote them."""
    values = {
        "model_type": "qwen2_vl",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
        "vision_config": {"model_type": "qwen2_vl", "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "in_chans": 3},
    }
    _, config = registry.read_architecture(values)
    (seen,), backbone = config.encoders, config.backbone
    assert (seen.width, seen.depth, seen.merge, seen.temporal_patch) == (1280, 32, 2, 2)
    assert (backbone.width, backbone.rope_base, backbone.rope_sections) == (3584, 1e6, (16, 24, 24))
    assert backbone.rope_scaling is None and backbone.positions_per_second == 0


def test_a_file_without_sections_is_refused():
    values = {"model_type": "qwen3_vl", "vision_config": QWEN3_VISION, "text_config": TEXT}
    with pytest.raises(UserError, match="has no mrope_section"):
        registry.read_architecture(values)


@pytest.mark.parametrize(
    ("kind", "part", "changed", "said"),
    [
        ("qwen2_vl", "vision_config", {"model_type": "clip_vision_model"}, "vision_config is of type"),
        ("qwen2_vl", "text_config", {"use_sliding_window": True}, "use_sliding_window is true"),
        ("qwen2_5_vl", "text_config", {"model_type": "llama"}, "text_config is of type 'llama'"),
        ("qwen3_vl", "vision_config", {"num_position_embeddings": 26}, "num_position_embeddings is 26"),
        ("qwen3_vl_moe", "text_config", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("qwen3_vl_moe", "text_config", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
    ],
)
def test_unsupported_values_are_refused_by_key(kind, part, changed, said, saved):
    published = registry.find_architecture(kind)
    values = registry.write_architecture(published, open_checkpoint(saved(kind)[1]).config)
    with pytest.raises(ValueError, match=said):
        published.read_config({**values, part: {**values[part], **changed}})
