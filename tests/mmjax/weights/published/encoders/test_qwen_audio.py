"""Small random audio encoders of Qwen2-Audio and Qwen2.5-Omni: outputs, export after import, configurations."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig
from mmjax.models.model import model_modules, run_module
from mmjax.weights import registry
from mmjax.weights.compatibility import IncompatibleCheckpointError
from mmjax.weights.initialization import parameter_initializer
from mmjax.weights.published.encoders.audio.qwen_audio import projector_rules
from mmjax.weights.published_checkpoint import as_model, open_checkpoint
from tests.mmjax.weights.published.encoders.vision_parity import hidden_states
from tests.mmjax.weights.published.parity import (
    assert_close,
    assert_names_and_shapes,
    export_parameters,
    import_parameters,
    randomise_weights,
    same_tensors,
    single_threaded_torch,
    sinusoids,
)

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.qwen2_5_omni import configuration_qwen2_5_omni, modeling_qwen2_5_omni  # noqa: E402

OUT, MELS, WINDOW = 20, 16, 20
SMALL = {
    "num_mel_bins": MELS,
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 36,
    "max_source_positions": WINDOW,
}
CONFIGS = {
    "qwen2_audio": transformers.Qwen2AudioEncoderConfig(**SMALL),
    "omni": configuration_qwen2_5_omni.Qwen2_5OmniAudioEncoderConfig(**SMALL, n_window=6, output_dim=OUT),
}
CLASSES = {
    "qwen2_audio": transformers.Qwen2AudioEncoder,
    "omni": modeling_qwen2_5_omni.Qwen2_5OmniAudioEncoder,
}
# Numbers of frames of the clips of a row: Qwen2-Audio reads whole windows, Qwen2.5-Omni chunks of 12 frames.
LENGTHS = {"qwen2_audio": (40, 40), "omni": (40, 12, 8, 28)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a function that gives a model of transformers, and the folder that it saved."""

    @functools.cache
    def save(kind):
        theirs = randomise_weights(CLASSES[kind](CONFIGS[kind]))
        if kind == "qwen2_audio":  # sines, which are kept and not read
            sines = sinusoids(WINDOW, SMALL["d_model"])
            theirs.embed_positions.weight.data.copy_(single_threaded_torch().from_numpy(sines))
        folder = tmp_path_factory.mktemp(kind) / "saved"
        theirs.save_pretrained(folder)
        return theirs, folder

    return save


def ours(folder):
    """The folder's configuration, the encoder and its parameters."""
    config = open_checkpoint(folder).config
    module = model_modules(as_model(config))[0]
    return config, module, import_parameters(folder, as_model(config), "audio", (module,))


def clips(kind):
    return [
        np.random.default_rng(seed).normal(size=(n, MELS)).astype(np.float32) for seed, n in enumerate(LENGTHS[kind])
    ]


def packed(sounds):
    """One row of clips of mel frames."""
    lengths = [len(sound) // 2 for sound in sounds]
    return {
        "frames": np.concatenate(sounds)[None],
        "segments": np.repeat(np.arange(1, len(sounds) + 1, dtype=np.int32), lengths)[None],
        "positions": np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])[None],
    }


def published_outputs(kind, theirs, sounds):
    """The averages of every clip, of Qwen2.5-Omni projected, one clip after another."""
    torch = single_threaded_torch()
    with torch.no_grad():
        if kind == "omni":
            frames = torch.from_numpy(np.concatenate(sounds).T.copy())
            lengths = torch.tensor([len(sound) for sound in sounds])
            return theirs(frames, feature_lens=lengths).last_hidden_state.numpy()
        return (
            theirs(torch.from_numpy(np.stack([sound.T for sound in sounds]))).last_hidden_state.numpy().reshape(-1, 24)
        )


def test_averages_of_packed_clips_match_qwen2_audio(saved):
    theirs, folder = saved("qwen2_audio")
    _, module, parameters = ours(folder)
    sounds = clips("qwen2_audio")
    found = hidden_states(module, parameters["audio"], packed(sounds))
    assert_close(found, published_outputs("qwen2_audio", theirs, sounds), tolerance=1e-5)


def test_tokens_of_packed_clips_match_qwen2_5_omni(saved):
    theirs, folder = saved("omni")
    config, _, parameters = ours(folder)
    module = model_modules(ModelConfig((config,), BackboneConfig(width=OUT, heads=2, kv_heads=2), ()))[0]
    kernel, bias = projector_rules("proj")
    state = theirs.state_dict()
    linear = {
        rule.parameter_paths[0].rpartition("/")[2]: rule.layout.to_parameters((state[rule.tensors].numpy(),), (shape,))[
            0
        ]
        for rule, shape in ((kernel, (24, OUT)), (bias, (OUT,)))
    }
    whole = {**parameters["audio"], "projector": {"000": {"linear": linear}}}
    sounds = clips("omni")
    run = jax.jit(lambda parameters, batch: run_module(module, parameters, {}, batch).activations["backbone"])
    found = run(jax.tree.map(jnp.asarray, whole), jax.tree.map(jnp.asarray, packed(sounds)))
    assert_close(np.asarray(found)[0], published_outputs("omni", theirs, sounds), tolerance=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_names_and_shapes_of_published_size_match_transformers(kind):
    torch = single_threaded_torch()
    with torch.device("meta"):
        theirs = CLASSES[kind](type(CONFIGS[kind])())
    assert_names_and_shapes(theirs, "audio")


@pytest.mark.parametrize("kind", CONFIGS)
def test_export_after_import_is_bit_identical(kind, saved, tmp_path):
    _, folder = saved(kind)
    config, _, parameters = ours(folder)
    export_parameters(folder, as_model(config), "audio", parameters, tmp_path / "again")
    assert same_tensors(folder, tmp_path / "again")


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_written_config_reads_back_equal(kind, saved):
    checkpoint = open_checkpoint(saved(kind)[1])
    values = registry.write_architecture(checkpoint.architecture, checkpoint.config)
    assert checkpoint.architecture.read_config(json.loads(json.dumps(values))) == checkpoint.config
    named = type(CONFIGS[kind]).from_dict(values)
    told = {key for key in values if key not in ("architectures", "model_type", "max_source_positions")}
    assert {key: getattr(named, key) for key in told} == {key: getattr(CONFIGS[kind], key) for key in told}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"chunk": 4}, "n_window is 6 in the checkpoint and 4 in the model"),
        ({"pool": 1}, "pool is 1"),
        ({"merge": 4}, "merge is 4"),
    ],
)
def test_an_encoder_with_other_options_is_refused(changed, said, saved):
    _, folder = saved("omni")
    model = as_model(dataclasses.replace(open_checkpoint(folder).config, **changed))
    with pytest.raises(IncompatibleCheckpointError, match=said):
        parameter_initializer(model, 0, (("audio", str(folder)),))


def test_scaled_embeddings_are_refused_by_key():
    with pytest.raises(ValueError, match="scale_embedding is true"):
        registry.find_architecture("qwen2_audio_encoder").read_config({"scale_embedding": True})
