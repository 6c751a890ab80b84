"""Which matmuls of a block have FP8 operands, and that nothing else changes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.attention.latent_attention import LatentAttentionConfig
from configs.modules.backbone import BackboneConfig
from configs.modules.experts import ExpertsConfig
from configs.modules.lora import LoraConfig
from mmjax.models.layers.experts import MixtureOfExperts
from mmjax.models.layers.linear import NO_AXES, Linear
from mmjax.models.layers.lora import build_with_adapters
from mmjax.models.layers.matmul_formats import build_block
from mmjax.models.modalities.backbone import BackboneBlock, ExpertBlock
from pallas_kernels import fp8

CONFIG = BackboneConfig(width=16, heads=4, kv_heads=2, ffn=32, gated=True, biases=())
EXPERTS = dataclasses.replace(CONFIG, experts=ExpertsConfig(count=4, ffn=16, shared_ffn=16))
LATENT = dataclasses.replace(CONFIG, kv_heads=4, latent_attention=LatentAttentionConfig(kv_rank=8))


def in_fp8(block):
    return {
        "/".join(map(str, path))
        for path, child in nnx.iter_modules(block)
        if isinstance(child, Linear | MixtureOfExperts) and child.matmul_format == "fp8"
    }


@pytest.mark.parametrize(
    ("config", "kind", "layers", "expected"),
    [
        (CONFIG, BackboneBlock, (), set()),
        (CONFIG, BackboneBlock, ("attention",), {f"attention/{name}" for name in ("query", "key", "value", "output")}),
        (CONFIG, BackboneBlock, ("mlp",), {"mlp/gate", "mlp/up", "mlp/down"}),
        (EXPERTS, ExpertBlock, ("mlp",), {"mlp", "mlp/shared/gate", "mlp/shared/up", "mlp/shared/down"}),
        (
            LATENT,
            BackboneBlock,
            ("attention",),
            {f"attention/{name}" for name in ("query", "latent", "key_value", "output")},
        ),
    ],
)
def test_projections_and_experts_of_the_named_layers_are_in_fp8(config, kind, layers, expected):
    assert in_fp8(build_block(kind, dataclasses.replace(config, fp8=layers))) == expected


def test_adapters_keep_their_precision():
    config = dataclasses.replace(CONFIG, fp8=("attention",))
    lora = LoraConfig(part=config.name, targets=("query",), rank=2)
    block = build_with_adapters(lambda: build_block(BackboneBlock, config), lora)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp8, "quantize", lambda x, kind: seen.append(x.shape) or fp8.Fp8Array(x, jnp.ones((), x.dtype)))
        jax.eval_shape(lambda x: block.attention.query(x, NO_AXES), jax.ShapeDtypeStruct((1, 4, 16), jnp.float32))
    assert seen == [(1, 4, 16), (16, 16)], "x and the kernel, not what the adapter multiplies"


@pytest.mark.parametrize(("config", "kind"), [(CONFIG, BackboneBlock), (EXPERTS, ExpertBlock)])
def test_the_feed_forward_layer_is_near_what_it_is_without_fp8_but_not_the_same(config, kind):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 16)), jnp.float32)

    def output(layers):
        layer = build_block(kind, dataclasses.replace(config, fp8=layers)).mlp
        random = np.random.default_rng(1)
        for parameter in jax.tree.leaves(nnx.state(layer), is_leaf=lambda leaf: isinstance(leaf, nnx.Param)):
            parameter.set_value(jnp.asarray(random.normal(size=parameter.shape) * 0.25, jnp.float32))
        nnx.update(layer, nnx.state(layer))
        return np.asarray(layer(x, NO_AXES))

    native, rounded = output(()), output(("mlp",))
    error = np.linalg.norm(rounded - native) / np.linalg.norm(native)
    assert 1e-3 < error < 0.1
