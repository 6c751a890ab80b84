"""A small random Qwen2-Audio: logits of a prompt with two clips, export after import, configurations."""

import json

import numpy as np
import pytest

from mmjax.weights import registry
from mmjax.weights.published_checkpoint import open_checkpoint
from tests.mmjax.weights.published.multimodal.mixed_prompts import MixedPrompt, one_row, prefill_logits
from tests.mmjax.weights.published.multimodal.vision_language_parity import ours
from tests.mmjax.weights.published.parity import (
    assert_close,
    export_parameters,
    randomise_weights,
    same_tensors,
    sinusoids,
)

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SOUND, MELS, POSITIONS = 39, 16, 20
AUDIO = {
    "num_mel_bins": MELS,
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 36,
    "max_source_positions": POSITIONS,
}
TEXT = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
}
TOKENS = [1, 5, *[SOUND] * (POSITIONS // 2), 6, 7, *[SOUND] * (POSITIONS // 2), 8, 9]
SOUNDS = [np.random.default_rng(seed).normal(size=(2 * POSITIONS, MELS)).astype(np.float32) for seed in range(2)]
PROMPT = MixedPrompt(tokens=TOKENS, sounds=SOUNDS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model of transformers, and the folder that it saved."""
    config = transformers.Qwen2AudioConfig(
        audio_config=transformers.Qwen2AudioEncoderConfig(**AUDIO),
        text_config=transformers.Qwen2Config(**TEXT),
        audio_token_index=SOUND,
    )
    theirs = randomise_weights(transformers.Qwen2AudioForConditionalGeneration(config))
    theirs.model.audio_tower.embed_positions.weight.data.copy_(torch.from_numpy(sinusoids(POSITIONS, AUDIO["d_model"])))
    folder = tmp_path_factory.mktemp("qwen2_audio") / "saved"
    theirs.save_pretrained(folder)
    return theirs, folder


def test_logits_match_transformers(saved):
    theirs, folder = saved
    model, modules, parameters = ours(folder)
    found = prefill_logits(model, modules, parameters, one_row(model, PROMPT, {"frames": SOUND}))
    features = torch.from_numpy(np.stack([sound.T for sound in SOUNDS]))
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor([TOKENS]),
            input_features=features,
            feature_attention_mask=torch.ones(len(SOUNDS), 2 * POSITIONS, dtype=torch.long),
            attention_mask=torch.ones(1, len(TOKENS), dtype=torch.long),
        ).logits[0]
    assert_close(found, expected.numpy(), 1e-5)


def test_export_after_import_is_bit_identical(saved, tmp_path):
    _, folder = saved
    model, _, parameters = ours(folder)
    export_parameters(folder, model, "model", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")


def test_a_written_config_reads_back_equal(saved):
    _, folder = saved
    published = registry.find_architecture("qwen2_audio")
    config = open_checkpoint(folder).config
    values = json.loads(json.dumps(registry.write_architecture(published, config)))
    assert published.read_config(values) == config
    theirs = transformers.Qwen2AudioConfig.from_dict(values)
    assert theirs.text_config.hidden_size == TEXT["hidden_size"] and theirs.audio_config.d_model == AUDIO["d_model"]


def test_values_missing_from_the_published_file_are_those_of_the_7b_model():
    """Qwen2-Audio-7B's config.json says this much of its decoder."""
    text = {"model_type": "qwen2", "intermediate_size": 11008, "rms_norm_eps": 1e-5, "vocab_size": 156032}
    model = registry.find_architecture("qwen2_audio").read_config({"text_config": text, "audio_config": {}})
    (heard,), backbone = model.encoders, model.backbone
    assert (backbone.width, backbone.depth, backbone.ffn, backbone.vocabulary) == (4096, 32, 11008, 156032)
    assert (heard.width, heard.depth, heard.mels) == (1280, 32, 128)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"audio_config": {"model_type": "whisper"}}, "audio_config is of type 'whisper'"),
        ({"audio_config": {"scale_embedding": True}}, "scale_embedding is true"),
        ({"text_config": {"model_type": "llama"}}, "text_config is of type 'llama'"),
        ({"text_config": {"use_sliding_window": True}}, "use_sliding_window is true"),
    ],
)
def test_unsupported_values_are_refused_by_key(changed, said):
    with pytest.raises(ValueError, match=said):
        registry.find_architecture("qwen2_audio").read_config({"audio_config": {}, "text_config": {}, **changed})
