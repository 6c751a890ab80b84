"""A small random Qwen2.5-Omni: logits of a prompt with a picture, a clip and sounds, exports, configurations."""

import json

import numpy as np
import pytest

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
pytest.importorskip("transformers")

from transformers.models.qwen2_5_omni import configuration_qwen2_5_omni, modeling_qwen2_5_omni  # noqa: E402

IMAGE, SEEING, CLIPS, SOUND, HEARING, MELS = 39, 38, 37, 36, 35, 16
END, END_OF_SOUND = 34, 33
POSITIONS_PER_SECOND = 4
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
THINKER = {
    "vision_config": {
        "depth": 3,
        "num_heads": 2,
        "patch_size": 4,
        "hidden_size": 24,
        "out_hidden_size": 32,
        "intermediate_size": 36,
        "window_size": 8,
        "fullatt_block_indexes": [1],
    },
    "audio_config": {
        "num_mel_bins": MELS,
        "d_model": 24,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 36,
        "max_source_positions": 20,
        "n_window": 6,
        "output_dim": 32,
    },
    "text_config": {
        "vocab_size": 40,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 24,
        "rope_parameters": ROPE,
    },
    "image_token_index": IMAGE,
    "video_token_index": CLIPS,
    "audio_token_index": SOUND,
    "audio_start_token_id": HEARING,
    "position_id_per_seconds": POSITIONS_PER_SECOND,
}
TALKER = {
    "vocab_size": 30,
    "embedding_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
}
VOCODER = {
    "dit_config": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 8,
        "enc_dim": 8,
        "enc_emb_dim": 8,
        "enc_channels": [8, 8, 8, 8, 24],
        "enc_attention_channels": 8,
        "enc_se_channels": 4,
        "emb_dim": 8,
        "num_embeds": 10,
        "mel_dim": 8,
    },
    "bigvgan_config": {
        "mel_dim": 8,
        "upsample_initial_channel": 16,
        "upsample_rates": [2, 2],
        "upsample_kernel_sizes": [4, 4],
        "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [[1, 3, 5]],
    },
}
LENGTHS = (28, 12)  # mel frames of the sounds
PROMPT = MixedPrompt(
    tokens=[
        *(1, SEEING, *[IMAGE] * 6, END, 5, HEARING, *[SOUND] * (LENGTHS[0] // 4), END_OF_SOUND),
        *(6, 7, SEEING, *[CLIPS] * 12, END, 8, HEARING, *[SOUND] * (LENGTHS[1] // 4), END_OF_SOUND, 9),
    ],
    clips=[np.stack([picture(frame + first, 16, 24) for frame in range(n)]) for first, n in ((0, 1), (1, 4))],
    sounds=[np.random.default_rng(n).normal(size=(n, MELS)).astype(np.float32) for n in LENGTHS],
)


def thinker_config():
    config = configuration_qwen2_5_omni.Qwen2_5OmniThinkerConfig(**THINKER, tie_word_embeddings=False)
    config.vision_start_token_id = SEEING  # read, and declared nowhere but in the talker's
    return config


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A thinker of transformers, and the folder that it saved."""
    theirs = randomise_weights(modeling_qwen2_5_omni.Qwen2_5OmniThinkerForConditionalGeneration(thinker_config()))
    folder = tmp_path_factory.mktemp("thinker") / "saved"
    theirs.save_pretrained(folder)
    return theirs, folder


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    """A whole model of transformers, and the folder that it saved."""
    config = configuration_qwen2_5_omni.Qwen2_5OmniConfig(
        thinker_config=thinker_config().to_dict(), talker_config=TALKER, token2wav_config=VOCODER
    )
    theirs = randomise_weights(modeling_qwen2_5_omni.Qwen2_5OmniForConditionalGeneration(config))
    folder = tmp_path_factory.mktemp("omni") / "saved"
    theirs.save_pretrained(folder)
    return theirs, folder


def published_logits(theirs, model, arrays) -> np.ndarray:
    """float[tokens, v]."""
    patches = torch.from_numpy(published_patches(model, arrays))
    grids = [published_grid(model, clip) for clip in PROMPT.clips]
    of_picture = int(np.prod(grids[0]))
    longest = max(LENGTHS)
    features = np.stack([np.pad(sound, ((0, longest - len(sound)), (0, 0))).T for sound in PROMPT.sounds])
    heard = torch.tensor([[number < length for number in range(longest)] for length in LENGTHS]).long()
    with torch.no_grad():
        return (
            theirs(
                input_ids=torch.tensor([PROMPT.tokens]),
                attention_mask=torch.ones(1, len(PROMPT.tokens), dtype=torch.long),
                pixel_values=patches[:of_picture],
                image_grid_thw=torch.tensor(grids[:1]),
                pixel_values_videos=patches[of_picture:],
                video_grid_thw=torch.tensor(grids[1:]),
                video_second_per_grid=torch.tensor([2 * SECONDS]),
                input_features=torch.from_numpy(features),
                feature_attention_mask=heard,
            )
            .logits[0]
            .numpy()
        )


def test_logits_match_transformers(thinker):
    theirs, folder = thinker
    model, modules, parameters = ours(folder)
    arrays = one_row(model, PROMPT, {"patches": (IMAGE, CLIPS), "frames": SOUND})
    expected = published_logits(theirs, model, arrays)
    assert_close(prefill_logits(model, modules, parameters, arrays), expected, 1e-5)


def test_the_whole_model_has_a_thinker_like_one_alone(speaker):
    theirs, folder = speaker
    model, modules, parameters = ours(folder)
    arrays = one_row(model, PROMPT, {"patches": (IMAGE, CLIPS), "frames": SOUND})
    theirs.thinker.config.vision_start_token_id = SEEING
    expected = published_logits(theirs.thinker, model, arrays)
    assert_close(prefill_logits(model, modules, parameters, arrays), expected, 1e-5)


@pytest.mark.parametrize("which", ["thinker", "speaker"])
def test_export_after_import_is_bit_identical(which, request, tmp_path):
    """Talker and vocoder included."""
    _, folder = request.getfixturevalue(which)
    model, _, parameters = ours(folder)
    export_parameters(folder, model, "model", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")
    assert ("talker" in {name.partition(".")[0] for name in open_checkpoint(folder).folder.tensors}) == (
        which == "speaker"
    )


@pytest.mark.parametrize("which", ["thinker", "speaker"])
def test_a_written_config_reads_back_equal_and_transformers_builds_it(which, request):
    theirs, folder = request.getfixturevalue(which)
    checkpoint = open_checkpoint(folder)
    values = json.loads(json.dumps(registry.write_architecture(checkpoint.architecture, checkpoint.config)))
    assert registry.read_architecture(values) == (checkpoint.architecture, checkpoint.config)
    built = type(theirs)(type(theirs.config).from_dict(values))
    expected = {name: tensor.shape for name, tensor in theirs.state_dict().items() if not name.startswith("to")}
    found = {name: tensor.shape for name, tensor in built.state_dict().items()}
    assert found == {name: shape for name, shape in expected.items() if not name.startswith("talker")}


def test_a_missing_and_an_extra_tensor_are_named(speaker, tmp_path):
    from safetensors.numpy import load_file, save_file

    _, folder = speaker
    tensors = load_file(folder / "model.safetensors")
    tensors["thinker.audio_tower.other"] = tensors.pop("thinker.audio_tower.proj.bias")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(IncompatibleCheckpointError) as raised:
        parameter_initializer(open_checkpoint(tmp_path).config, 0, (("model", str(tmp_path)),))
    missing, extra = raised.value.problems
    assert "missing: thinker.audio_tower.proj.bias" in missing
    assert "extra: thinker.audio_tower.other" in extra


@pytest.mark.parametrize(
    ("part", "changed", "said"),
    [
        ("text_config", {"model_type": "qwen2_5_vl_text"}, "text_config is of type 'qwen2_5_vl_text'"),
        ("text_config", {"rope_parameters": {"rope_theta": 1e4}}, "has no mrope_section"),
        ("audio_config", {"scale_embedding": True}, "scale_embedding is true"),
        ("vision_config", {"window_size": 4}, "window_size is 4"),
    ],
)
def test_unsupported_values_are_refused_by_key(part, changed, said):
    thinker = {**THINKER, part: {**THINKER[part], **changed}}
    with pytest.raises(ValueError, match=said):
        registry.find_architecture("qwen2_5_omni").read_config({"thinker_config": thinker})
