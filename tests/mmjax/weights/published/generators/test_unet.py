"""The U-Net beside diffusers: predictions, and weights in both directions."""

import json

import numpy as np
import pytest

from mmjax.weights.published.generators.unet import PUBLISHED
from tests.mmjax.weights.published.generators.diffusers_parity import predict, read, write
from tests.mmjax.weights.published.parity import single_threaded_torch

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

CROSS = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
# Stable Diffusion 2.1's kinds of blocks, 1.x's, and AudioLDM's, whose maps are spectrograms.
KINDS = {
    "stable diffusion 2": CROSS
    | {"cross_attention_dim": 12, "attention_head_dim": (2, 4), "use_linear_projection": True, "layers_per_block": 2},
    "stable diffusion 1": CROSS | {"cross_attention_dim": 12, "attention_head_dim": 2, "layers_per_block": 1},
    "audioldm": {
        "in_channels": 8,
        "out_channels": 8,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": (16, 32),
        "attention_head_dim": 4,
        "class_embed_type": "simple_projection",
        "projection_class_embeddings_input_dim": 12,
        "class_embeddings_concat": True,
        "layers_per_block": 1,
    },
}


def theirs(kind, seed=0):
    torch = single_threaded_torch()
    torch.manual_seed(seed)
    model = diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=(16, 32), norm_num_groups=8, **KINDS[kind]
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too start elsewhere than at 0 and 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def arguments(kind, seed=0):
    """Maps [b, y, x, c] that are not square, times, conditions [b, q, k]."""
    random = np.random.default_rng(seed)
    channels, count = KINDS[kind].get("in_channels", 4), 3 if kind.startswith("stable") else 1
    maps = random.normal(size=(2, 12, 8, channels)).astype(np.float32)
    return maps, np.array([1.0, 731.0], np.float32), random.normal(size=(2, count, 12)).astype(np.float32)


def their_prediction(model, kind, maps, time, conditions):
    torch = single_threaded_torch()
    into = [torch.from_numpy(np.ascontiguousarray(each)) for each in (maps.transpose(0, 3, 1, 2), time, conditions)]
    crosses = kind.startswith("stable")
    with torch.no_grad():
        out = model(
            into[0],
            into[1].long(),
            encoder_hidden_states=into[2] if crosses else None,
            class_labels=None if crosses else into[2][:, 0],
        )
    return out.sample.numpy().transpose(0, 2, 3, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_match_diffusers_which_loads_what_is_written(kind, tmp_path):
    model, given = theirs(kind), arguments(kind)
    model.save_pretrained(tmp_path / "theirs")
    published, config, parameters = read(tmp_path / "theirs")
    expected = their_prediction(model, kind, *given)
    found = predict(config, parameters, *given)
    assert np.abs(expected).max() > 0.3
    np.testing.assert_allclose(found, expected, atol=1e-4)

    write(tmp_path / "ours", published, config, parameters)
    again = diffusers.UNet2DConditionModel.from_pretrained(tmp_path / "ours").eval()
    np.testing.assert_array_equal(their_prediction(again, kind, *given), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_configuration_reads_back_equal(kind, tmp_path):
    theirs(kind).save_config(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (published,) = PUBLISHED
    written = published.write_config(published.read_config(values))
    given = {key: value for key, value in values.items() if key in written and key != "attention_head_dim"}
    assert {key: written[key] for key in given} == given
    assert published.write_config(published.read_config(json.loads(json.dumps(written)))) == written


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"act_fn": "gelu"}, "act_fn is 'gelu'; only 'silu'"),
        ({"out_channels": 8}, "in_channels is 4 and out_channels is 8"),
        ({"up_block_types": ["UpBlock2D", "UpBlock2D"]}, "up_block_types is"),
        ({"class_embed_type": "timestep"}, "class_embed_type is 'timestep'"),
        ({"cross_attention_dim": [12, 24]}, "cross_attention_dim is"),
        (
            {"class_embed_type": "simple_projection", "projection_class_embeddings_input_dim": 5},
            "cross_attention_dim is 12 and projection_class_embeddings_input_dim is 5",
        ),
    ],
)
def test_unsupported_values_are_refused_by_key(changed, message, tmp_path):
    theirs("stable diffusion 2").save_config(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ValueError, match=message):
        PUBLISHED[0].read_config(values | changed)
