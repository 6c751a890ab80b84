"""Specs equal the Flax modules that are built from the same dataclasses: parameters and FLOPs."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import (
    AudioConfig,
    AutoencoderConfig,
    BackboneConfig,
    DiTConfig,
    LatentAttentionConfig,
    LoraConfig,
    ModelConfig,
    ScaledLinearSchedule,
    UNetConfig,
    VisionConfig,
)
from configs.attention.attention_kinds import AttentionTemperature
from configs.attention.attention_windows import AttentionWindows
from configs.modules.projectors import (
    AdapterProjectorConfig,
    LinearProjectorConfig,
    MLPProjectorConfig,
    ResamplerConfig,
)
from mmjax.models.model import model_modules, run_module
from mmjax.models.structure.parameters import abstract_module_parameters, piece_definition
from mmjax.training.metrics.flops import count_flops
from sharding.specs.layers.layer import PerLoad
from sharding.specs.modules import module_graph

VISION = VisionConfig(width=24, depth=3, heads=2, ffn=40, patch=4, merge=2)
AUDIO = AudioConfig(width=16, depth=2, heads=2, ffn=24, mels=6, merge=2)
BACKBONE = BackboneConfig(vocabulary=48, width=32, depth=3, heads=4, kv_heads=2, ffn=56)
GENERATOR = UNetConfig(
    image_size=16,
    patch=2,
    widths=(8, 16, 32),
    blocks=2,
    attention_levels=(1,),
    head_width=8,
    groups=4,
    condition_width=12,
)
MODELS = {
    "gated": ModelConfig((VISION, AUDIO), BACKBONE, (GENERATOR,)),
    "plain, tied": ModelConfig(
        (dataclasses.replace(VISION, temporal_patch=2),),
        dataclasses.replace(BACKBONE, gated=False, biases=("mlp",), activation="gelu_tanh", tie_embeddings=True),
        (dataclasses.replace(GENERATOR, attention_levels=(0, 2), blocks=1),),
    ),
}
MODELS["as published, each with what the others lack"] = ModelConfig(
    (
        dataclasses.replace(
            VISION,
            norm="rmsnorm",
            biases=("output", "mlp"),
            qk_norm="width",
            layer_scale=0.1,
            class_token=True,
            registers=5,
            positions="learned",
            grid=4,
            patch_bias=False,
            input_norm=True,
            final_norm=False,
            projector=MLPProjectorConfig(norm=True, activation="gelu"),
        ),
        dataclasses.replace(
            AUDIO,
            kv_heads=2,
            gated=True,
            activation="silu",
            inner_norms=("attention", "mlp"),
            norm_bias=False,
            projector=ResamplerConfig(heads=4),
        ),
    ),
    dataclasses.replace(
        BACKBONE,
        norm="layernorm",
        biases=("query", "key", "value"),
        qk_norm="head",
        parallel_block=True,
        positions="learned",
        max_positions=64,
        newline=True,
        inner_norms=("mlp",),
    ),
    (
        dataclasses.replace(
            GENERATOR,
            patch=1,
            widths=(8, 16),
            head_width=(2, 4),
            pooled="none",
            schedule=ScaledLinearSchedule(),
            condition_dropout=0.1,
            autoencoder=AutoencoderConfig(latent_channels=2, widths=(8, 16), blocks=1, groups=4),
        ),
    ),
)
MODELS["as Gemma's, with sinks"] = ModelConfig(
    (),
    dataclasses.replace(
        BACKBONE,
        attention_width=48,
        attention_sinks=True,
        norms="both",
        norm_offset=True,
        qk_norm="head",
        score_softcap=2.0,
        logit_softcap=3.0,
        activation="gelu_tanh",
        tie_embeddings=True,
    ),
    (),
)
MODELS["as Llama 4's"] = ModelConfig(
    (),
    dataclasses.replace(
        BACKBONE,
        qk_norm="rotated",
        attention_pattern=("chunked", "unrotated"),
        attention_chunk=8,
        attention_temperature=AttentionTemperature(),
    ),
    (),
)
LATENT = LatentAttentionConfig(query_rank=12, kv_rank=20, nope_width=8, rope_width=4, value_width=6)
MODELS["with latent attention, adapted"] = ModelConfig(
    (), dataclasses.replace(BACKBONE, kv_heads=4, latent_attention=LATENT), (), lora=(LoraConfig("backbone", rank=4),)
)
MODELS["with latent attention and queries from the input"] = ModelConfig(
    (),
    dataclasses.replace(
        BACKBONE, kv_heads=4, latent_attention=dataclasses.replace(LATENT, query_rank=0), norms="both", qk_norm="none"
    ),
    (),
)
MODELS["as Qwen's, each with what the others lack"] = ModelConfig(
    (
        dataclasses.replace(
            VISION,
            norm="rmsnorm",
            gated=True,
            activation="silu",
            pool=2,
            windows=AttentionWindows(4, full_layers=(1,)),  # the row of patches is one window
            projector=MLPProjectorConfig(activation="gelu", hidden="positions"),
        ),
        dataclasses.replace(AUDIO, pool=2, chunk=16, projector=LinearProjectorConfig()),
    ),
    BACKBONE,
    (),
)
MODELS["local and global attention"] = ModelConfig(
    (dataclasses.replace(VISION, windows=AttentionWindows(2, full_layers=(0, 2))),),
    dataclasses.replace(BACKBONE, depth=5, attention_pattern=("local", "local", "global"), attention_window=6),
    (),
    lora=(LoraConfig("backbone", rank=4),),
)
MODELS["a resampler of averages"] = ModelConfig(
    (VISION, dataclasses.replace(AUDIO, pool=2, projector=ResamplerConfig(heads=4))), BACKBONE, ()
)
MODELS["patches of an antialiased table"] = ModelConfig(
    (dataclasses.replace(VISION, positions="learned", grid=3, interpolation="bilinear_antialiased"),), BACKBONE, ()
)
MODELS["averaged patches of an antialiased table"] = ModelConfig(
    (
        dataclasses.replace(
            VISION,
            positions="learned",
            grid=3,
            interpolation="bilinear_antialiased",
            projector=LinearProjectorConfig(norm=True, bias=False),
        ),
        dataclasses.replace(AUDIO, projector=AdapterProjectorConfig(width=20)),
    ),
    BACKBONE,
    (),
)
MODELS["a generator of spectrograms"] = ModelConfig(
    (),
    BACKBONE,
    (
        dataclasses.replace(
            GENERATOR,
            image_size=(16, 8),
            second_attention="map",
            linear_projection=False,
            pooled="concatenated",
        ),
    ),
)
TRANSFORMER = DiTConfig(image_size=16, width=24, heads=4, ffn=40, condition_width=12, conditions=4)
MODELS["a diffusion transformer"] = ModelConfig((), BACKBONE, (TRANSFORMER,))
MODELS["with two streams and a second attention"] = ModelConfig(
    (),
    BACKBONE,
    (
        dataclasses.replace(
            TRANSFORMER,
            double_layers=3,
            image_attention_layers=1,
            plain_layers=0,
            qk_norm=True,
            pooled_width=8,
            autoencoder=AutoencoderConfig(latent_channels=2, widths=(8, 16), blocks=1, groups=4, quantise=False),
        ),
    ),
)
MODELS["with two streams, then one"] = ModelConfig(
    (),
    BACKBONE,
    (
        dataclasses.replace(
            TRANSFORMER,
            double_layers=2,
            single_layers=3,
            plain_layers=0,
            qk_norm=True,
            positions="rotary",
            rotary_axes=(2, 2, 2),
            pooled_width=0,
            distilled_guidance=1.0,
        ),
    ),
)
MODELS["adapted"] = dataclasses.replace(
    MODELS["gated"],
    lora=(
        LoraConfig("vision", rank=4, targets=("query", "down")),
        LoraConfig("backbone", rank=4),
        LoraConfig("generator", rank=2),
    ),
)
MODELS["features of two layers in the first two blocks, adapted"] = ModelConfig(
    (dataclasses.replace(VISION, deepstack_layers=(0, 2), deepstack_projector=MLPProjectorConfig(norm=True)), AUDIO),
    dataclasses.replace(BACKBONE, rope_sections=(2, 1, 1)),
    (),
    lora=(LoraConfig("backbone", rank=4),),
)
POSITIONS, TOKENS, IMAGES = 16, 20, 3


@functools.cache
def flax_modules(model):
    """The modules of a model by name; their pieces keep what was traced of them."""
    return {module.name: module for module in model_modules(MODELS[model])}


def flops(model_name, name):
    """FLOPs of the Flax module's forward over one row that is one segment."""
    modules, model = flax_modules(model_name), MODELS[model_name]
    batch = {
        "patches": ((1, POSITIONS, model.encoders[0].patch_width if model.encoders else 0), jnp.float32),
        "frames": ((1, 2 * POSITIONS, AUDIO.mels), jnp.float32),
        "images": ((1, IMAGES, *model.generators[0].image_sides, 3) if model.generators else (), jnp.float32),
        "weights": ((1, IMAGES if name == "generator" else TOKENS), jnp.float32),
        "samples": ((1, IMAGES), jnp.int32),
        "seed_and_step": ((2,), jnp.int32),
        "generator_conditions": ((1, IMAGES, GENERATOR.conditions), jnp.int32),
    }
    length = TOKENS if name == "backbone" else POSITIONS
    positions = (1, length, 2) if name == "vision" else (1, length)
    positions = (*positions, 3) if name == "backbone" and model.backbone.rope_sections else positions
    batch |= {"positions": (positions, jnp.int32)}
    batch |= dict.fromkeys(
        ("segments", "tokens", "branches", "targets", "vision_index", "audio_index"), ((1, length), jnp.int32)
    )
    inputs = {
        "backbone": {
            "vision": (1, POSITIONS // 4, BACKBONE.width * (1 + model.early_blocks)),
            "audio": (1, POSITIONS // 2, BACKBONE.width),
        },
        "generator": {"backbone": (1, IMAGES, GENERATOR.conditions, BACKBONE.width)},
    }.get(name, {})
    inputs = {source: shape for source, shape in inputs.items() if source in modules}
    return count_flops(
        functools.partial(run_module, modules[name]),
        abstract_module_parameters(modules[name]),
        {source: jax.ShapeDtypeStruct(shape, jnp.float32) for source, shape in inputs.items()},
        {field: jax.ShapeDtypeStruct(*description) for field, description in batch.items()},
    )


CASES = [(name, module.name) for name, model in MODELS.items() for module in module_graph(model).modules]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_parameters_match_the_flax_module(model, name):
    leaves = jax.tree.leaves(abstract_module_parameters(flax_modules(model)[name]))
    assert module_graph(MODELS[model])[name].parameter_count == sum(math.prod(leaf.shape) for leaf in leaves)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize(("model", "name"), CASES)
def test_parameters_per_tensor_rank_match_the_flax_module(model, name, tp):
    held = 0
    for piece in flax_modules(model)[name].pieces:
        definition = piece_definition(piece)
        shapes = jax.tree.leaves(definition.shapes)
        splits = jax.tree.leaves(definition.splits, is_leaf=lambda split: isinstance(split, tuple))
        for shape, split in zip(shapes, splits, strict=True):
            held += (piece.layers or 1) * math.prod(shape.shape) // (tp if "tensor" in split else 1)
    spec = module_graph(MODELS[model])[name]
    assert held == sum(
        (layer.parameters / tp + layer.replicated_parameters) * count for layer, count in spec.all_layers
    )


@pytest.mark.parametrize(("model", "name"), CASES)
def test_flops_match_the_flax_module(model, name):
    spec = module_graph(MODELS[model])[name]
    loads = {
        # The mask of the plain form hides half of what it computes, and more of local attention.
        "backbone": (TOKENS, 2 * TOKENS**2, 1, TOKENS**2),
        "generator": (0, 0, IMAGES, 0),
    }.get(name, (POSITIONS, POSITIONS**2, 1, POSITIONS**2))
    assert spec.forward_flops(np.array(loads, float)) == flops(model, name)


@pytest.mark.parametrize("model", MODELS)
def test_layers_support_sequence_parallelism_where_the_flax_pieces_do(model):
    for module in flax_modules(model).values():
        spec = module_graph(MODELS[model])[module.name]
        for piece in module.compute_pieces:
            assert spec.layer_named(piece.name).sequence_parallel == piece.sequence_parallel, (module.name, piece.name)


def test_per_load_quantities_add_up_and_take_arrays_of_loads():
    amount = PerLoad(1.0, 0.5) + PerLoad(items=3.0) * 2
    loads = np.array([[[1.0, 4.0, 2.0, 0.0], [0.0, 0.0, 1.0, 0.0]]])
    np.testing.assert_array_equal(amount.evaluate(loads), [[15.0, 6.0]])
