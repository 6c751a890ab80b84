"""Image generation beside diffusers: guided DDIM through the U-Net, and the decoder of the autoencoder."""

import dataclasses

import jax
import numpy as np
import pytest

from configs.architectures import ScaledLinearSchedule
from mmjax.models.modalities.generators.diffusion import standard_normals
from mmjax.models.modalities.generators.generator import generate_images, generator_module
from mmjax.models.structure.parameters import layer_name
from mmjax.weights.initialization import parameter_initializer
from tests.mmjax.models.modalities.generators.diffusers_scheduler import ddim_scheduler
from tests.mmjax.weights.published.generators.diffusers_parity import BACKBONE, model_of, module_of, read
from tests.mmjax.weights.published.parity import single_threaded_torch

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

GUIDANCE, STEPS = 3.0, 4


def their_models():
    torch = single_threaded_torch()
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=4,
        block_out_channels=(16,),
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D",),
        up_block_types=("CrossAttnUpBlock2D",),
        cross_attention_dim=12,
        attention_head_dim=2,
        layers_per_block=1,
        use_linear_projection=True,
    )
    autoencoder = diffusers.AutoencoderKL(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
    )
    return unet.eval(), autoencoder.eval()


@pytest.mark.parametrize("prediction", ["velocity", "epsilon"])
def test_a_guided_image_matches_diffusers(prediction, tmp_path):
    torch, schedule = single_threaded_torch(), ScaledLinearSchedule(prediction=prediction)
    unet, autoencoder = their_models()
    unet.save_pretrained(tmp_path / "unet")
    autoencoder.save_pretrained(tmp_path / "vae")
    _, of_unet, unet_parameters = read(tmp_path / "unet")
    _, of_vae, vae_parameters = read(tmp_path / "vae")
    config = dataclasses.replace(
        of_unet, image_size=8, channels=3, schedule=schedule, conditions=3, autoencoder=of_vae.autoencoder
    )
    parameters = unet_parameters | vae_parameters

    keys = jax.random.split(jax.random.key(0), 2)
    conditions = np.random.default_rng(0).normal(size=(2, 3, 12)).astype(np.float32)

    @jax.jit
    def draw(parameters, conditions, keys):
        parts = [module_of(config, parameters, name) for name in ("unet", "vae")]
        return generate_images(config, {"unet": parts[0], "vae": parts[1]}, conditions, keys, STEPS, GUIDANCE)

    ours = draw(parameters, conditions, keys)

    scheduler = ddim_scheduler(schedule)
    scheduler.set_timesteps(STEPS)
    noise = np.asarray(standard_normals(keys, config.latent_shape)).transpose(0, 3, 1, 2)
    with torch.no_grad():
        latents = torch.from_numpy(np.ascontiguousarray(noise))
        hidden = torch.from_numpy(conditions)
        for time in scheduler.timesteps:
            without, given = (unet(latents, time, of).sample for of in (torch.zeros_like(hidden), hidden))
            latents = scheduler.step(without + GUIDANCE * (given - without), time, latents).prev_sample
        images = autoencoder.decode(latents / autoencoder.config.scaling_factor).sample.clamp(-1, 1)
    theirs = images.numpy().transpose(0, 2, 3, 1)
    assert ours.shape == (2, 8, 8, 3) and theirs.std() > 0.1
    np.testing.assert_allclose(ours, theirs, atol=1e-4)

    # A training run starts from the two folders, at a size of its own, and each lands in its own part.
    larger = dataclasses.replace(config, image_size=32)
    weights = (("generator", str(tmp_path / "unet")), ("generator_vae", str(tmp_path / "vae")))
    values = parameter_initializer(model_of(larger), 0, weights)
    module = generator_module(larger, BACKBONE)
    for piece in module.pieces[1:]:
        started, expected = values.init_layer(module, piece, 0), parameters[piece.name][layer_name(0)]
        assert jax.tree.all(jax.tree.map(np.array_equal, started, expected)), piece.name
