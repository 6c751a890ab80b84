"""Diffusion transformers beside diffusers: predictions, and weights in both directions."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from configs.architectures import DiTConfig
from mmjax.generation.image_generation import bound_piece
from mmjax.models.modalities.generators.diffusion_transformer import dit_prediction
from mmjax.models.modalities.generators.generator import generator_module
from mmjax.weights import registry
from tests.mmjax.weights.published.generators.diffusers_parity import BACKBONE, model_of
from tests.mmjax.weights.published.parity import (
    assert_close,
    export_parameters,
    import_parameters,
    same_tensors,
    single_threaded_torch,
)

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

SIZES = {"num_attention_heads": 2, "joint_attention_dim": 12, "pooled_projection_dim": 10}
SD3 = SIZES | {
    "sample_size": 8,
    "in_channels": 3,
    "out_channels": 3,
    "num_layers": 3,
    "attention_head_dim": 8,
    "caption_projection_dim": 16,
    "pos_embed_max_size": 10,
}
FLUX = SIZES | {
    "in_channels": 12,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 12,
    "axes_dims_rope": (2, 4, 6),
}
KINDS = {
    "stable diffusion 3": ("SD3Transformer2DModel", SD3),
    "stable diffusion 3.5 medium": (
        "SD3Transformer2DModel",
        SD3 | {"dual_attention_layers": (0,), "qk_norm": "rms_norm"},
    ),
    "flux schnell": ("FluxTransformer2DModel", FLUX),
    "flux dev": ("FluxTransformer2DModel", FLUX | {"guidance_embeds": True}),
}
ROTARY = {"single_layers": 1, "positions": "rotary", "rotary_axes": (0, 8, 8)}
MAPS = (12, 8)
"""Height and width of latents; not a square."""


def theirs(kind):
    torch = single_threaded_torch()
    torch.manual_seed(0)
    name, values = KINDS[kind]
    model = getattr(diffusers, name)(**values).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def arguments(seed=0):
    """Latents [b, y, x, c], times, conditions [b, q, k]."""
    random = np.random.default_rng(seed)
    maps, conditions = random.normal(size=(2, *MAPS, 3)), random.normal(size=(2, 5, 12))
    return maps.astype(np.float32), np.array([13.0, 731.0], np.float32), conditions.astype(np.float32)


def their_prediction(model, maps, time, conditions):
    torch = single_threaded_torch()
    pooled, hidden = torch.from_numpy(conditions[..., :10].mean(axis=1)), torch.from_numpy(conditions)
    latents = torch.from_numpy(np.ascontiguousarray(maps.transpose(0, 3, 1, 2)))
    with torch.no_grad():
        if isinstance(model, diffusers.SD3Transformer2DModel):
            out = model(latents, hidden, pooled, torch.from_numpy(time)).sample
            return out.numpy().transpose(0, 2, 3, 1)
        pipeline = diffusers.FluxPipeline
        rows, columns = MAPS[0] // 2, MAPS[1] // 2
        out = model(
            pipeline._pack_latents(latents, 2, 3, *MAPS),
            hidden,
            pooled,
            torch.from_numpy(time) / 1000,
            pipeline._prepare_latent_image_ids(2, rows, columns, "cpu", torch.float32),
            torch.zeros(5, 3),
            torch.full((2,), 3.5) if model.config.guidance_embeds else None,
        ).sample
        return pipeline._unpack_latents(out, 8 * MAPS[0], 8 * MAPS[1], 8).numpy().transpose(0, 2, 3, 1)


def our_model(folder):
    """A model with the generator that the folder describes, for the tests' latents and conditions."""
    values = json.loads((folder / "config.json").read_text())
    _, config = registry.read_architecture(values)
    return model_of(dataclasses.replace(config, image_size=MAPS, conditions=5))


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_match_diffusers_and_an_export_has_the_same_bits(kind, tmp_path):
    model, given = theirs(kind), arguments()
    model.save_pretrained(tmp_path / "theirs")
    expected = their_prediction(model, *given)
    ours = our_model(tmp_path / "theirs")
    (config,) = ours.generators
    module = generator_module(config, BACKBONE)
    parameters = import_parameters(tmp_path / "theirs", ours, config.name, (module,))

    @jax.jit
    def predict(parameters, *arguments):
        pieces = {piece.name: bound_piece(piece, parameters[piece.name]) for piece in module.pieces}
        return dit_prediction(config, pieces, *arguments)

    found = predict(parameters[config.name], *given)
    assert_close(found, expected, tolerance=1e-5)

    export_parameters(tmp_path / "theirs", ours, config.name, parameters, tmp_path / "ours")
    assert same_tensors(tmp_path / "theirs", tmp_path / "ours")
    again = type(model).from_pretrained(tmp_path / "ours").eval()
    np.testing.assert_array_equal(their_prediction(again, *given), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_configuration_reads_back_equal(kind, tmp_path):
    theirs(kind).save_config(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    published, config = registry.read_architecture(values)
    written = published.write_config(config)
    assert {key: values[key] for key in written} == json.loads(json.dumps(written))
    assert published.read_config(written) == config


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("stable diffusion 3", {"dual_attention_layers": [1]}, "dual_attention_layers is"),
        ("stable diffusion 3", {"qk_norm": "layer_norm"}, "qk_norm is 'layer_norm'"),
        ("stable diffusion 3", {"caption_projection_dim": 8}, "caption_projection_dim is 8; only 16"),
        ("flux dev", {"patch_size": 2}, "patch_size is 2; only 1"),
        ("flux dev", {"out_channels": 8}, "out_channels is 8"),
        ("flux dev", {"pooled_projection_dim": 99}, "pooled_projection_dim is 99; only up to"),
    ],
)
def test_unsupported_values_are_refused_by_key(kind, changed, message):
    published = registry.find_architecture(KINDS[kind][0])
    with pytest.raises(ValueError, match=message):
        published.read_config(dict(theirs(kind).config) | changed)


@pytest.mark.parametrize(
    ("architecture", "changed", "message"),
    [
        ("SD3Transformer2DModel", {}, "double_layers and pooled_width must be above 0"),
        ("SD3Transformer2DModel", {"double_layers": 1, "position_base": 8, "position_grid": 16}, "plain_layers is 4"),
        ("FluxTransformer2DModel", {}, "positions is 'sinusoidal'"),
        ("FluxTransformer2DModel", ROTARY, "plain_layers is 4.*qk_norm is False"),
    ],
)
def test_what_the_published_transformers_cannot_compute_is_not_written(architecture, changed, message):
    with pytest.raises(ValueError, match=message):
        registry.find_architecture(architecture).write_config(DiTConfig(**changed))
