"""The FLOPs of MFU against XLA's own count of one unrolled layer of every kind of module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import AudioConfig, BackboneConfig, ModelConfig, UNetConfig, VisionConfig
from mmjax.models.model import model_modules, run_module
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import abstract_module_parameters, piece_definition
from mmjax.training.metrics.flops import count_flops
from sharding.axes import Axes
from sharding.specs.modules import module_graph
from tests.examples.loading import load_example

# Wide enough that matmuls are nearly all of the work, as they are in models of full size: XLA counts every addition.
WIDTH, FFN, TOKENS = 512, 2048, 64
TOLERANCE = 0.05
VISION = VisionConfig(width=WIDTH, depth=2, heads=8, ffn=FFN)
AUDIO = AudioConfig(width=WIDTH, depth=2, heads=8, ffn=FFN)
BACKBONE = BackboneConfig(width=WIDTH, depth=2, heads=8, kv_heads=2, ffn=FFN)
GPT = BackboneConfig(
    width=WIDTH, depth=2, heads=8, kv_heads=8, ffn=FFN, norm="layernorm", activation="gelu_tanh", gated=False
)
# Large maps: XLA leaves out the taps of convolutions over padding, a share of 2 / 3 / side in each direction.
GENERATOR = UNetConfig(image_size=128, widths=(128, 256), head_width=64, conditions=4, condition_width=WIDTH)
STACKS = {
    "vision": ModelConfig((VISION,), BACKBONE, ()),
    "audio": ModelConfig((AUDIO,), BACKBONE, ()),
    "backbone": ModelConfig((), BACKBONE, ()),
    "backbone, gpt": ModelConfig((), GPT, ()),
}


def module_of(kind: str) -> Module:
    name = kind.partition(",")[0]
    return next(module for module in model_modules(STACKS[kind]) if module.name == name)


def arrays(kind: str) -> dict[str, jax.ShapeDtypeStruct]:
    names = ("segments", "branches", "positions")
    return {name: jax.ShapeDtypeStruct((1, TOKENS), jnp.int32) for name in names}


def xla_flops(function, *arguments) -> float:
    """FLOPs of the program as it is handed to XLA, before fusion; nothing is compiled."""
    return jax.jit(function).lower(*arguments).cost_analysis()["flops"]


@pytest.mark.parametrize("kind", STACKS)
def test_a_layer_has_the_flops_that_xla_counts(kind):
    piece = next(piece for piece in module_of(kind).compute_pieces if piece.layers)

    def layer(parameters, x, batch):
        return piece_definition(piece).apply(parameters, x, piece.shared_inputs(batch), Axes())

    x = jax.ShapeDtypeStruct((1, TOKENS, WIDTH), jnp.float32)
    given = piece_definition(piece).shapes, x, arrays(kind)
    theirs, ours = xla_flops(layer, *given), count_flops(layer, *given)
    assert abs(theirs / ours - 1) < TOLERANCE
    name = kind.partition(",")[0]
    spec = module_graph(STACKS[kind])[name].layer
    squares = TOKENS**2 * (2 if name == "backbone" else 1)  # the plain form computes what a causal mask hides
    assert spec.flops.evaluate(np.array([TOKENS, squares, 1.0, 0.0])) == ours


def test_an_encoder_of_a_users_own_has_the_flops_that_xla_counts():
    config = load_example("new_encoder").SensorConfig(width=WIDTH, depth=2, heads=8, ffn=FFN, window=128)
    model = ModelConfig((config,), BACKBONE, ())
    module = model_modules(model)[0]
    batch = arrays("vision") | {"windows": jax.ShapeDtypeStruct((1, TOKENS, 2 * 128), jnp.float32)}

    def whole(parameters, batch):
        return run_module(module, parameters, {}, batch).activations["backbone"]

    given = abstract_module_parameters(module), batch
    theirs, ours = xla_flops(whole, *given), count_flops(whole, *given)
    assert abs(theirs / ours - 1) < TOLERANCE
    assert module_graph(model)["sensor"].forward_flops(np.array([TOKENS, TOKENS**2, 1.0, 0.0])) == ours


def test_a_generator_has_the_flops_that_xla_counts():
    model = ModelConfig((), BACKBONE, (GENERATOR,))
    module = model_modules(model)[-1]
    batch = {
        "images": jax.ShapeDtypeStruct((1, 1, 128, 128, 3), jnp.float32),
        "weights": jax.ShapeDtypeStruct((1, 1), jnp.float32),
        "samples": jax.ShapeDtypeStruct((1, 1), jnp.int32),
        "seed_and_step": jax.ShapeDtypeStruct((2,), jnp.int32),
    }
    inputs = {"backbone": jax.ShapeDtypeStruct((1, 1, GENERATOR.conditions, WIDTH), jnp.float32)}

    def whole(parameters, inputs, batch):
        return run_module(module, parameters, inputs, batch).loss

    theirs = xla_flops(whole, abstract_module_parameters(module), inputs, batch)
    ours = count_flops(whole, abstract_module_parameters(module), inputs, batch)
    assert abs(theirs / ours - 1) < TOLERANCE
    assert module_graph(model)["generator"].forward_flops(np.array([0.0, 0.0, 1.0, 0.0])) == ours
