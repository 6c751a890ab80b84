"""Projectors beside those of Gemma 3, PaliGemma and Llama 4."""

import dataclasses
import operator

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.architectures import BackboneConfig, VisionConfig
from configs.modules.projectors import AdapterProjectorConfig, LinearProjectorConfig
from data.media.patches import patchify
from mmjax.models.modalities.projectors import build_projector
from sharding.axes import Axes

SIDE, POOL = 4, 2  # sides of a picture and of a pooled cell, in patches
VISION = VisionConfig(width=12, heads=2, depth=1, patch=2, merge=POOL)
BACKBONE = BackboneConfig(width=24, heads=4)


def project(vision, values, parameters):
    """Tokens [t, width] of features of one picture, `[row, column, width]`, with parameters by path."""
    projector = build_projector(vision, BACKBONE)
    for path, value in parameters.items():
        part, leaf = path.split("/")
        getattr(operator.attrgetter(part)(projector), leaf).set_value(jnp.asarray(value))
    assert len(nnx.to_flat_state(nnx.state(projector))) == len(parameters)
    blank = np.zeros((SIDE * vision.patch, SIDE * vision.patch, 3), np.uint8)
    _, places = patchify(blank, vision.patch, vision.merge)
    features = jnp.asarray(values[places[:, 0], places[:, 1]])[None]
    return np.asarray(projector(features, {}, Axes()).activations[BACKBONE.name])[0]


def random(*shape):
    return np.random.default_rng(len(shape) + sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parity
def test_pooled_and_normed_patches_are_projected_as_in_gemma_3():
    torch = pytest.importorskip("torch")
    gemma3 = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")
    config = gemma3.Gemma3Config(
        vision_config={"hidden_size": VISION.width, "image_size": SIDE * 2, "patch_size": 2, "layer_norm_eps": 1e-6},
        text_config={"hidden_size": BACKBONE.width},
        mm_tokens_per_image=(SIDE // POOL) ** 2,
    )
    theirs = gemma3.Gemma3MultiModalProjector(config)
    values, weight, scale = random(SIDE, SIDE, VISION.width), random(VISION.width, BACKBONE.width), random(VISION.width)
    with torch.no_grad():
        theirs.mm_input_projection_weight.copy_(torch.from_numpy(weight))
        theirs.mm_soft_emb_norm.weight.copy_(torch.from_numpy(scale))
        expected = theirs(torch.from_numpy(values.reshape(1, -1, VISION.width)))[0].numpy()
    vision = dataclasses.replace(VISION, projector=LinearProjectorConfig(norm=True, bias=False))
    projected = project(vision, values, {"linear/kernel": weight, "norm/scale": scale})
    np.testing.assert_allclose(projected, expected, atol=1e-5 * np.abs(expected).max())


def test_every_patch_is_projected_as_in_paligemma():
    values, weight, bias = (
        random(SIDE, SIDE, VISION.width),
        random(VISION.width, BACKBONE.width),
        random(BACKBONE.width),
    )
    vision = dataclasses.replace(VISION, merge=1, projector=LinearProjectorConfig())
    projected = project(vision, values, {"linear/kernel": weight, "linear/bias": bias})
    expected = values.reshape(-1, VISION.width) @ weight + bias
    np.testing.assert_allclose(projected, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parity
def test_squares_of_patches_are_projected_as_in_llama_4():
    torch = pytest.importorskip("torch")
    llama4 = pytest.importorskip("transformers.models.llama4.modeling_llama4")
    sizes = {"hidden_size": VISION.width, "intermediate_size": POOL**2 * VISION.width}
    width = 16
    config = llama4.Llama4VisionConfig(
        **sizes, vision_output_dim=width, projector_input_dim=width, projector_output_dim=width
    )
    adapter = llama4.Llama4VisionPixelShuffleMLP(config)
    values, last = random(SIDE, SIDE, VISION.width), random(width, BACKBONE.width)
    up, down = random(POOL**2 * VISION.width, width), random(width, width)
    with torch.no_grad():
        adapter.mlp.fc1.weight.copy_(torch.from_numpy(up.T.copy()))
        adapter.mlp.fc2.weight.copy_(torch.from_numpy(down.T.copy()))
        adapted = adapter(torch.from_numpy(values.reshape(1, -1, VISION.width)))[0].numpy()
    vision = dataclasses.replace(VISION, projector=AdapterProjectorConfig(width))
    projected = project(vision, values, {"mlp.up/kernel": up, "mlp.down/kernel": down, "linear/kernel": last})
    expected = adapted @ last  # Llama4MultiModalProjector
    np.testing.assert_allclose(projected, expected, atol=1e-5 * np.abs(expected).max())
