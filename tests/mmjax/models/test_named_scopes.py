"""Named scopes: profiler traces and HLO tell the layers of every module apart."""

import functools

import jax
import jax.numpy as jnp
import pytest

from configs.architectures import (
    AudioConfig,
    AutoencoderConfig,
    BackboneConfig,
    ExpertsConfig,
    ModelConfig,
    UNetConfig,
    VisionConfig,
)
from configs.modules.lora import LoraConfig
from data.data_config import RowCapacity
from data.packing.global_batch import build_global_batch, capacity_for_model
from data.packing.rows.packed_rows import pack_samples
from data.samples.sample_format import SampleFormat
from mmjax.models.model import model_modules, run_module
from mmjax.models.structure.parameters import abstract_module_parameters

BACKBONE = BackboneConfig(
    name="decoder", vocabulary=48, width=16, depth=1, heads=4, kv_heads=2, ffn=32, experts=ExpertsConfig(ffn=8)
)
AUTOENCODER = AutoencoderConfig(latent_channels=4, widths=(8, 8), blocks=1, groups=4)
MODEL = ModelConfig(
    (VisionConfig(width=16, depth=1, heads=2, ffn=32), AudioConfig(width=16, depth=1, heads=2, ffn=32)),
    BACKBONE,
    (
        UNetConfig(
            image_size=8, patch=1, widths=(8, 8), head_width=4, groups=4, condition_width=8, autoencoder=AUTOENCODER
        ),
    ),
    lora=(LoraConfig(part="decoder"),),
)
SCOPES = {
    "vision": ("embedding", "block/attention", "block/mlp", "projector/mlp"),
    "audio": ("embedding", "block/attention", "block/mlp", "projector/mlp"),
    "decoder": ("embedding", "block/attention/lora", "block/experts/router", "language_head"),
    "generator": (
        "projector/mlp",
        "autoencoder/encode/residual_block",
        "unet/down_0/residual_block",
        "unet/middle/spatial_transformer/attention",
        "unet/up_1/residual_block",
    ),
}


@functools.cache
def abstract_batch():
    """Shapes of the arrays of a batch of one row, by module."""
    capacity = RowCapacity(tokens=32, lengths={"patches": 16, "frames": 32}, images=1, samples=1)
    sample_format = SampleFormat.for_model(MODEL, capacity.lengths)
    rows = pack_samples([], 1, capacity_for_model(capacity, sample_format), sample_format)
    arrays = build_global_batch(rows, MODEL, sample_format).arrays
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), arrays)
    seed_and_step = jax.ShapeDtypeStruct((2,), jnp.int32)
    return {module: {**named, "seed_and_step": seed_and_step} for module, named in shapes.items()}


@pytest.mark.parametrize("name", SCOPES)
def test_operations_of_a_module_carry_the_names_of_its_layers(name):
    modules = {module.name: module for module in model_modules(MODEL)}
    inputs: dict[str, dict] = {module: {} for module in modules}
    for module in modules.values():  # shapes of the activations between modules
        parameters = abstract_module_parameters(module)
        run = functools.partial(run_module, module)
        if module.name == name:
            break
        output = jax.eval_shape(run, parameters, inputs[module.name], abstract_batch()[module.name])
        for target, shape in output.activations.items():
            inputs[target][module.name] = shape
    text = jax.jit(run).lower(parameters, inputs[name], abstract_batch()[name]).as_text(debug_info=True)
    assert [scope for scope in SCOPES[name] if f"{scope}/" not in text] == []
