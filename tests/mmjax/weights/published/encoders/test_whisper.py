"""Small random Whispers of transformers: hidden states, export after import, configurations."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from data.data_config import RowCapacity
from data.packing.rows.packed_rows import pack_samples
from data.samples.audio_format import audio_items
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from mmjax.models.model import model_modules
from mmjax.weights import registry
from mmjax.weights.compatibility import IncompatibleCheckpointError
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published_checkpoint import as_model, open_checkpoint
from tests.mmjax.weights.published.encoders.vision_parity import hidden_states
from tests.mmjax.weights.published.parity import (
    export_parameters,
    import_parameters,
    randomise_weights,
    same_tensors,
    single_threaded_torch,
)

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SECONDS = 0.4  # the small model's window
AUDIO = 7  # a token that stands for a moment of a clip
CONFIG = transformers.WhisperConfig(
    vocab_size=20,
    num_mel_bins=80,
    d_model=24,
    encoder_layers=2,
    encoder_attention_heads=2,
    encoder_ffn_dim=36,
    decoder_layers=1,
    decoder_attention_heads=2,
    decoder_ffn_dim=36,
    max_source_positions=int(50 * SECONDS),
    max_target_positions=8,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
CLASSES = ("WhisperModel", "WhisperForConditionalGeneration")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a function that gives a model of transformers, and the folder that it saved."""

    @functools.cache
    def save(named):
        theirs = randomise_weights(getattr(transformers, named)(CONFIG))
        # Random numbers are no sines: what is kept and not read has to be as it is in published files.
        positions = theirs.get_encoder().embed_positions.weight
        positions.data.copy_(type(theirs)(CONFIG).get_encoder().embed_positions.weight)
        folder = tmp_path_factory.mktemp("whisper") / "saved"
        theirs.save_pretrained(folder)
        return theirs, folder

    return save


def ours(folder):
    """The folder's configuration, the encoder and its parameters."""
    config = open_checkpoint(folder).config
    module = model_modules(as_model(config))[0]
    return config, module, import_parameters(folder, as_model(config), "audio", (module,))


def sound(seed):
    return np.random.default_rng(seed).normal(0, 0.1, int(16_000 * SECONDS)).astype(np.float32)


def packed(config, *sounds):
    """Arrays of one row of packed clips."""
    form = SampleFormat.for_model(as_model(config), {"frames": 12 * 10**3})
    items = [
        item
        for heard in sounds
        for item in audio_items(lambda heard=heard: heard, [range(len(heard))], form.encoder_formats["frames"])
    ]
    length = sum(item.length for item in items)
    outline = SampleMetadata(
        kind="heard", layout=lay_out_tokens([1], [], [()], {"frames": AUDIO}), sample_format=form, items=items
    )
    rows = pack_samples([outline.load(0)], 1, RowCapacity(tokens=1, lengths={"frames": length}, samples=1), form)
    values, segments, positions = rows.encoder_inputs["frames"]
    return {"frames": values, "segments": segments, "positions": positions}


def published_states(theirs, frames):
    torch = single_threaded_torch()
    with torch.no_grad():
        given = torch.from_numpy(np.ascontiguousarray(frames.T[None]))
        return theirs.get_encoder()(given).last_hidden_state[0].numpy()


def test_hidden_states_of_packed_clips_match_those_of_each_alone(saved):
    theirs, folder = saved("WhisperModel")
    config, module, parameters = ours(folder)
    arrays = packed(config, sound(0), sound(1))
    found = hidden_states(module, parameters["audio"], arrays)
    for clip, (frames, states) in enumerate(zip(np.split(arrays["frames"][0], 2), np.split(found, 2), strict=True)):
        expected = published_states(theirs, frames)
        assert np.std(expected) > 0.1 and (arrays["segments"][0] == clip + 1).sum() == len(states)
        np.testing.assert_allclose(states, expected, atol=1e-4 * np.abs(expected).max())


def test_a_packed_clip_has_the_same_hidden_states_as_alone(saved):
    config, module, parameters = ours(saved("WhisperModel")[1])
    merging = dataclasses.replace(config, merge=2)
    short = sound(2)[:2000]
    alone = hidden_states(module, parameters["audio"], packed(merging, short))
    beside = hidden_states(module, parameters["audio"], packed(merging, sound(0), short))
    np.testing.assert_allclose(beside[-len(alone) :], alone, atol=1e-5 * np.abs(alone).max())


@pytest.mark.parametrize("named", CLASSES)
def test_export_after_import_is_bit_identical(named, saved, tmp_path):
    theirs, folder = saved(named)
    config, _, parameters = ours(folder)
    export_parameters(folder, as_model(config), "audio", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    frames = np.random.default_rng(3).normal(size=(2 * CONFIG.max_source_positions, 80)).astype(np.float32)
    np.testing.assert_array_equal(published_states(again, frames), published_states(theirs, frames))


def test_a_written_config_reads_back_equal(saved):
    _, folder = saved("WhisperModel")
    checkpoint = open_checkpoint(folder)
    values = registry.write_architecture(checkpoint.architecture, checkpoint.config)
    assert checkpoint.architecture.read_config(json.loads(json.dumps(values))) == checkpoint.config
    named = transformers.WhisperConfig.from_dict(values)
    told = {key for key in values if key not in ("architectures", "model_type", "max_source_positions")}
    assert {key: getattr(named, key) for key in told} == {key: getattr(CONFIG, key) for key in told}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"biases": ("query", "key", "value", "output", "mlp")}, "biases is"),
        ({"final_norm": False}, "final_norm is False"),
        ({"mels": 128}, "num_mel_bins is 80 in the checkpoint and 128 in the model"),
    ],
)
def test_an_encoder_with_other_options_than_whisper_is_refused(changed, said, saved):
    _, folder = saved("WhisperModel")
    model = as_model(dataclasses.replace(open_checkpoint(folder).config, **changed))
    with pytest.raises(IncompatibleCheckpointError, match=said):
        parameter_initializer(model, 0, (("audio", str(folder)),))
