"""The autoencoder beside diffusers: latents, images, and weights in both directions."""

import jax
import numpy as np
import pytest

from mmjax.weights.published.generators.autoencoder import ALIASES, PUBLISHED
from sharding.axes import Axes
from tests.mmjax.weights.published.generators.diffusers_parity import module_of, read, write
from tests.mmjax.weights.published.parity import single_threaded_torch

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")


# Of Stable Diffusion 1 and 2, and of Stable Diffusion 3 and Flux.1.
KINDS = {
    "with quantisation": {"scaling_factor": 0.3},
    "shifted": {
        "latent_channels": 6,
        "scaling_factor": 0.3,
        "shift_factor": 0.2,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    },
}


def theirs(kind="with quantisation"):
    torch = single_threaded_torch()
    torch.manual_seed(0)
    model = diffusers.AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=2,
        norm_num_groups=4,
        sample_size=8,
        **KINDS[kind],
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def theirs_of(model, images, latents):
    """Means and standard deviations of latents in the generator's scale, and decoded images, channels last."""
    torch = single_threaded_torch()

    def first(x):
        return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))

    with torch.no_grad():
        posterior = model.encode(first(images)).latent_dist
        shift = model.config.shift_factor or 0.0
        decoded = model.decode(first(latents) / 0.3 + shift).sample
        encoded = (0.3 * (posterior.mean - shift), 0.3 * posterior.std)
    return [each.numpy().transpose(0, 2, 3, 1) for each in (*encoded, decoded)]


@pytest.mark.parametrize("kind", KINDS)
def test_latents_and_images_match_diffusers_which_loads_what_is_written(kind, tmp_path):
    model, random = theirs(kind), np.random.default_rng(0)
    images = random.uniform(-1, 1, (2, 12, 8, 3)).astype(np.float32)
    latents = random.normal(size=(2, 6, 4, model.config.latent_channels)).astype(np.float32)
    expected = theirs_of(model, images, latents)
    model.save_pretrained(tmp_path / "theirs")
    published, config, parameters = read(tmp_path / "theirs")

    @jax.jit
    def compute(parameters, images, latents):
        of = module_of(config, parameters, "vae").autoencoder
        return *of.encode(images, Axes()), of.decode(latents, Axes())

    for ours, wanted in zip(compute(parameters, images, latents), expected, strict=True):
        np.testing.assert_allclose(ours, wanted, atol=1e-4)

    write(tmp_path / "ours", published, config, parameters)
    again = theirs_of(diffusers.AutoencoderKL.from_pretrained(tmp_path / "ours").eval(), images, latents)
    for one, other in zip(again, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_tensor_names_of_old_files_are_aliases():
    (published,) = PUBLISHED
    (rules,) = published.rules(published.read_config(dict(theirs().config))).values()
    attention = {name for rule in rules for name in rule.tensor_names if "attentions" in name and "norm" not in name}
    for old, new in ALIASES:
        assert f"{new}weight" in attention and "attentions.0." in old
    assert len(attention) == 2 * len(ALIASES)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"latents_mean": [0.1]}, "latents_mean is .* only None"),
        ({"use_quant_conv": False}, "use_quant_conv is False and use_post_quant_conv is True"),
        ({"down_block_types": ["AttnDownEncoderBlock2D"]}, "down_block_types is"),
        ({"out_channels": 1}, "in_channels is 3 and out_channels is 1"),
    ],
)
def test_unsupported_values_are_refused_by_key(changed, message):
    with pytest.raises(ValueError, match=message):
        PUBLISHED[0].read_config(dict(theirs().config) | changed)


def test_writing_a_generator_without_an_autoencoder_is_refused():
    from configs.architectures import UNetConfig

    with pytest.raises(ValueError, match=r"generator.autoencoder is None"):
        PUBLISHED[0].write_config(UNetConfig())
