"""The audio encoder: convolutions against their definition, and independence of the clips of a row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from configs.architectures import AudioConfig, BackboneConfig, ModelConfig
from mmjax.models.layers.positions import sinusoidal_positions_1d
from mmjax.models.modalities.audio import FrameEmbedding, TemporalConvolution
from mmjax.models.model import model_modules, run_module
from mmjax.models.structure.parameters import abstract_module_parameters, init_module_parameters, piece_definition
from sharding.axes import Axes

AUDIO = AudioConfig(width=8, depth=2, heads=2, ffn=12, mels=5, merge=2)
BACKBONE = BackboneConfig(width=16, depth=1, heads=2, kv_heads=2, ffn=16)
MODULE = model_modules(ModelConfig((AUDIO,), BACKBONE, ()))[0]
FRAMES = 16


def clip(seed, frames):
    return np.random.default_rng(seed).normal(size=(frames, AUDIO.mels)).astype(np.float32)


def row(*clips, frames=FRAMES):
    """Clips one after another, padded with zeros to a row of so many frames."""
    lengths = [len(clip) // 2 for clip in clips]
    rest = frames // 2 - sum(lengths)
    segments = np.repeat([*range(1, len(clips) + 1), 0], [*lengths, rest])
    positions = np.concatenate([np.arange(length) for length in (*lengths, rest)])
    return {
        "frames": jnp.asarray(np.concatenate([*clips, np.zeros((2 * rest, AUDIO.mels), np.float32)])[None]),
        "segments": jnp.asarray(segments[None], jnp.int32),
        "positions": jnp.asarray(positions[None], jnp.int32),
    }


@functools.cache
def weights():
    """Initial values with non-zero biases, so that a missing bias shows."""
    random = np.random.default_rng(0)
    moved = jax.tree.map(
        lambda x: x + random.normal(0, 0.1, x.shape).astype(np.float32), init_module_parameters(0, MODULE)
    )
    return jax.tree.map(jnp.asarray, moved)


@jax.jit
def run(parameters, batch):
    return run_module(MODULE, parameters, {}, batch).activations["backbone"]


def encode(batch):
    return np.asarray(run(weights(), batch))[0]


def test_two_frames_become_a_position_and_merge_positions_a_token():
    assert encode(row(clip(0, 8))).shape == (FRAMES // 2 // AUDIO.merge, BACKBONE.width)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_temporal_convolution_equals_its_definition(stride):
    random = np.random.default_rng(0)
    x, kernel, bias = (random.normal(size=shape).astype(np.float32) for shape in ((6, 3), (3, 3, 4), (4,)))
    convolution = TemporalConvolution(3, 4, split="columns", stride=stride)
    convolution.kernel.set_value(jnp.asarray(kernel))
    convolution.bias.set_value(jnp.asarray(bias))
    clips = np.array([1, 1, 2, 2, 2, 2])  # frames 1 and 2 are neighbours of different clips
    expected = []
    for center in range(0, 6, stride):
        seen = [at for at in (center - 1, center, center + 1) if 0 <= at < 6 and clips[at] == clips[center]]
        expected.append(bias + sum(x[at] @ kernel[1 + at - center] for at in seen))
    actual = convolution(jnp.asarray(x)[None], jnp.asarray(clips)[None], Axes())
    np.testing.assert_allclose(actual[0], np.stack(expected), rtol=1e-5, atol=1e-5)


def test_the_convolution_of_a_clip_that_fills_the_row_does_not_wrap_around():
    batch = row(clip(0, FRAMES))
    other = {**batch, "frames": batch["frames"].at[0, -1].add(1.0)}
    embed = MODULE.pieces[0]
    parameters = weights()["embed"]["000"]
    first, second = (
        np.asarray(piece_definition(embed).apply(parameters, {}, arrays, Axes()))[0] for arrays in (batch, other)
    )
    np.testing.assert_array_equal(first[:-1], second[:-1])
    assert np.max(np.abs(first[-1] - second[-1])) > 1e-3


def test_a_packed_clip_gives_the_same_outputs_as_alone():
    alone = encode(row(clip(0, 4), frames=4))
    packed = encode(row(clip(1, 8), clip(0, 4)))
    np.testing.assert_allclose(packed[2:3], alone, rtol=1e-4, atol=1e-5)
    assert np.max(np.abs(encode(row(clip(2, 4), frames=4)) - alone)) > 1e-2


def test_other_clips_of_the_row_change_no_bit_of_a_clip():
    middle = clip(0, 4)
    first = encode(row(clip(1, 4), middle, clip(2, 8)))
    second = encode(row(clip(3, 4), middle, clip(4, 8)))
    np.testing.assert_array_equal(first[1], second[1])
    assert (first[0] != second[0]).all() and (first[2:] != second[2:]).all()


def test_gradients_reach_every_parameter_and_no_frame_of_another_clip():
    batch = row(clip(1, 8), clip(0, 4))

    def loss(parameters, frames):
        return jnp.sum(jnp.square(run(parameters, {**batch, "frames": frames})[0, 2]))

    weight_gradients, frame_gradients = jax.grad(loss, argnums=(0, 1))(weights(), batch["frames"])
    for path, gradient in jax.tree_util.tree_leaves_with_path(weight_gradients):
        name = jax.tree_util.keystr(path)
        # Softmax does not change when every score of a query does, as the bias of the keys changes them.
        assert float(jnp.max(jnp.abs(gradient))) > 1e-6 or "['key']['bias']" in name, name
    reached = np.abs(np.asarray(frame_gradients))[0].max(axis=1) > 0
    np.testing.assert_array_equal(reached, np.arange(FRAMES) // 4 == 2)


@pytest.mark.parametrize("number", [0, 1], ids=["convolutions", "block"])
def test_split_heads_and_channels_give_the_same_outputs(number):
    piece = MODULE.pieces[number]
    definition, batch = piece_definition(piece), row(clip(1, 8), clip(0, 4))
    shared = piece.shared_inputs(batch) if piece.shared_inputs else batch
    x = [{}, jnp.asarray(np.random.default_rng(0).normal(size=(1, FRAMES // 2, AUDIO.width)), jnp.float32)][number]
    specs = jax.tree.map(
        lambda split: P(*("model" if axis else None for axis in split)),
        definition.splits,
        is_leaf=lambda leaf: isinstance(leaf, tuple),
    )
    mesh = jax.make_mesh((2,), ("model",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    parameters = weights()[piece.name]["000"]

    def body(parameters, x, shared):
        return definition.apply(parameters, x, shared, Axes(tensor=("model",)))

    split = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(specs, P(), P()), out_specs=P()))(parameters, x, shared)
    whole = definition.apply(parameters, x, shared, Axes())
    np.testing.assert_allclose(split, whole, rtol=1e-4, atol=1e-5)


def test_sinusoidal_positions_equal_whispers():
    """Its first column is the sine of the position itself, its slowest turns once in 20,000 pi positions."""
    waves = np.asarray(sinusoidal_positions_1d(jnp.arange(50)[None], 8))[0]
    places = np.arange(50)
    np.testing.assert_allclose(waves[:, 0], np.sin(places), atol=1e-5)
    np.testing.assert_allclose(waves[:, 4], np.cos(places), atol=1e-5)
    np.testing.assert_allclose(waves[:, 3], np.sin(places / 1e4), atol=1e-6)
    np.testing.assert_allclose(waves[:, 1], np.sin(places * 1e4 ** (-1 / 3)), atol=1e-5)


def test_an_embedding_names_the_arrays_that_it_reads():
    assert FrameEmbedding.batch_keys == ("frames", "segments", "positions")
    assert piece_definition(MODULE.pieces[0]).batch_keys == FrameEmbedding.batch_keys
    assert set(abstract_module_parameters(MODULE)) == {"embed", "blocks", "norm", "projector"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 3}, "AudioConfig.heads = 3 does not divide width = 128"),
        ({"width": 6, "heads": 3}, "AudioConfig.width = 6; sine positions need a multiple of 4"),
        ({"mels": 0}, "AudioConfig.mels is 0"),
    ],
)
def test_invalid_audio_configurations_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        AudioConfig(**fields)
